"""The kinds of LayerNorm that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.norm import gelu_layer_norm, layer_norm
from fastbert.ops.dropout.op import TokenDropout

ROWS = 2048


@dataclass(frozen=True, kw_only=True)
class NormCase:
    """One kind of LayerNorm: alone, or of a sum with bias, residual and perhaps dropout, or of a GELU with bias."""

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
        x = torch.zeros(ROWS, self.width, dtype=DTYPES[self.dtype])
        vector = torch.zeros(self.width, dtype=DTYPES[self.weights])
        if self.kind == "gelu":
            _, mean, rstd = gelu_layer_norm.forward_gelu(x, vector, vector, vector, 1e-12, self.tanh, True)
            gelu_layer_norm.backward_gelu(x, x, vector, mean, rstd, vector, self.tanh)
            return
        summed = self.kind == "sum"
        ids = torch.zeros(ROWS, dtype=torch.int64)
        dropout = TokenDropout(0.1, torch.zeros(2, dtype=torch.int64), ids, ids, 1) if self.dropout else None
        optional = (vector, x) if summed else (None, None)
        _, total, mean, rstd = layer_norm.forward(x, *optional, vector, vector, 1e-12, dropout, True)
        grad_total = x if summed else None
        layer_norm.backward(x, grad_total, total, mean, rstd, vector, dropout, x_bias=summed, residual=summed)


def demanding() -> list[NormCase]:
    wide = [NormCase(dtype="fp32", width=4096, dropout=True), NormCase(width=8192, dropout=True)]
    narrow = [NormCase(width=64, dropout=True), NormCase(dtype="fp32", width=33, dropout=True)]
    return [NormCase(kind="alone"), NormCase(), NormCase(dropout=True), NormCase(kind="gelu"), *wide, *narrow]


def every() -> list[NormCase]:
    """Without what is known to spill in backward, up to 432 bytes a thread: rows wider than 4096 that are fp32, of an
    odd width, or of a GELU by tanh.
    """
    choices = list(itertools.product(DTYPES, (1, 33, 64, 128, 256, 512, 768, 1024, 2048, 4096)))
    choices += [("bf16", 8192), ("fp16", 8192)]
    kinds = [NormCase(dtype=dtype, width=width, kind=kind) for dtype, width in choices for kind in ("alone", "gelu")]
    tanh = [NormCase(dtype=dtype, width=width, kind="gelu", tanh=True) for dtype, width in choices if width <= 4096]
    weights = [NormCase(dtype=dtype, width=768, dropout=True, weights=dtype) for dtype in ("bf16", "fp16")]
    sums = [NormCase(dtype=dtype, width=width, dropout=drop) for dtype, width in choices for drop in (False, True)]
    return kinds + tanh + weights + sums


def brief() -> list[NormCase]:
    return [NormCase(dropout=True), NormCase(kind="gelu")]
