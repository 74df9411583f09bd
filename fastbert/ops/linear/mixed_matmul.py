"""Matrix products whose result has another dtype than their operands, or is added to something."""

from __future__ import annotations

import torch
from torch import Tensor


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a @ b in `dtype`, for 2-D operands of one dtype; from half precision to fp32 without rounding in between where
    the library can (NVIDIA GPUs)."""
    if a.dtype == dtype:
        return a @ b
    if dtype == torch.float32 and a.is_cuda and torch.version.hip is None:
        return torch.mm(a, b, out_dtype=dtype)
    return (a @ b).to(dtype)


def accumulate(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total + a @ b, written over `total` where the dtypes agree: the product adds while it stores."""
    if total.dtype == a.dtype:
        return total.addmm_(a, b)
    return total.add_(a @ b)
