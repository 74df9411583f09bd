"""The folder of a fine-tuning run: check that a run may start or continue there, and record its inputs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError
from fastbert.finetuning import new_model, results
from fastbert.finetuning.config import FinetuneConfig
from fastbert.tasks.registry import TASKS
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.profiling import FILE as PROFILE
from fastbert.training.run_files import (
    TOKENIZER,
    VOCABULARY,
    can_be_replaced,
    check_spared,
    keep_tokenizer,
    looks_like_run,
    plain,
    read_record,
    stored_run,
    write_record,
)
from fastbert.training.trackers.progress import FOLDER as TRACKING

# All that a run writes to its folder, and that --overwrite removes.
NAMES = (
    "config.json",
    "metrics.jsonl",
    "loss.png",
    "model.delta",
    results.FILE,
    "checkpoints",
    "checkpoints.gone",
    "model",
    TOKENIZER,
    VOCABULARY,
    "adapter",
    "predictions",
    "reports",
    PROFILE,
    TRACKING,
)


def open_folder(config: FinetuneConfig, on_message: Callable[[str], None]) -> FinetuneConfig:
    """Return the run's configuration, whose `resume` is set if there is a run to continue. Raises `UserError` for a
    folder that holds a run, without --resume and --overwrite."""
    out = config.out
    holds_run = any((out / name).exists() for name in NAMES)
    if config.resume:
        saved = stored_run(out, "finetune", FinetuneConfig.CHANGEABLE, on_message)
        if saved is not None:
            return config.resumed_from(_flags(saved, out))
        if holds_run:
            raise UserError(f"--out {out}: holds no run to resume, but files with the names of a run's; choose another")
        if config.task is None and config.model is None and config.train is None:
            raise UserError(f"--out {out}: holds no run to resume; name its folder, or give --task, --model, --train")
        config = replace(config, resume=False)
    results_of_run = (results.FILE, "model")
    if holds_run and can_be_replaced(out, "finetune", FinetuneConfig.CHANGEABLE, results_of_run):
        config = replace(config, overwrite=True)  # it failed before its first checkpoint
    if holds_run and not config.overwrite:
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")
    for name, meaning in (
        ("task", ", ".join(TASKS)),
        ("model", "the folder of a pre-trained model"),
        ("train", "a file with training examples"),
    ):
        if getattr(config, name) is None:
            raise UserError(f"--{name} is missing: {meaning}")
    config.check_of_use()
    if holds_run:
        if not looks_like_run(out, "finetune"):  # so that --overwrite empties no other folder
            raise UserError(f"{out}: holds no fine-tuning run of fastbert; choose another --out")
        inputs = [("--train", config.train), *(("--eval", path) for path in config.eval)]
        inputs += [("--more-train", path) for path in config.more_train]
        folders = ("teacher",) if config.architecture is not None else ("model", "teacher")
        inputs += [(f"--{name}", find_source(path)) for name in folders if (path := getattr(config, name))]
        if config.architecture is not None:
            inputs += new_model.inputs(config)
        check_spared(out, NAMES, inputs)
    return config


def discard(folder: Path) -> None:
    """Remove a folder under a different name, so that a crash leaves nothing that is read."""
    removed = folder.with_name(f"{folder.name}.gone")
    shutil.rmtree(removed, ignore_errors=True)
    if folder.exists():
        folder.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)


def record(config: FinetuneConfig, parts: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, Any]:
    """Write RUN/config.json and RUN/tokenizer when the run begins, and the first when it is resumed, since --seeds may
    be new; return the part of it that checkpoints hold.

    `parts` are the model's configuration, and fingerprints of its vocabulary and of what is trained and evaluated on.
    Raises `UserError` where the run to be resumed has others.
    """
    parts = plain(parts)
    before = read_record(config.out, "finetune", FinetuneConfig.CHANGEABLE) if config.resume else None
    if before is not None and before.get("data") != parts["data"]:
        raise UserError(
            f"--out {config.out}: was trained with another --model, --train or --eval than those files hold now;"
            " put the run's own back, or start another run with another --out"
        )
    for name, what in (("vocabulary", "vocabulary"), ("model", "configuration")):
        if before is not None and before.get(name) != parts[name]:
            raise UserError(
                f"--model {config.model}: has another {what} than when the run in {config.out} began; put that one"
                " back, or start another run with another --out"
            )
    values = plain({"finetune": replace(config, resume=False, overwrite=False).to_dict(), **parts})
    write_record(config.out, values)
    keep_tokenizer(config.out, None if before is None else parts["vocabulary"], lambda: tokenizer)
    return values


def _flags(saved: Mapping[str, Any], folder: Path) -> FinetuneConfig:
    try:
        return FinetuneConfig.from_dict(saved["finetune"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / 'config.json'}: not a run's configuration ({error})") from None
