"""Matmuls whose result has a different dtype than their operands, or is added to a tensor."""

from __future__ import annotations

import torch
from torch import Tensor


def matmul(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b in `dtype`, for 2-D operands of one dtype.

    From half precision to fp32 nothing is rounded in between where the library supports it (NVIDIA GPUs).
    """
    if a.dtype == dtype:
        return a @ b
    if dtype == torch.float32 and a.is_cuda and torch.version.hip is None:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def add_matmul(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return total + a @ b, in place in `total`; where the dtypes agree, the matmul adds while it stores."""
    if total.dtype == a.dtype:
        return total.addmm_(a, b)
    return total.add_(a @ b)
