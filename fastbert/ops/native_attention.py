"""Attention by the C++ kernels of csrc/cpu/attention.h: a checked problem to addresses and strides, forward only."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops import native
from fastbert.ops.attention_problem import AttentionProblem, check_offsets

MAX_HEAD_DIM = 256


def forward(problem: AttentionProblem, *, with_lse: bool = True) -> tuple[Tensor, Tensor]:
    """(out, lse): out as q without gaps; lse (heads, tokens_q) fp32, each query's log of its sum of exponentials.

    lse is -inf where a query sees nothing, and empty unless wanted. Products take bf16 operands as they are and fp32
    ones in fp32; sums and the softmax are fp32. The contents of the offsets are checked: UserError.
    """
    q, k, v = _heads(problem.q), _heads(problem.k), _heads(problem.v)
    cu_seqlens_q, cu_seqlens_k = problem.cu_seqlens_q.contiguous(), problem.cu_seqlens_k.contiguous()
    for name, tensor in (("q", q), ("k", k), ("v", v), ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        native.address(name, tensor)
    tokens, heads, dim = q.shape
    out = torch.empty((tokens, heads, dim), dtype=q.dtype)
    lse = torch.empty((heads, tokens) if with_lse else (0,), dtype=torch.float32)
    bias, bias_place = problem.bias, (0, 0, 0, 0, 0)
    if bias is not None:
        if bias.shape[2] > 1 and bias.stride(2) != 1:
            bias = bias.contiguous()
        if bias.numel():
            bias_place = (native.address("bias", bias), bias.shape[1], bias.shape[2], bias.stride(0), bias.stride(1))
    done = _C.attention(
        (q.data_ptr(), q.stride(0), q.stride(1)),
        (k.data_ptr(), k.stride(0), k.stride(1)),
        (v.data_ptr(), v.stride(0), v.stride(1)),
        q.dtype == torch.bfloat16,
        heads,
        dim,
        tokens,
        k.shape[0],
        cu_seqlens_q.data_ptr(),
        cu_seqlens_k.data_ptr(),
        cu_seqlens_q.shape[0] - 1,
        problem.max_seqlen_q,
        problem.max_seqlen_k,
        problem.causal,
        problem.scale,
        bias_place,
        bias is not None and bias.dtype == torch.bfloat16,
        out.data_ptr(),
        lse.data_ptr() if with_lse else 0,
    )
    if not done:
        check_offsets(problem)
        raise AssertionError("the kernel refused offsets that Python finds right")
    return out, lse


def _heads(x: Tensor) -> Tensor:
    """x (tokens, heads, dim) with the elements of a head side by side; a copy only where they are not."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()
