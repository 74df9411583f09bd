"""PyTorch's matmuls added to tensors, which may be wider than the operands: gradients of weights."""

from __future__ import annotations

import torch
from torch import Tensor

# Before torch 2.10 a matmul with a result wider than its operands could not be added to a tensor.
ADDS_WIDE = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def add_matmul(out: Tensor, a: Tensor, b: Tensor, *, fresh: bool, alpha: float = 1.0) -> None:
    """Compute out += alpha * a @ b, or out = alpha * a @ b where `fresh`. `out` may be fp32 where a and b are half.

    The matmul's result is then fp32 too; on AMD GPUs it is rounded to the operands' dtype before it is added.
    """
    wide = out.dtype != a.dtype
    kind = {"out_dtype": out.dtype} if wide else {}
    beta = 0.0 if fresh else 1.0
    if wide and torch.version.hip:
        rounded = torch.empty(out.shape, dtype=a.dtype, device=a.device)
        torch.addmm(rounded, a, b, beta=0.0, alpha=alpha, out=rounded)
        if fresh:
            out.copy_(rounded)
        else:
            out.add_(rounded)
    elif wide and not out.is_cuda:
        torch.addmm(out, a.float(), b.float(), beta=beta, alpha=alpha, out=out)
    elif fresh and alpha == 1.0:
        torch.mm(a, b, out=out, **kind)
    elif not wide or ADDS_WIDE:
        torch.addmm(out, a, b, beta=beta, alpha=alpha, out=out, **kind)
    else:
        if fresh:
            out.zero_()
        out.add_(torch.mm(a, b, **kind), alpha=alpha)
