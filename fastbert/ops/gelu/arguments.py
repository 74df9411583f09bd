"""The arguments of `bias_gelu`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_tensor


def is_tanh(approximate: str) -> bool:
    """Return whether GELU is approximated by tanh. Raises UserError for an unknown approximation."""
    if approximate not in ("none", "tanh"):
        raise UserError(f"approximate={approximate!r} must be 'none' or 'tanh'")
    return approximate == "tanh"


class BiasGeluArguments(NamedTuple):
    """x (..., width) and bias (width,), each of any floating dtype; `tanh` selects the approximation."""

    x: Tensor
    bias: Tensor | None
    tanh: bool

    @property
    def approximate(self) -> str:
        """The approximation by its name in `torch.nn.functional.gelu`."""
        return "tanh" if self.tanh else "none"

    def check(self) -> None:
        """Raise UserError for shapes, dtypes and devices that no backend supports."""
        check_tensor("x", self.x, "floating", ("...", "width"))
        if self.bias is not None:
            check_tensor("bias", self.bias, "floating", (self.x.shape[-1],), ", as wide as x")
            check_devices({"bias": self.bias}, "x", self.x.device)
