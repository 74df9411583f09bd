"""Launchers of packed attention: which kernels run, over which grid, into which memory. Nothing asks the device."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from fastbert.kernels.attention.bias import backward_bias
from fastbert.kernels.attention.long import backward_keys, backward_queries, forward_long
from fastbert.kernels.attention.short import backward_short, forward_short
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables
from fastbert.ops.attention.arguments import AttentionProblem
from fastbert.ops.dropout.arguments import quantized


def _config(problem: AttentionProblem, kernel: str) -> tables.Config:
    shape = tables.shape_class(
        problem.q.dtype, problem.tf32, problem.q.shape[2], masked=problem.causal or problem.bias is not None
    )
    return tables.lookup(kernel, shape, architecture(problem.q.device))


def _numbers(problem: AttentionProblem, *sizes: int) -> tuple[Any, ...]:
    """Arguments that all kernels share, from the offsets to the dropout's site; `sizes` are the kernel's own."""
    bias = problem.bias
    threshold, keep_scale = quantized(problem.dropout_p)
    return (
        problem.cu_seqlens_q,
        problem.cu_seqlens_k,
        problem.dropout_key,
        bias,
        problem.q.stride(0),
        problem.k.stride(0),
        problem.v.stride(0),
        *((0, 0, 0, 0, 0) if bias is None else (*bias.stride(), *bias.shape[1:])),
        problem.q.shape[0],
        problem.k.shape[0],
        problem.heads,
        *sizes,
        problem.scale,
        keep_scale,
        threshold,
        problem.dropout_site,
    )


def _constants(problem: AttentionProblem) -> dict[str, Any]:
    """Compile-time constants that all kernels share."""
    width = problem.q.shape[2]
    return {
        "CAUSAL": problem.causal,
        "DROPOUT": problem.dropout_key is not None,
        "WIDTH": width,
        "PADDED": triton.next_power_of_2(width),
        "PRECISION": "tf32" if problem.tf32 else "ieee",
    }


def _groups(problem: AttentionProblem, rows: int) -> int:
    """Programs of a sequence on the short path: one a head, fewer if no sequence is longer than 32."""
    if problem.longest > 32:
        return problem.heads
    return triton.cdiv(problem.heads, rows // (16 if problem.longest <= 16 else 32))


def _launch_short(problem: AttentionProblem, kernel: Any, *tensors: Tensor | None, **constants: Any) -> int:
    """Start a kernel of the short path, and say up to which length it has done the work."""
    config = _config(problem, kernel.__name__)
    if config.constants["LONGEST"] == 0:
        return 0
    groups = _groups(problem, config.constants["ROWS"])
    launch(
        kernel,
        (problem.sequences * groups,),
        *(problem.q, problem.k, problem.v, *tensors),
        *_numbers(problem, groups),
        **_constants(problem),
        **constants,
        HAS_BIAS=problem.bias is not None,
        config=config,
    )
    return config.constants["LONGEST"]


def _launch_long(
    problem: AttentionProblem, kernel: Any, *tensors: Tensor | None, by: str, longest: int, short: int, **constants: Any
) -> None:
    """Start a kernel of the long path with one program for each tile of queries or keys, as `by` names its size."""
    config = _config(problem, kernel.__name__)
    tiles = triton.cdiv(longest, config.constants[by])
    launch(
        kernel,
        (problem.sequences * problem.heads * tiles,),
        *(problem.q, problem.k, problem.v, *tensors),
        *_numbers(problem, tiles),
        **_constants(problem),
        **constants,
        HAS_BIAS=problem.bias is not None,
        SHORT=short,
        config=config,
    )


def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
    """out like q but contiguous, and lse (heads, tokens_q) fp32 in units of log2."""
    q = problem.q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(problem.heads, q.shape[0], dtype=torch.float32, device=q.device)
    short = _launch_short(problem, forward_short, out, lse)
    if problem.longest > short:
        _launch_long(problem, forward_long, out, lse, by="QUERIES", longest=problem.max_seqlen_q, short=short)
    return out, lse


def backward(
    problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Gradients of q, k, v, contiguous, and of the bias if asked for; `grad` is contiguous."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (problem.q, problem.k, problem.v))
    delta = _backward(problem, out, lse, grad, (dq, dk, dv), bias_gradient, apart=1)
    return dq, dk, dv, _bias_gradient(problem, grad, lse, delta) if bias_gradient else None


def backward_joined(problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
    """Gradients of q, k, v of the same tokens in one (tokens, 3, heads, head_dim), as one product made them."""
    q = problem.q
    joined = torch.empty(q.shape[0], 3, *q.shape[1:], dtype=q.dtype, device=q.device)
    _backward(problem, out, lse, grad, joined.unbind(1), False, apart=3)
    return joined


def _backward(
    problem: AttentionProblem,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    gradients: tuple[Tensor, ...],
    bias_gradient: bool,
    apart: int,
) -> Tensor:
    """Write dq, dk and dv, whose tokens lie `apart` times their size apart; returns the rows' sums for the bias."""
    dq, dk, dv = gradients
    delta = torch.empty_like(lse)
    wanted = delta if bias_gradient else None
    short = _launch_short(problem, backward_short, out, grad, lse, dq, dk, dv, wanted, APART=apart)
    if problem.longest > short:
        queries, keys = problem.max_seqlen_q, problem.max_seqlen_k
        common = {"short": short, "APART": apart}
        _launch_long(problem, backward_queries, out, grad, lse, dq, delta, by="QUERIES", longest=queries, **common)
        _launch_long(problem, backward_keys, grad, lse, delta, dk, dv, by="KEYS", longest=keys, **common)
    return delta


def _bias_gradient(problem: AttentionProblem, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    assert problem.bias is not None
    config = _config(problem, backward_bias.__name__)
    heads, rows, columns = problem.bias.shape
    across, down = triton.cdiv(columns, config.constants["KEYS"]), triton.cdiv(rows, config.constants["QUERIES"])
    # Enough programs to fill the device twice, from numbers that the host knows; never more parts than sequences.
    needed = triton.cdiv(2 * multiprocessors(grad.device), max(across * down * heads, 1))
    parts = max(1, min(problem.sequences, needed))
    partial = torch.empty(parts, heads, rows, columns, dtype=torch.float32, device=grad.device)
    launch(
        backward_bias,
        (across, down, parts * heads),
        *(problem.q, problem.k, problem.v, grad, lse, delta, partial),
        *_numbers(problem, problem.sequences, parts),
        **_constants(problem),
        config=config,
    )
    return partial.sum(0).to(problem.bias.dtype)
