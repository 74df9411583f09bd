"""The arguments of the LayerNorm family, as every backend receives them.

x and residual are (..., width), the vectors (width,), each of any floating dtype.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout


class LayerNormArguments(NamedTuple):
    """LayerNorm of x with weight, bias and eps."""

    x: Tensor
    weight: Tensor
    bias: Tensor
    eps: float

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        _check(self.x, {"weight": self.weight, "bias": self.bias}, self.eps)


class DropoutAddLayerNormArguments(NamedTuple):
    """LayerNorm of residual + dropout(x + x_bias); with a `dropout` x and residual are (tokens, width)."""

    x: Tensor
    x_bias: Tensor | None
    residual: Tensor
    weight: Tensor
    bias: Tensor
    eps: float
    dropout: TokenDropout | None

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        x, residual = self.x, self.residual
        _check(x, {"weight": self.weight, "bias": self.bias, "x_bias": self.x_bias}, self.eps, optional="x_bias")
        if residual.shape != x.shape or not residual.dtype.is_floating_point:
            raise UserError(
                f"residual must be floating of the shape of x, {tuple(x.shape)}, not"
                f" {residual.dtype} {tuple(residual.shape)}"
            )
        _check_device("residual", residual, x)
        if self.dropout is None:
            return
        if x.dim() != 2:
            raise UserError(f"with token_dropout x must be (tokens, width), not of shape {tuple(x.shape)}")
        self.dropout.check(x)


class GeluLayerNormArguments(NamedTuple):
    """LayerNorm of GELU(x + x_bias); `tanh` selects the approximation of GELU."""

    x: Tensor
    x_bias: Tensor | None
    weight: Tensor
    bias: Tensor
    eps: float
    tanh: bool

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        vectors = {"bias": self.x_bias, "weight": self.weight, "norm_bias": self.bias}
        _check(self.x, vectors, self.eps, optional="bias")


def _check(x: Tensor, vectors: dict[str, Tensor | None], eps: float, optional: str = "") -> None:
    """Raise UserError for x, vectors or eps that no backend supports; the vector named `optional` may be None."""
    if x.dim() == 0 or not x.dtype.is_floating_point:
        raise UserError(f"x must be floating of shape (..., width), not {x.dtype} {tuple(x.shape)}")
    width, device = x.shape[-1], x.device
    for name, vector in vectors.items():
        if vector is None:
            if name == optional:
                continue
            raise UserError(f"{name} is None: it must be floating of shape ({width},), the last axis of x")
        if vector.dim() != 1 or vector.shape[0] != width or not vector.dtype.is_floating_point:
            raise UserError(
                f"{name} must be floating of shape ({width},), the last axis of x, not"
                f" {vector.dtype} {tuple(vector.shape)}"
            )
        if vector.device != device:
            _check_device(name, vector, x)
    if not 0.0 <= eps < math.inf:
        raise UserError(f"eps={eps} must be a finite number, at least 0")


def _check_device(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise UserError(f"{name} is on {tensor.device}, x on {x.device}: move them to one device")
