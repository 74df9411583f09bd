"""The variants of gated activations that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TypeAlias

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.gated import gated_activation, matmul


@dataclass(frozen=True, kw_only=True)
class GatedCase:
    """One variant of a gated activation on rows."""

    dtype: str = "bf16"
    bias: str = ""
    activation: str = "gelu"
    width: int = 1152

    def __str__(self) -> str:
        return f"gated {self.dtype} {self.activation} {self.width} " + (f"{self.bias} bias" if self.bias else "bare")

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        x = torch.zeros(2, 2 * self.width, dtype=DTYPES[self.dtype])
        bias = torch.zeros(2 * self.width, dtype=DTYPES[self.bias]) if self.bias else None
        y = gated_activation.forward(x, bias, self.activation)
        gated_activation.backward(y, x, bias, self.activation, bias is not None)


@dataclass(frozen=True, kw_only=True)
class MatmulGatedCase:
    """One variant of a matmul with a gated activation, from `depth` to `width` forward and backward."""

    dtype: str = "bf16"
    bias: str = ""
    activation: str = "gelu"
    keep: bool = True
    depth: int = 768
    width: int = 1152

    def __str__(self) -> str:
        flags = [*([f"{self.bias} bias"] if self.bias else []), *(["keep"] * self.keep)]
        return " ".join([f"gated {self.dtype} {self.activation} {self.depth}x{self.width}", *flags])

    def launch(self) -> None:
        """Launch the kernels of forward and backward."""
        dtype = DTYPES[self.dtype]
        x = torch.zeros(512, self.depth, dtype=dtype)
        bias = torch.zeros(2 * self.width, dtype=DTYPES[self.bias]) if self.bias else None
        weight = torch.zeros(2 * self.width, self.depth, dtype=dtype)
        matmul.linear_gated(x, weight, bias, self.activation, self.keep)
        u, weight = torch.zeros(512, 2 * self.width, dtype=dtype), torch.zeros(self.depth, self.width, dtype=dtype)
        matmul.linear_gated_backward(x, weight, u, self.activation)


Case: TypeAlias = GatedCase | MatmulGatedCase


def demanding() -> list[Case]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    passes = [GatedCase(), GatedCase(bias="fp32"), GatedCase(activation="silu"), GatedCase(dtype="fp32", bias="fp32")]
    return [*passes, MatmulGatedCase(bias="fp32"), MatmulGatedCase(activation="silu", keep=False, depth=816, width=80)]


def every() -> list[Case]:
    """Return all variants."""
    activations = ("gelu", "gelu_tanh", "relu", "silu")
    passes = itertools.product(DTYPES, ("", "fp32"), activations, (96, 1023, 1152))
    matmuls = itertools.product(("bf16", "fp16"), ("", "fp32"), activations, (False, True))
    return [
        *(GatedCase(dtype=dtype, bias=bias, activation=name, width=width) for dtype, bias, name, width in passes),
        *(MatmulGatedCase(dtype=dtype, bias=bias, activation=name, keep=keep) for dtype, bias, name, keep in matmuls),
    ]


def brief() -> list[Case]:
    """Return few variants in which each kernel appears."""
    return [GatedCase(bias="fp32"), MatmulGatedCase(bias="fp32")]
