"""The kernel of dropout on its own as it is compiled ahead of time."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.dropout import launchers
from fastbert.kernels.dropout.inputs import DropoutInputs

TOKENS = 4


def example_dropout(tokens: int) -> DropoutInputs:
    """Return a dropout of the tokens of one sequence."""
    ids = torch.zeros(tokens, dtype=torch.int64)
    return DropoutInputs(ids[:1], ids, ids, threshold=6554, keep_scale=65536 / (65536 - 6554), site=1)


@dataclass(frozen=True, kw_only=True)
class DropoutCase:
    """Rows of one dtype and width."""

    dtype: str = "bf16"
    width: int = 768

    def __str__(self) -> str:
        return f"{self.dtype} {self.width} columns"

    def launch(self) -> None:
        """Start the kernel, which is that of forward and backward."""
        launchers.apply(torch.zeros(TOKENS, self.width, dtype=DTYPES[self.dtype]), example_dropout(TOKENS))


def demanding() -> list[DropoutCase]:
    """Return the cases that need most registers."""
    return [DropoutCase()]


def every() -> list[DropoutCase]:
    """Return all cases."""
    return [DropoutCase(dtype=dtype, width=width) for dtype in DTYPES for width in (768, 1023)]


def brief() -> list[DropoutCase]:
    """Return few cases in which every kernel appears."""
    return [DropoutCase()]
