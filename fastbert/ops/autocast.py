"""Autocast and the operations: products cast their operands, everything else decides on dtypes itself."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def is_autocast_enabled(device: torch.device) -> bool:
    """Return whether autocast is enabled for a device; torch raises RuntimeError when it is asked for `meta`."""
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keep torch's autocast from choosing dtypes inside an operation."""
    if is_autocast_enabled(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matmuls with `x`: autocast's where it is enabled, else that of `x`."""
    if is_autocast_enabled(x.device) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
