"""The arguments of a linear layer, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_same_dtype

# The names of `torch.nn.functional.gelu`, by activation.
APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


class GradMask(NamedTuple):
    """The gradients that a backward pass computes."""

    x: bool
    weight: bool
    bias: bool


class LinearArguments(NamedTuple):
    """x (..., in), weight (out, in), bias (out,), all floating; `activation` is None or a key of APPROXIMATIONS."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    activation: str | None

    @property
    def rows(self) -> Tensor:
        """x as a matrix (rows, in)."""
        return self.x.flatten(0, -2) if self.x.dim() > 1 else self.x[None]

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (*self.x.shape[:-1], self.weight.shape[0])

    def check(self) -> None:
        """Raise UserError for shapes, dtypes and devices that no backend supports."""
        x, weight, bias, activation = self
        if activation is not None and activation not in APPROXIMATIONS:
            raise UserError(f"activation={activation!r} must be None, {' or '.join(map(repr, APPROXIMATIONS))}")
        if weight.dim() != 2 or x.dim() == 0 or x.shape[-1] != weight.shape[1]:
            raise UserError(
                f"weight has shape {tuple(weight.shape)}: it must be (out, in) with x of shape (..., in), not"
                f" {tuple(x.shape)}"
            )
        if bias is not None and (bias.dim() != 1 or bias.shape[0] != weight.shape[0]):
            raise UserError(f"bias has shape {tuple(bias.shape)}: it must be ({weight.shape[0]},), one per output")
        # For a weight on the meta device PyTorch would return uninitialised memory.
        check_devices({"weight": weight, "bias": bias}, "x", x.device)
        # A bias may stay in fp32 where the activation adds it.
        added = bias is not None and activation is not None and bias.dtype == torch.float32
        check_same_dtype({"weight": weight, "bias": None if added else bias}, x)
        if not x.dtype.is_floating_point:
            raise UserError(f"x must be floating, not {x.dtype}")
