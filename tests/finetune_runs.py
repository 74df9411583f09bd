"""Fine-tuning runs on the toy tasks: their configuration, and what they leave or say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune


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
