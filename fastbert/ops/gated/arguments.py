"""The arguments of `gated_activation`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_tensor

ACTIVATIONS = ("gelu", "gelu_tanh", "relu", "silu")


class GatedArguments(NamedTuple):
    """x (..., 2 x width), the gates and then the values of each row, and bias (2 x width,), any floating dtypes."""

    x: Tensor
    bias: Tensor | None
    activation: str

    @property
    def width(self) -> int:
        """The columns of the result."""
        return self.x.shape[-1] // 2

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and activations that no backend supports."""
        check_tensor("x", self.x, "floating", ("...", "2 x width"))
        if self.x.shape[-1] % 2:
            raise UserError(f"x has {self.x.shape[-1]} columns: there must be as many values as gates")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"activation={self.activation!r} must be one of {', '.join(map(repr, ACTIVATIONS))}")
        if self.bias is not None:
            check_tensor("bias", self.bias, "floating", (self.x.shape[-1],), ", as wide as x")
            check_devices({"bias": self.bias}, "x", self.x.device)
