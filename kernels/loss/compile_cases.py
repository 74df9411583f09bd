"""The kinds of vocabulary products with their loss that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.loss import linear_cross_entropy


@dataclass(frozen=True, kw_only=True)
class LossCase:
    """One kind of cross-entropy of a vocabulary product; under autocast the weight and the bias are fp32."""

    dtype: str = "bf16"
    vocabulary: int = 30522
    gradients: bool = True
    smoothing: bool = True
    bias: bool = True

    def __str__(self) -> str:
        flags = {"gradients": self.gradients, "smoothing": self.smoothing, "bias": self.bias}
        return " ".join([self.dtype, f"{self.vocabulary} labels", *(name for name, has in flags.items() if has)])

    def launch(self) -> None:
        x = torch.zeros(2, 16, dtype=DTYPES[self.dtype])
        weight = torch.zeros(self.vocabulary, 16)
        bias = torch.zeros(self.vocabulary) if self.bias else None
        labels = torch.zeros(2, dtype=torch.int64)
        wanted = (self.gradients, self.gradients, self.gradients and self.bias)
        found = linear_cross_entropy.forward(
            x, weight, bias, labels, -100, 0.1 if self.smoothing else 0.0, 1e-4, *wanted
        )
        if self.gradients:
            linear_cross_entropy.scaled(found[3], found[0], x.dtype)


def demanding() -> list[LossCase]:
    return [
        LossCase(),
        LossCase(smoothing=False),
        LossCase(gradients=False, smoothing=False),
        LossCase(vocabulary=2048),
        LossCase(dtype="fp32", vocabulary=119547),
    ]


def every() -> list[LossCase]:
    choices = itertools.product(DTYPES, (33, 2048, 30522, 119547), *[(False, True)] * 3)
    return [
        LossCase(dtype=dtype, vocabulary=vocabulary, gradients=gradients, smoothing=smoothing, bias=bias)
        for dtype, vocabulary, gradients, smoothing, bias in choices
    ]


def brief() -> list[LossCase]:
    return [LossCase()]
