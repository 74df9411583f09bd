"""The variants of matmuls with GELU that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
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

    def __str__(self) -> str:
        kind, bias = "tanh" if self.tanh else "erf", [f"{self.bias} bias"] if self.bias else []
        return " ".join([f"{self.dtype} {kind} {self.depth}x{self.columns}", *bias, *(["keep"] * self.keep)])

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        dtype = DTYPES[self.dtype]
        x, weight = torch.zeros(2, self.depth, dtype=dtype), torch.zeros(self.columns, self.depth, dtype=dtype)
        bias = torch.zeros(self.columns, dtype=DTYPES[self.bias]) if self.bias else None
        y, _ = linear.linear_gelu(x, weight, bias, self.tanh, self.keep)
        linear.linear_gelu_backward(x, torch.zeros(self.depth, self.columns, dtype=dtype), y, self.tanh)


def demanding() -> list[MatmulGeluCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    return [MatmulGeluCase(), MatmulGeluCase(tanh=True, bias="", keep=False, depth=816, columns=80)]


def every() -> list[MatmulGeluCase]:
    """Return all variants."""
    flags = (False, True)
    variants = itertools.product(("bf16", "fp16"), ("", "fp32"), flags, flags, (768, 816), (80, 3072))
    return [
        MatmulGeluCase(dtype=dtype, bias=bias, tanh=tanh, keep=keep, depth=depth, columns=columns)
        for dtype, bias, tanh, keep, depth, columns in variants
    ]


def brief() -> list[MatmulGeluCase]:
    """Return few variants in which each kernel appears."""
    return [MatmulGeluCase()]
