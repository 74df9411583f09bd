"""Checks that the losses share, and the precision that they compute in.

Shapes, dtypes and options are always checked. The values of labels and indices are checked on the CPU only: reading
those of other devices would cost a host-device sync per call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.packing import INTEGERS

Kind = Literal["floating", "integer", "bool", "number"]


class Shapes:
    """The named sizes of one call: the first tensor that has a size sets it, later ones must have the same."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, str]] = {}

    def check(self, name: str, tensor: Tensor, shape: str, kind: Kind = "floating") -> None:
        """Raise UserError unless a tensor has a shape, as "n d", and a kind of dtype."""
        names = shape.split()
        expected = f"({', '.join(names)}{',' if len(names) == 1 else ''})"
        if not isinstance(tensor, Tensor):
            raise UserError(f"{name} is of type {type(tensor).__name__}; give a tensor {expected}")
        if tensor.dim() != len(names):
            raise UserError(f"{name} has shape {tuple(tensor.shape)}; give a tensor {expected}")
        for size_name, size in zip(names, tensor.shape):
            known, owner = self._sizes.setdefault(size_name, (size, name))
            if size != known:
                raise UserError(
                    f"{name} has shape {tuple(tensor.shape)}; give a tensor {expected} with {size_name}={known} as in"
                    f" {owner}"
                )
        if not _is_of_kind(tensor, kind):
            raise UserError(f"{name} has dtype {tensor.dtype}; give a tensor of a dtype that is {kind}")


def _is_of_kind(tensor: Tensor, kind: Kind) -> bool:
    is_integer, is_bool = tensor.dtype in INTEGERS, tensor.dtype == torch.bool
    if kind == "number":
        return tensor.is_floating_point() or is_integer or is_bool
    return {"floating": tensor.is_floating_point(), "integer": is_integer, "bool": is_bool}[kind]


def require_number(name: str, value: object, *, least: float = -math.inf, above: float = -math.inf) -> None:
    """Raise UserError unless an option is a finite number, at least `least` and greater than `above`."""
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or value < least or value <= above:  # type: ignore[operator]  # a number
        bound = f" above {above:g}" if above > -math.inf else f" of at least {least:g}" if least > -math.inf else ""
        raise UserError(f"{name}={value!r} must be a finite number{bound}")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise UserError unless an option is one of some words."""
    words = list(choices)
    if value not in words:
        raise UserError(f"{name}={value!r} must be {', '.join(map(repr, words[:-1]))} or {words[-1]!r}")


def check_values(name: str, values: Tensor, least: float = -math.inf, most: float = math.inf) -> None:
    """Raise UserError for a value (of any shape and numeric dtype, on the CPU) that is not finite or out of range."""
    if values.device.type != "cpu":
        return
    wrong = ~values.isfinite() | (values < least) | (values > most)
    if bool(wrong.any()):
        index = wrong.nonzero()[0].tolist()
        bounds = "finite"
        if least > -math.inf or most < math.inf:
            bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise UserError(f"{name}{index} is {values[tuple(index)].item()}; it must be {bounds}")


def divisor(items: float | None, examples: int) -> float:
    """Return the divisor of a sum over examples: `items`, or their number, at least 1. Raises UserError for `items`
    that are not positive."""
    if items is None:
        return max(examples, 1)
    require_number("items", items, above=0)
    return items


def in_working_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return tensors of any shape and floating dtype in fp32, or in float64 if one of them has that dtype."""
    dtype = torch.float64 if any(tensor.dtype == torch.float64 for tensor in tensors) else torch.float32
    return tuple(tensor.to(dtype) for tensor in tensors)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply (n, d) by (d, m) in the dtype of the operands, fp32 or float64, under autocast too."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b
