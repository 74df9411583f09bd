"""The variants of matmuls with GELU that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.configs.linear import FEW_ROWS
from fastbert.kernels.linear import linear


@dataclass(frozen=True, kw_only=True)
class MatmulGeluCase:
    """One variant of a matmul with GELU, from `depth` to `columns` forward and backward."""

    dtype: str = "bf16"
    bias: str = "fp32"
    tanh: bool = False
    keep: bool = True
    depth: int = 768
    columns: int = 3072
    rows: int = 512
    """Up to `FEW_ROWS` they select a configuration of their own, forward."""

    def __str__(self) -> str:
        kind, bias = "tanh" if self.tanh else "erf", [f"{self.bias} bias"] if self.bias else []
        few = [f"{self.rows} rows"] if self.rows <= FEW_ROWS[-1] else []
        return " ".join([f"{self.dtype} {kind} {self.depth}x{self.columns}", *few, *bias, *(["keep"] * self.keep)])

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        dtype = DTYPES[self.dtype]
        x = torch.zeros(self.rows, self.depth, dtype=dtype)
        weight = torch.zeros(self.columns, self.depth, dtype=dtype)
        bias = torch.zeros(self.columns, dtype=DTYPES[self.bias]) if self.bias else None
        y, _ = linear.linear_gelu(x, weight, bias, self.tanh, self.keep)
        if self.rows > FEW_ROWS[-1]:
            linear.linear_gelu_backward(x, torch.zeros(self.depth, self.columns, dtype=dtype), y, self.tanh)


def demanding() -> list[MatmulGeluCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    few = [MatmulGeluCase(rows=rows) for rows in FEW_ROWS]
    return [MatmulGeluCase(), *few, MatmulGeluCase(tanh=True, bias="", keep=False, depth=816, columns=80)]


def every() -> list[MatmulGeluCase]:
    """Return all variants."""
    flags = (False, True)
    sizes = ((768, 816), (80, 3072), (*FEW_ROWS, 512))
    variants = itertools.product(("bf16", "fp16"), ("", "fp32"), flags, flags, *sizes)
    return [
        MatmulGeluCase(dtype=dtype, bias=bias, tanh=tanh, keep=keep, depth=depth, columns=columns, rows=rows)
        for dtype, bias, tanh, keep, depth, columns, rows in variants
    ]


def brief() -> list[MatmulGeluCase]:
    """Return few variants in which each kernel appears."""
    return [MatmulGeluCase()]
