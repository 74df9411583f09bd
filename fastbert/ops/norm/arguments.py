"""The arguments of LayerNorm, RMSNorm and their fusions, as every backend receives them.

x and residual are (..., width), the vectors (width,), each of any floating dtype.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_eps, check_tensor
from fastbert.ops.dropout.arguments import TokenDropout


class LayerNormArguments(NamedTuple):
    """The norm of residual + dropout(x + x_bias), or of x alone; with a `dropout` x is (tokens, width)."""

    x: Tensor
    x_bias: Tensor | None
    residual: Tensor | None
    weight: Tensor
    bias: Tensor | None
    eps: float
    dropout: TokenDropout | None
    rms: bool = False
    """True for RMSNorm, which has no bias and, among its statistics, an empty mean."""

    @property
    def is_sum(self) -> bool:
        """Return whether anything is added to x or dropped from it."""
        return self.residual is not None or self.x_bias is not None or self.dropout is not None

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        x, residual = self.x, self.residual
        _check(x, {"weight": self.weight}, {"bias": self.bias, "x_bias": self.x_bias}, self.eps)
        if residual is not None:
            if residual.shape != x.shape or not residual.dtype.is_floating_point:
                raise UserError(
                    f"residual must be floating of the shape of x, {tuple(x.shape)}, not"
                    f" {residual.dtype} {tuple(residual.shape)}"
                )
            check_devices({"residual": residual}, "x", x.device)
        if self.dropout is not None:
            if x.dim() != 2:
                raise UserError(f"with token_dropout x must be (tokens, width), not of shape {tuple(x.shape)}")
            self.dropout.check(x)


class GeluLayerNormArguments(NamedTuple):
    """LayerNorm of GELU(x + x_bias); `tanh` selects the approximation of GELU."""

    x: Tensor
    x_bias: Tensor | None
    weight: Tensor
    bias: Tensor | None
    eps: float
    tanh: bool

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        _check(self.x, {"weight": self.weight}, {"bias": self.x_bias, "norm_bias": self.bias}, self.eps)


def _check(x: Tensor, vectors: dict[str, Tensor], optional: dict[str, Tensor | None], eps: float) -> None:
    """Raise UserError for x, vectors, which may be None if they are optional, or eps that no backend supports."""
    vectors = vectors | {name: vector for name, vector in optional.items() if vector is not None}
    check_tensor("x", x, "floating", ("...", "width"))
    for name, vector in vectors.items():
        check_tensor(name, vector, "floating", x.shape[-1:], ", the last axis of x")
    check_devices(vectors, "x", x.device)
    check_eps(eps)
