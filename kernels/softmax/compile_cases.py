"""The variants of softmax that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.dropout.compile_cases import example_dropout
from fastbert.kernels.softmax import softmax


@dataclass(frozen=True, kw_only=True)
class SoftmaxCase:
    """One variant of softmax over explicit scores."""

    dtype: str = "bf16"
    keys: int = 128
    mask: bool = True
    dropout: bool = True

    def __str__(self) -> str:
        return " ".join([self.dtype, f"{self.keys} keys", *(["mask"] * self.mask), *(["dropout"] * self.dropout)])

    def launch(self) -> None:
        """Start every kernel of forward and backward."""
        scores = torch.zeros(2, 1, 2, self.keys, dtype=DTYPES[self.dtype])
        mask = torch.ones(2, 1, 1, self.keys, dtype=torch.bool) if self.mask else None
        dropout = example_dropout(2)
        key = torch.zeros(2, dtype=torch.int64) if self.dropout else None
        inputs = softmax.SoftmaxInputs(scores, mask, 0.125, key, dropout.threshold, dropout.keep_scale, dropout.site)
        softmax.backward(softmax.forward(inputs), inputs)


def demanding() -> list[SoftmaxCase]:
    """Return the cases that need most registers."""
    return [SoftmaxCase(), SoftmaxCase(dropout=False), SoftmaxCase(keys=1000), SoftmaxCase(dtype="fp32", keys=20000)]


def every() -> list[SoftmaxCase]:
    """Return all cases."""
    choices = itertools.product(DTYPES, (1, 33, 128, 512, 1000, 4096, 16384, 20000), (False, True), (False, True))
    return [SoftmaxCase(dtype=dtype, keys=keys, mask=mask, dropout=drop) for dtype, keys, mask, drop in choices]


def brief() -> list[SoftmaxCase]:
    """Return few cases in which every kernel appears."""
    return [SoftmaxCase()]
