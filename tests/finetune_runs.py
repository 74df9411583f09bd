"""Fine-tuning runs on the toy tasks: their configuration, and what they leave or say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.flags import flag


def config(place: Path, out: Path, **flags: Any) -> FinetuneConfig:
    chosen = {
        "task": "classification",
        "model": str(place / "model"),
        "train": place / "train.tsv",
        "eval": (place / "dev.tsv",),
        "out": out,
        "epochs": (3.0,),
        "lr": (1e-2,),
        "batch_size": (16,),
        "max_length": 32,
        "device": "cpu",
        "dtype": "fp32",
    }
    return FinetuneConfig(**{**chosen, **flags})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def wrong(place: Path, tmp_path: Path, **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        finetune(config(place, tmp_path / "run", **flags))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def words(place: Path, out: Path, *more: str, **flags: Any) -> list[str]:
    """The command line of `config`."""
    line = ["finetune"]
    settings = vars(config(place, out, **flags))
    for name in ("task", "model", "train", "eval", "out", "max_length", "device", "dtype", *flags):
        value = settings[name]
        values = value if isinstance(value, tuple) else (value,)
        if flag(name) not in line and values:
            line += [flag(name)] if value is True else [flag(name), *map(str, values)]
    return [*line, *more]


def lines(folder: Path, split: str) -> list[dict[str, Any]]:
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in records if record["split"] == split]


def assert_close(parts: Path, whole: Path, of_losses: float = 1e-6) -> None:
    """The same losses, tokens, scores, and weights."""
    train = [lines(folder, "train") for folder in (parts, whole)]
    assert len(train[0]) == len(train[1]) > 0
    for name in ("loss", "gradient_norm", *("lm_loss",) * ("lm_loss" in train[1][0])):
        tolerance = 1e-4 if name == "gradient_norm" else of_losses
        assert [one[name] for one in train[0]] == pytest.approx([one[name] for one in train[1]], rel=tolerance), name
    assert [one["tokens"] for one in train[0]] == [one["tokens"] for one in train[1]]
    scores = [lines(folder, "validation") for folder in (parts, whole)]
    assert [one["scores"].keys() for one in scores[0]] == [one["scores"].keys() for one in scores[1]]
    for first, second in zip(*scores, strict=True):
        for file in first["scores"]:
            assert first["scores"][file] == pytest.approx(second["scores"][file], rel=1e-4, abs=1e-3)
    assert (parts / "predictions").exists() == (whole / "predictions").exists()
    for name, value in weights(whole / "model").items():
        if name.endswith("key.bias"):  # its gradient is zero but for rounding, which AdamW scales up
            continue
        torch.testing.assert_close(weights(parts / "model")[name], value, rtol=1e-4, atol=1e-5, msg=name)
