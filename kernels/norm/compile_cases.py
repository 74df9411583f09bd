"""The variants of LayerNorm and RMSNorm that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.dropout.compile_cases import example_dropout
from fastbert.kernels.norm import gelu_layer_norm, layer_norm, rms_norm

ROWS = 2048
# Of encoders with RMSNorm, and of their heads.
RMS_WIDTHS = (64, 768, 1152, 2304)


@dataclass(frozen=True, kw_only=True)
class NormCase:
    """One variant: LayerNorm alone, of a sum with bias, residual and optional dropout, or of a GELU with bias; RMSNorm
    alone, or of a sum with residual and optional dropout but no bias, as in pre-norm layers."""

    dtype: str = "bf16"
    width: int = 768
    kind: str = "sum"
    dropout: bool = False
    tanh: bool = False
    weights: str = "fp32"

    def __str__(self) -> str:
        flags = [*(["dropout"] * self.dropout), *(["tanh"] * self.tanh), *([f"{self.weights} weights"])]
        return " ".join([self.dtype, f"{self.width} wide", self.kind, *flags])

    def launch(self) -> None:
        """Start every kernel of forward and backward."""
        x = torch.zeros(ROWS, self.width, dtype=DTYPES[self.dtype])
        vector = torch.zeros(self.width, dtype=DTYPES[self.weights])
        if self.kind == "gelu":
            _, mean, rstd = gelu_layer_norm.forward(x, vector, vector, vector, 1e-12, self.tanh, True)
            gelu_layer_norm.backward(x, x, vector, mean, rstd, vector, self.tanh)
            return
        if self.kind.startswith("rms"):
            residual, dropout = x if self.kind == "rms sum" else None, example_dropout(ROWS) if self.dropout else None
            _, total, rstd = rms_norm.forward(x, None, residual, vector, 1e-6, dropout, True)
            summed = residual is not None
            rms_norm.backward(x, residual, total, rstd, vector, dropout, x_bias=False, residual=summed)
            return
        summed = self.kind == "sum"
        dropout = example_dropout(ROWS) if self.dropout else None
        optional = (vector, x) if summed else (None, None)
        _, total, mean, rstd = layer_norm.forward(x, *optional, vector, vector, 1e-12, dropout, True)
        grad_total = x if summed else None
        layer_norm.backward(x, grad_total, total, mean, rstd, vector, dropout, x_bias=summed, residual=summed)


def demanding() -> list[NormCase]:
    """Return the cases that need most registers."""
    wide = [NormCase(dtype="fp32", width=4096, dropout=True), NormCase(width=8192, dropout=True)]
    narrow = [NormCase(width=64, dropout=True), NormCase(dtype="fp32", width=33, dropout=True)]
    rms = [NormCase(kind="rms"), NormCase(kind="rms sum", dropout=True)]
    return [NormCase(kind="alone"), NormCase(), NormCase(dropout=True), NormCase(kind="gelu"), *rms, *wide, *narrow]


def every() -> list[NormCase]:
    """Return all cases but those known to spill in backward, up to 432 bytes per thread.

    These are rows wider than 4096 that are fp32, of an odd width, or of a GELU by tanh.
    """
    choices = list(itertools.product(DTYPES, (1, 33, 64, 128, 256, 512, 768, 1024, 2048, 4096)))
    choices += [("bf16", 8192), ("fp16", 8192)]
    kinds = [NormCase(dtype=dtype, width=width, kind=kind) for dtype, width in choices for kind in ("alone", "gelu")]
    tanh = [NormCase(dtype=dtype, width=width, kind="gelu", tanh=True) for dtype, width in choices if width <= 4096]
    weights = [NormCase(dtype=dtype, width=768, dropout=True, weights=dtype) for dtype in ("bf16", "fp16")]
    sums = [NormCase(dtype=dtype, width=width, dropout=drop) for dtype, width in choices for drop in (False, True)]
    rms = [NormCase(kind=kind, width=width) for kind in ("rms", "rms sum") for width in RMS_WIDTHS]
    rms += [NormCase(kind="rms sum", dropout=True), NormCase(dtype="fp32", kind="rms sum", dropout=True)]
    return kinds + tanh + weights + sums + rms


def brief() -> list[NormCase]:
    """Return few cases in which every kernel appears."""
    return [NormCase(dropout=True), NormCase(kind="gelu"), NormCase(kind="rms sum", dropout=True)]
