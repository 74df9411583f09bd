"""Attention and its gradients by the C++ kernels of csrc/cpu/attention.h: a checked problem to addresses."""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionProblem, check_offsets
from fastbert.ops.dropout.arguments import quantized
from fastbert.ops.native import buffers, caching_allocator

MAX_HEAD_DIM = 256


def forward(problem: AttentionProblem, *, with_lse: bool = True) -> tuple[Tensor, Tensor]:
    """(out, lse): out as q without gaps; lse (heads, tokens_q) fp32, each query's log of its sum of exponentials.

    lse is -inf where a query sees nothing, and empty unless wanted; dropout leaves it as it is. Products take bf16
    operands as they are and fp32 ones in fp32; sums and the softmax are fp32. The contents of the offsets are checked:
    UserError.
    """
    tokens, heads, dim = problem.q.shape
    out = caching_allocator.empty((tokens, heads, dim), problem.q.dtype)
    lse = caching_allocator.empty((heads, tokens) if with_lse else (0,), torch.float32)
    given = _Given(problem)
    if not _C.attention(given.arguments, out.data_ptr(), lse.data_ptr() if with_lse else 0):
        _refuse_offsets(problem)
    return out, lse


def backward(
    problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, without gaps, and of the bias if asked for, each in its tensor's dtype.

    `out` and `lse` are what `forward` returned, `grad` (tokens_q, heads, head_dim) is out's gradient in its dtype. The
    probabilities are computed again from `lse`, and from them what other implementations compute from `out`, which was
    rounded: where a query sees one key, dq and dk are zero. Sums are fp32 and have one order, whatever the number of
    threads. The bias's gradient is summed over the sequences in their order, a head on one thread.
    """
    dq, dk, dv = (caching_allocator.empty(x.shape, x.dtype) for x in (problem.q, problem.k, problem.v))
    dbias = None
    if problem.bias is not None and bias_gradient:
        dbias = torch.zeros(problem.bias.shape, dtype=torch.float32, device="cpu")
    _run_gradient(problem, out, lse, grad, (dq, dk, dv), dbias)
    return dq, dk, dv, None if dbias is None or problem.bias is None else dbias.to(problem.bias.dtype)


def backward_joined(problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
    """The gradients of q, k, v as one tensor (tokens, 3, heads, head_dim), for q and k of the same tokens."""
    if problem.q.shape != problem.k.shape:
        raise UserError(
            f"q has shape {tuple(problem.q.shape)}, k {tuple(problem.k.shape)}: their gradients make one tensor only"
            " where both have the same tokens; call backward"
        )
    tokens, heads, dim = problem.q.shape
    joined = caching_allocator.empty((tokens, 3, heads, dim), problem.q.dtype)
    _run_gradient(problem, out, lse, grad, (joined[:, 0], joined[:, 1], joined[:, 2]), None)
    return joined


def _run_gradient(
    problem: AttentionProblem,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    gradients: tuple[Tensor, Tensor, Tensor],
    dbias: Tensor | None,
) -> None:
    q = problem.q
    if out.shape != q.shape or grad.shape != q.shape or out.dtype != q.dtype or grad.dtype != q.dtype:
        raise UserError(
            f"out and its gradient must have q's shape {tuple(q.shape)} and dtype {q.dtype}, not {tuple(out.shape)}"
            f" {out.dtype}, {tuple(grad.shape)} {grad.dtype}"
        )
    if lse.shape != (q.shape[1], q.shape[0]) or lse.dtype != torch.float32:
        raise UserError(
            f"lse must be fp32 of shape ({q.shape[1]}, {q.shape[0]}), as forward returns it, not {lse.dtype}"
            f" {tuple(lse.shape)}"
        )
    lse, grad = lse.contiguous(), _heads(grad)
    given = _Given(problem)
    dq, dk, dv = (_place(name, x) for name, x in zip(("dq", "dk", "dv"), gradients, strict=True))
    done = _C.attention_gradient(
        given.arguments,
        buffers.address("lse", lse),
        _place("grad", grad),
        (dq, dk, dv),
        dbias.data_ptr() if dbias is not None and dbias.numel() else 0,
    )
    if not done:
        _refuse_offsets(problem)


class _Given:
    """A problem as the kernels take it, and the tensors whose memory they read."""

    def __init__(self, problem: AttentionProblem) -> None:
        q, k, v = _heads(problem.q), _heads(problem.k), _heads(problem.v)
        cu_seqlens_q, cu_seqlens_k = problem.cu_seqlens_q.contiguous(), problem.cu_seqlens_k.contiguous()
        bias, bias_place = problem.bias, (0, 0, 0, 0, 0)
        if bias is not None:
            if bias.shape[2] > 1 and bias.stride(2) != 1:
                bias = bias.contiguous()
            if bias.numel():
                bias_place = (
                    buffers.address("bias", bias),
                    bias.shape[1],
                    bias.shape[2],
                    bias.stride(0),
                    bias.stride(1),
                )
        key, dropout, keep = problem.dropout_key, (0, 0, 0), 1.0
        if key is not None:
            key = key.contiguous()
            threshold, keep = quantized(problem.dropout_p)
            dropout = (buffers.address("dropout_key", key), problem.dropout_site, threshold)
        self.tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, bias, key)
        self.arguments = _C.AttentionArguments(
            _place("q", q),
            _place("k", k),
            _place("v", v),
            q.dtype == torch.bfloat16,
            q.shape[1],
            q.shape[2],
            q.shape[0],
            k.shape[0],
            buffers.address("cu_seqlens_q", cu_seqlens_q),
            buffers.address("cu_seqlens_k", cu_seqlens_k),
            cu_seqlens_q.shape[0] - 1,
            problem.max_seqlen_q,
            problem.max_seqlen_k,
            problem.causal,
            problem.scale,
            bias_place,
            bias is not None and bias.dtype == torch.bfloat16,
            dropout,
            keep,
        )


def _place(name: str, x: Tensor) -> tuple[int, int, int]:
    """Address, and strides of tokens and heads in elements."""
    return buffers.address(name, x), x.stride(0), x.stride(1)


def _heads(x: Tensor) -> Tensor:
    """x (tokens, heads, dim) with the elements of a head side by side; a copy only where they are not."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _refuse_offsets(problem: AttentionProblem) -> None:
    check_offsets(problem)
    raise AssertionError("the kernel refused offsets that Python finds right")
