"""The arguments of `bias_gelu`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fastbert.errors import UserError

APPROXIMATIONS = ("none", "tanh")


def check_approximation(approximate: str) -> None:
    """Raise UserError for an unknown approximation of GELU."""
    if approximate not in APPROXIMATIONS:
        raise UserError(f"approximate={approximate!r} must be 'none' or 'tanh'")


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
        x, bias = self.x, self.bias
        if x.dim() == 0 or not x.dtype.is_floating_point:
            raise UserError(f"x must be floating of shape (..., width), not {x.dtype} {tuple(x.shape)}")
        if bias is None:
            return
        if bias.dim() != 1 or bias.shape[0] != x.shape[-1] or not bias.dtype.is_floating_point:
            raise UserError(
                f"bias must be floating of shape ({x.shape[-1]},), as wide as x, not {bias.dtype} {tuple(bias.shape)}"
            )
        if bias.device != x.device:
            raise UserError(f"bias is on {bias.device}, x on {x.device}: move them to one device")
