"""The variants of the vocabulary matmul with its loss that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.loss import linear_cross_entropy


@dataclass(frozen=True, kw_only=True)
class LossCase:
    """One variant of cross-entropy; the weight and the bias are fp32, as under autocast."""

    dtype: str = "bf16"
    vocabulary: int = 30522
    gradients: bool = True
    smoothing: bool = True
    bias: bool = True

    def __str__(self) -> str:
        flags = {"gradients": self.gradients, "smoothing": self.smoothing, "bias": self.bias}
        return " ".join([self.dtype, f"{self.vocabulary} labels", *(name for name, has in flags.items() if has)])

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        x = torch.zeros(2, 16, dtype=DTYPES[self.dtype])
        weight = torch.zeros(self.vocabulary, 16)
        bias = torch.zeros(self.vocabulary) if self.bias else None
        labels = torch.zeros(2, dtype=torch.int64)
        loss_sum, _, _, dx, _, _ = linear_cross_entropy.forward(
            linear_cross_entropy.LossInputs(
                x,
                weight,
                bias,
                labels,
                ignore_index=-100,
                label_smoothing=0.1 if self.smoothing else 0.0,
                z_loss=1e-4,
                grad_x=self.gradients,
                grad_weight=self.gradients,
                grad_bias=self.gradients and self.bias,
            )
        )
        if self.gradients:
            linear_cross_entropy.scaled(dx, loss_sum, x.dtype)


def demanding() -> list[LossCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    return [
        LossCase(),
        LossCase(smoothing=False),
        LossCase(gradients=False, smoothing=False),
        LossCase(vocabulary=2048),
        LossCase(dtype="fp32", vocabulary=119547),
    ]


def every() -> list[LossCase]:
    """Return all variants."""
    choices = itertools.product(DTYPES, (33, 2048, 30522, 119547), *[(False, True)] * 3)
    return [
        LossCase(dtype=dtype, vocabulary=vocabulary, gradients=gradients, smoothing=smoothing, bias=bias)
        for dtype, vocabulary, gradients, smoothing, bias in choices
    ]


def brief() -> list[LossCase]:
    """Return few variants in which each kernel appears."""
    return [LossCase()]
