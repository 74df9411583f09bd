"""The kinds of softmax that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.softmax import softmax


@dataclass(frozen=True, kw_only=True)
class SoftmaxCase:
    """One kind of softmax over explicit scores."""

    dtype: str = "bf16"
    keys: int = 128
    mask: bool = True
    dropout: bool = True

    def __str__(self) -> str:
        return " ".join([self.dtype, f"{self.keys} keys", *(["mask"] * self.mask), *(["dropout"] * self.dropout)])

    def launch(self) -> None:
        scores = torch.zeros(2, 1, 2, self.keys, dtype=DTYPES[self.dtype])
        mask = torch.ones(2, 1, 1, self.keys, dtype=torch.bool) if self.mask else None
        key = torch.zeros(2, dtype=torch.int64) if self.dropout else None
        arguments = (scores, mask, 0.125, 0.1 if self.dropout else 0.0, key, 1)
        softmax.backward(softmax.forward(*arguments), *arguments)


def demanding() -> list[SoftmaxCase]:
    return [SoftmaxCase(), SoftmaxCase(dropout=False), SoftmaxCase(keys=1000), SoftmaxCase(dtype="fp32", keys=20000)]


def every() -> list[SoftmaxCase]:
    choices = itertools.product(DTYPES, (1, 33, 128, 512, 1000, 4096, 16384, 20000), (False, True), (False, True))
    return [SoftmaxCase(dtype=dtype, keys=keys, mask=mask, dropout=drop) for dtype, keys, mask, drop in choices]


def brief() -> list[SoftmaxCase]:
    return [SoftmaxCase()]
