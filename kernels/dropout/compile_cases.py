"""The dropout of tokens on its own, compiled ahead of time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.dropout import launchers
from fastbert.ops.dropout.op import TokenDropout


@dataclass(frozen=True, kw_only=True)
class DropoutCase:
    """Rows of one dtype and width."""

    dtype: str = "bf16"
    width: int = 768

    def __str__(self) -> str:
        return f"{self.dtype} {self.width} columns"

    def launch(self) -> None:
        place = torch.zeros(4, dtype=torch.int64)
        launchers.apply(
            torch.zeros(4, self.width, dtype=DTYPES[self.dtype]), TokenDropout(0.1, place[:1], place, place, 1)
        )


def demanding() -> list[DropoutCase]:
    return [DropoutCase()]


def every() -> list[DropoutCase]:
    return [DropoutCase(dtype=dtype, width=width) for dtype in DTYPES for width in (768, 1023)]


def brief() -> list[DropoutCase]:
    return [DropoutCase()]
