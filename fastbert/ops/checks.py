"""Checks of arguments that the records of several operations share.

Each raises UserError, a ValueError, that names the argument, its value and what it must be.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.autocast import is_autocast_enabled

_DTYPES = {
    "float32": (torch.float32,),
    "int64": (torch.int64,),
    "int32": (torch.int32,),
    "int64 or int32": (torch.int64, torch.int32),
}


def is_debugging() -> bool:
    """Return whether FASTBERT_DEBUG=1 asks for checks that read values, which cost a host-device sync."""
    return not torch.compiler.is_compiling() and os.environ.get("FASTBERT_DEBUG", "0") not in ("", "0")


def check_tensor(name: str, tensor: Tensor | None, kind: str, shape: Sequence[int | str], remark: str = "") -> None:
    """Check the dtype, "floating" or a key of `_DTYPES`, and the shape: words are sizes that may be any, and a leading
    "..." is any number of axes. `remark` says what the shape follows from."""
    if tensor is not None and (tensor.shape == shape or _fits(tensor.shape, shape)):
        matches = tensor.dtype.is_floating_point if kind == "floating" else tensor.dtype in _DTYPES[kind]
        if matches:
            return
    expected = f"{kind} of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''}){remark}"
    if tensor is None:
        raise UserError(f"{name} is None: it must be {expected}")
    raise UserError(f"{name} must be {expected}, not {tensor.dtype} {tuple(tensor.shape)}")


def _fits(sizes: Sequence[int], shape: Sequence[int | str]) -> bool:
    if shape[0] == "...":
        return len(sizes) >= len(shape) - 1
    return len(sizes) == len(shape) and all(
        expected == size for size, expected in zip(sizes, shape) if not isinstance(expected, str)
    )


def check_devices(tensors: Mapping[str, Tensor | None], reference: str, device: torch.device) -> None:
    """Check that tensors, None for absent ones, are on the device of `reference`."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise UserError(f"{name} is on {tensor.device}, {reference} on {device}: move them to one device")


def check_same_dtype(tensors: Mapping[str, Tensor | None], x: Tensor) -> None:
    """Check that the operands of a matmul with `x`, None for absent ones, have its dtype or are cast by autocast."""
    if not is_autocast_enabled(x.device):
        for name, tensor in tensors.items():
            if tensor is not None and tensor.dtype != x.dtype:
                raise UserError(f"{name} has dtype {tensor.dtype}, x {x.dtype}: cast one, or use torch.autocast")


def check_dropout(prefix: str, p: float, site: int) -> None:
    """Check the probability and the site of a dropout."""
    if not 0.0 <= p < 1.0:
        raise UserError(f"{prefix}p={p} must be at least 0 and below 1")
    if not 0 <= site < 2**31:
        raise UserError(f"{prefix}site={site} must be at least 0 and below 2**31")


def check_scale(scale: float) -> None:
    """Check the factor of attention's scores."""
    if not -math.inf < scale < math.inf:
        raise UserError(f"scale={scale} must be a finite number")


def check_eps(eps: float) -> None:
    """Check the eps of a LayerNorm."""
    if not 0.0 <= eps < math.inf:
        raise UserError(f"eps={eps} must be a finite number, at least 0")
