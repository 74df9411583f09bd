"""The variants of gated activations that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.gated import gated_activation


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


def demanding() -> list[GatedCase]:
    """Return the variants that the default configurations tell apart, with the flags that need most registers."""
    return [GatedCase(), GatedCase(bias="fp32"), GatedCase(activation="silu"), GatedCase(dtype="fp32", bias="fp32")]


def every() -> list[GatedCase]:
    """Return all variants."""
    variants = itertools.product(DTYPES, ("", "fp32"), ("gelu", "gelu_tanh", "relu", "silu"), (96, 1023, 1152))
    return [
        GatedCase(dtype=dtype, bias=bias, activation=activation, width=width)
        for dtype, bias, activation, width in variants
    ]


def brief() -> list[GatedCase]:
    """Return few variants in which each kernel appears."""
    return [GatedCase(bias="fp32")]
