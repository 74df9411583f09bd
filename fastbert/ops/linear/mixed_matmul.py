"""Matmuls whose result has a different dtype than their operands, or is added to a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

# Before torch 2.10 a matmul whose result is wider than its operands could not be added to a tensor.
ADDS_WIDE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


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


def accumulate_matmul(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, fp32, for 2-D operands of one dtype: the gradient of a weight, summed over micro-batches.

    The sums stay in fp32; on NVIDIA GPUs (from torch 2.10 on) the matmul adds while it stores. On AMD GPUs a @ b is
    rounded to the operands' dtype first.
    """
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif not a.is_cuda:
        total.addmm_(a.to(total.dtype), b.to(total.dtype))
    elif torch.version.hip is not None:
        total.add_(a @ b)
    elif ADDS_WIDE:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total.add_(torch.mm(a, b, out_dtype=total.dtype))
