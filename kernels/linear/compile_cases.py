"""The kinds of GELU with a bias, and of products with GELU, that are compiled ahead of time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from fastbert.kernels.configs.configuration import DTYPES
from fastbert.kernels.gelu import bias_gelu
from fastbert.kernels.linear import linear


@dataclass(frozen=True, kw_only=True)
class BiasGeluCase:
    """One kind of GELU on rows."""

    dtype: str = "bf16"
    bias: str = "fp32"
    tanh: bool = False
    width: int = 3072

    def __str__(self) -> str:
        kind = "tanh" if self.tanh else "erf"
        return f"gelu {self.dtype} {kind} {self.width} " + (f"{self.bias} bias" if self.bias else "bare")

    def launch(self) -> None:
        x = torch.zeros(2, self.width, dtype=DTYPES[self.dtype])
        bias = torch.zeros(self.width, dtype=DTYPES[self.bias]) if self.bias else None
        y = bias_gelu.forward(x, bias, self.tanh)
        if bias is None:
            bias_gelu.backward_again(y, x, self.tanh)
        else:
            bias_gelu.backward(y, x, bias, self.tanh)


@dataclass(frozen=True, kw_only=True)
class ProductCase:
    """One kind of product with GELU: rows of `depth` elements become rows of `columns`, and the other way round."""

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
        dtype = DTYPES[self.dtype]
        x, weight = torch.zeros(2, self.depth, dtype=dtype), torch.zeros(self.columns, self.depth, dtype=dtype)
        bias = torch.zeros(self.columns, dtype=DTYPES[self.bias]) if self.bias else None
        y, _ = linear.linear_gelu(x, weight, bias, self.tanh, self.keep)
        linear.gelu_gradient_product(x, torch.zeros(self.depth, self.columns, dtype=dtype), y, self.tanh)


def demanding() -> list[BiasGeluCase | ProductCase]:
    return [
        BiasGeluCase(),
        BiasGeluCase(bias=""),
        BiasGeluCase(dtype="fp32"),
        ProductCase(),
        ProductCase(tanh=True, bias="", keep=False, depth=816, columns=80),
    ]


def every() -> list[BiasGeluCase | ProductCase]:
    passes = itertools.product(DTYPES, ("", "fp32", "bf16"), (False, True), (96, 1023, 3072))
    products = itertools.product(("bf16", "fp16"), ("", "fp32"), (False, True), (False, True), (768, 816), (80, 3072))
    return [
        *(BiasGeluCase(dtype=dtype, bias=bias, tanh=tanh, width=width) for dtype, bias, tanh, width in passes),
        *(
            ProductCase(dtype=dtype, bias=bias, tanh=tanh, keep=keep, depth=depth, columns=columns)
            for dtype, bias, tanh, keep, depth, columns in products
        ),
    ]


def brief() -> list[BiasGeluCase | ProductCase]:
    return [BiasGeluCase(), ProductCase()]
