"""The folder of a fine-tuning run: whether one may begin or continue there, and what it was begun with."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path

import torch

from fastbert.checkpoints.bounded import read_json_file
from fastbert.errors import UserError
from fastbert.finetuning import results
from fastbert.finetuning.config import FinetuneConfig
from fastbert.training.checkpoint import write_atomic
from fastbert.training.run_files import check_spared

FORMAT_VERSION = 1
# What a run leaves in its folder, and all that --overwrite removes.
NAMES = (
    "config.json",
    "metrics.jsonl",
    "loss.png",
    "model.delta",
    results.FILE,
    "checkpoints",
    "checkpoints.gone",
    "model",
    "adapter",
    "predictions",
)


def open_folder(config: FinetuneConfig) -> FinetuneConfig:
    """Refuse a folder that holds a run unless it is to be continued or replaced; returns the run's configuration."""
    out = config.out
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder")
    holds_run = any((out / name).exists() for name in NAMES)
    if config.resume:
        if not (out / "config.json").exists():
            raise UserError(f"--out {out}: holds no run to resume; leave --resume out to start one")
        return config.resumed_from(read_run(out))
    if holds_run and not config.overwrite:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")
    for name, meaning in (
        ("task", "classification, regression, tagging, span, choice or seq2seq"),
        ("model", "the folder of a pre-trained model"),
        ("train", "a file with training examples"),
    ):
        if getattr(config, name) is None:
            raise UserError(f"--{name} is missing: {meaning}")
    config.check_of_use()
    if holds_run:
        read_run(out)  # so that --overwrite empties no other folder
        given = [("--train", config.train), *(("--eval", path) for path in config.eval)]
        given += [(f"--{name}", Path(place)) for name in ("model", "teacher") if (place := getattr(config, name))]
        check_spared(out, NAMES, given)
    return config


def record(config: FinetuneConfig, data: str) -> None:
    """Write RUN/config.json when the run begins, and when it is resumed, since --seeds may be new.

    `data` is a fingerprint of what is trained and evaluated on. Raises UserError where the run to be resumed had
    another one.
    """
    path = config.out / "config.json"
    before = read_json_file(path).get("data") if config.resume else None
    if before is not None and before != data:
        raise UserError(
            f"--out {config.out}: was trained with another --model, --train or --eval than those files hold now;"
            " put the run's own back, or start another run with another --out"
        )
    values = {
        "format_version": FORMAT_VERSION,
        "data": data,
        "finetune": replace(config, resume=False, overwrite=False).to_dict(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    write_atomic(path, json.dumps(values, indent=2) + "\n")


def read_run(folder: Path) -> FinetuneConfig:
    """The configuration of the fine-tuning run in `folder`. Raises UserError where it holds something else."""
    path = folder / "config.json"
    saved = read_json_file(path) if path.is_file() else None
    if not isinstance(saved, dict) or not isinstance(saved.get("finetune"), dict):
        raise UserError(f"{folder}: holds no fine-tuning run of fastbert; choose another --out")
    if not isinstance(saved.get("format_version"), int) or saved["format_version"] > FORMAT_VERSION:
        raise UserError(f"{path}: written by a newer fastbert; update fastbert")
    try:
        return FinetuneConfig.from_dict(saved["finetune"])
    except TypeError as error:
        raise UserError(f"{path}: not a run's configuration ({error})") from None
