"""The variants of GELU with a bias that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.gelu import bias_gelu


@dataclass(frozen=True, kw_only=True)
class BiasGeluCase:
    """One variant of GELU on rows."""

    dtype: str = "bf16"
    bias: str = "fp32"
    tanh: bool = False
    width: int = 3072

    def __str__(self) -> str:
        kind = "tanh" if self.tanh else "erf"
        return f"gelu {self.dtype} {kind} {self.width} " + (f"{self.bias} bias" if self.bias else "bare")

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        x = torch.zeros(2, self.width, dtype=DTYPES[self.dtype])
        bias = torch.zeros(self.width, dtype=DTYPES[self.bias]) if self.bias else None
        y = bias_gelu.forward(x, bias, self.tanh)
        if bias is None:
            bias_gelu.backward_with_output(y, x, self.tanh)
        else:
            bias_gelu.backward(y, x, bias, self.tanh)


def demanding() -> list[BiasGeluCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    return [BiasGeluCase(), BiasGeluCase(bias=""), BiasGeluCase(dtype="fp32")]


def every() -> list[BiasGeluCase]:
    """Return all variants."""
    variants = itertools.product(DTYPES, ("", "fp32", "bf16"), (False, True), (96, 1023, 3072))
    return [BiasGeluCase(dtype=dtype, bias=bias, tanh=tanh, width=width) for dtype, bias, tanh, width in variants]


def brief() -> list[BiasGeluCase]:
    """Return few variants in which each kernel appears."""
    return [BiasGeluCase()]
