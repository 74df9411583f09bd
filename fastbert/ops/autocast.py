"""Autocast and the operations: products cast their operands, everything else decides on dtypes itself."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keep torch's autocast from choosing dtypes inside an operation."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def matmul_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matmuls with `x`: autocast's where it is enabled, else that of `x`."""
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype
