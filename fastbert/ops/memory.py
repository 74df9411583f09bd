"""Memory for tensors that come and go with every step of training, used again by the next step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor on the CPU that nobody wrote."""
    return torch.empty(shape, dtype=dtype)
