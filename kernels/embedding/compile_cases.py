"""The variants of embeddings that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.dropout.compile_cases import example_dropout
from fastbert.kernels.embedding import layer_norm

# More than a chunk, so that runs cross a boundary.
TOKENS = 80


@dataclass(frozen=True, kw_only=True)
class EmbeddingCase:
    """One variant of embeddings with their LayerNorm: dtypes of tables and result, width, number of tables."""

    dtype: str = "fp32"
    out: str = "bf16"
    width: int = 768
    tables: int = 3
    ids: torch.dtype = torch.int64
    dropout: bool = True

    def __str__(self) -> str:
        name = f"embedding {self.tables}x {self.dtype}->{self.out} {self.width}"
        return name + " dropout" * self.dropout + " int32" * (self.ids == torch.int32)

    def launch(self) -> None:
        """Start every kernel of forward and backward."""
        ids = [torch.zeros(TOKENS, dtype=self.ids) for _ in range(self.tables)]
        tables = [torch.zeros(3, self.width, dtype=DTYPES[self.dtype]) for _ in range(self.tables)]
        weight, bias = torch.ones(self.width), torch.zeros(self.width)
        dropout = example_dropout(TOKENS) if self.dropout else None
        y, mean, rstd = layer_norm.forward(ids, tables, weight, bias, 1e-12, DTYPES[self.out], dropout, True)
        layer_norm.backward(torch.zeros_like(y), ids, tables, mean, rstd, weight, dropout)


def demanding() -> list[EmbeddingCase]:
    """Return the cases that need most registers."""
    return [
        EmbeddingCase(),
        EmbeddingCase(dtype="bf16", width=1024),
        EmbeddingCase(width=8192, out="fp32"),
        EmbeddingCase(width=32, tables=4, ids=torch.int32),
    ]


def every() -> list[EmbeddingCase]:
    """Return all cases."""
    widths = (32, 96, 128, 200, 256, 512, 768, 1024, 2048, 4096, 8192)
    kinds = (("fp32", "bf16"), ("fp32", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"))
    choices = itertools.product(kinds, widths, (False, True))
    cases = [EmbeddingCase(dtype=dtype, out=out, width=width, dropout=drop) for (dtype, out), width, drop in choices]
    return cases + [EmbeddingCase(tables=tables, ids=torch.int32) for tables in (1, 2, 4)]


def brief() -> list[EmbeddingCase]:
    """Return few cases in which every kernel appears."""
    return [EmbeddingCase()]
