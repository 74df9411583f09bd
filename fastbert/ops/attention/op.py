"""Attention over packed sequences: no padding is computed, and sequences never see each other."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops import dispatch
from fastbert.ops.attention import eager as attention_eager
from fastbert.ops.attention import native as native_attention
from fastbert.ops.attention.arguments import AttentionProblem, check, check_offsets
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.native import buffers


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    dropout_p: float = 0.0,
    dropout_key: Tensor | None = None,
    dropout_site: int = 0,
    bias: Tensor | None = None,
    scale: float | None = None,
    deterministic: bool = False,
) -> Tensor:
    """softmax(Q K^T * scale + bias) V for each sequence on its own (Vaswani et al. 2017, section 3.2.1).

    q (tokens_q, heads, head_dim), k and v (tokens_k, heads, head_dim) in one floating dtype; `cu_seqlens_*` int32
    (sequences + 1,); `max_seqlen_*` host integers, at least the longest sequence. `causal`: a query sees keys up to its
    own place counted from the end, so the last query sees all. `bias` (heads, queries, keys) is added to the scores and
    gets a gradient; where a sequence is longer than it, it counts as 0. `scale` defaults to 1 / sqrt(head_dim). With
    `dropout_p`, `dropout_key` int64 (sequences,) and `dropout_site` decide what is dropped; without keys, one a
    sequence is drawn on the device. A query that sees no key, or only keys with a bias of -inf, gets zeros.

    Returns (tokens_q, heads, head_dim) in the dtype of q; under autocast q, k, v are cast to its dtype first. Sums and
    the softmax are fp32 inside. fp32 products follow `torch.set_float32_matmul_precision`. Results and gradients are
    the same on every run, so `deterministic` changes nothing today; where it is False a later version may trade that
    for speed.

    Nothing asks the device: on a GPU the contents of `cu_seqlens_*` are checked only under FASTBERT_DEBUG=1. The
    `triton` backend serves bf16, fp16 and fp32 with head_dim 32, 64, 96 or 128 and scale > 0, and needs a token's heads
    side by side; what it does not serve goes to eager torch, which the log says, unless it was forced. The `native`
    backend serves bf16 and fp32 on a CPU with head_dim 1 to 256 and scale > 0; a sequence's result, and the gradients
    of its q, k and v, have the same bits in every batch and on any number of threads. Neither gives second derivatives.
    Raises UserError, a ValueError, that names the wrong argument.
    """
    del deterministic
    if torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if dropout_p and dropout_key is None and cu_seqlens_q.dim() == 1 and cu_seqlens_q.shape[0] > 0:
        dropout_key = draw_keys(cu_seqlens_q.shape[0] - 1, q.device)
    problem = AttentionProblem(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        causal=causal,
        dropout_p=dropout_p,
        dropout_key=dropout_key.contiguous() if dropout_p and dropout_key is not None else None,
        dropout_site=dropout_site,
        bias=bias,
        scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
        tf32=q.dtype == torch.float32 and tf32_allowed(),
    )
    check(problem)
    chosen = dispatch.choose("attention", q.device)
    if chosen == "triton":
        chosen = _check_triton(problem)
    if chosen == "native":
        chosen = _check_native(problem)
        given = (q, k, v, bias, cu_seqlens_q, cu_seqlens_k, problem.dropout_key)
        if chosen == "native" and not _is_trained(*given) and buffers.direct(*given):
            return native_attention.forward(problem, with_lse=False)[0]
    if chosen == "eager" and not torch.compiler.is_compiling():
        check_offsets(problem)
        return attention_eager.attention(problem)
    dispatch.refuse_forward_mode("attention")
    return _forward(*_flat(problem), chosen)[0]


def tf32_allowed() -> bool:
    """Whether fp32 products may use tf32; compiled code is guarded by that setting already.

    From torch 2.9 on a program may set it in two ways, and asking for one after the other was used is an error; this
    attribute follows both.
    """
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32"


# What `torch.compiler.assume_constant_result` does, which would import the whole compiler.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


HEAD_DIMS = (32, 64, 96, 128)


def _check_triton(problem: AttentionProblem) -> dispatch.BackendName:
    """The backend of a call for which the Triton kernels were chosen: eager where they do not serve its kind."""
    q = problem.q
    dispatch.require_triton(q.device, "q")
    if q.shape[2] not in HEAD_DIMS:
        reason = f"head_dim={q.shape[2]} of q: the triton backend serves 32, 64, 96 and 128"
        return dispatch.without_triton("attention", reason)
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        reason = f"q has dtype {q.dtype}: the triton backend serves bfloat16, float16 and float32"
        return dispatch.without_triton("attention", reason)
    if not 1e-30 <= problem.scale <= 1e30:
        reason = f"scale={problem.scale}: the triton backend serves positive ones, from 1e-30 to 1e30"
        return dispatch.without_triton("attention", reason)
    for name, x in (("q", q), ("k", problem.k), ("v", problem.v)):
        if x.stride(2) != 1 or x.stride(1) != x.shape[2]:
            raise UserError(
                f"{name} is not contiguous: strides {tuple(x.stride())} of shape {tuple(x.shape)}, but a token's heads"
                f" must lie side by side; call {name}.contiguous()"
            )
    for name, cu_seqlens in (("cu_seqlens_q", problem.cu_seqlens_q), ("cu_seqlens_k", problem.cu_seqlens_k)):
        if not cu_seqlens.is_contiguous():
            raise UserError(f"{name} is not contiguous: call {name}.contiguous()")
    return "triton"


def _check_native(problem: AttentionProblem) -> dispatch.BackendName:
    """The backend of a call for which the native kernels were chosen: eager where they do not serve its kind."""
    dim, scale = problem.q.shape[2], problem.scale
    served = buffers.serves("attention", problem.q, problem.k, problem.v, problem.bias, trains=True)
    if served and not 1 <= dim <= native_attention.MAX_HEAD_DIM:
        served = buffers.declines(
            "attention", f"head_dim={dim} of q, and it serves 1 to {native_attention.MAX_HEAD_DIM}"
        )
    if served and not 1e-30 <= scale <= 1e30:
        served = buffers.declines("attention", f"scale={scale}, and it serves positive ones, from 1e-30 to 1e30")
    return "native" if served else "eager"


def _is_trained(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _flat(problem: AttentionProblem) -> tuple[Any, ...]:
    """The fields in the order of the operators' schema."""
    return tuple(getattr(problem, name) for name in _FIELDS)


_FIELDS = tuple(AttentionProblem.__dataclass_fields__)


def _problem(*values: Any) -> AttentionProblem:
    return AttentionProblem(**dict(zip(_FIELDS, values, strict=True)))


@operator("fastbert::attention")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    bias: Tensor | None,
    scale: float,
    tf32: bool,
    chosen: str,
) -> tuple[Tensor, Tensor]:
    """The output, and what the backend's backward wants of the rows' sums: (heads, tokens_q) fp32."""
    problem = _problem(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, dropout_p, dropout_key,
        dropout_site, bias, scale, tf32,
    )  # fmt: skip
    check_offsets(problem)
    return dispatch.implementation("attention", chosen).forward(problem)


@_forward.register_fake
def _(q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q, memory_format=torch.contiguous_format), q.new_empty(
        (q.shape[1], q.shape[0]), dtype=torch.float32
    )


@operator("fastbert::attention_backward")
def _backward(
    grad: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool,
    dropout_p: float,
    dropout_key: Tensor | None,
    dropout_site: int,
    bias: Tensor | None,
    scale: float,
    tf32: bool,
    chosen: str,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, and of the bias, which is empty unless it is asked for."""
    problem = _problem(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, dropout_p, dropout_key,
        dropout_site, bias, scale, tf32,
    )  # fmt: skip
    dq, dk, dv, dbias = dispatch.implementation("attention", chosen).backward(
        problem, out, lse, grad.contiguous(), bias_gradient
    )
    return dq, dk, dv, grad.new_empty(0) if dbias is None else dbias


@_backward.register_fake
def _(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bias, bias_gradient = arguments[_FIELDS.index("bias") - 3], arguments[-1]
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if bias_gradient else grad.new_empty(0)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = {i: value for i, value in enumerate(inputs) if isinstance(value, Tensor)}
    ctx.places = tuple(tensors)
    ctx.others = tuple(None if i in tensors else value for i, value in enumerate(inputs))
    ctx.save_for_backward(*output, *tensors.values())
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    count = len(ctx.others)
    if grad is None:
        return (None,) * count
    out, lse, *tensors = ctx.saved_tensors
    inputs = list(ctx.others)
    for i, tensor in zip(ctx.places, tensors, strict=True):
        inputs[i] = tensor
    bias = _FIELDS.index("bias")
    wanted = ctx.needs_input_grad[bias]
    dq, dk, dv, dbias = _backward(grad, out, lse, *inputs, wanted)
    gradients: list[Tensor | None] = [None] * count
    gradients[:3] = dq, dk, dv
    gradients[bias] = dbias if wanted else None
    return tuple(gradients)


_forward.register_autograd(_gradients, setup_context=_setup_context)


class _Triton:
    """The kernels of `fastbert.kernels.attention.launchers`, imported when they first run."""

    @staticmethod
    def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
        from fastbert.kernels.attention import launchers as kernels

        return kernels.forward(problem)

    @staticmethod
    def backward(
        problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        from fastbert.kernels.attention import launchers as kernels

        return kernels.backward(problem, out, lse, grad, bias_gradient)


class _Native:
    """The C++ kernels of `fastbert.ops.attention.native`."""

    @staticmethod
    def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
        return native_attention.forward(problem)

    @staticmethod
    def backward(
        problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        return native_attention.backward(problem, out, lse, grad, bias_gradient)


class _Eager:
    """Plain torch as one opaque operation, for `torch.compile`: backward computes the forward pass again."""

    @staticmethod
    def forward(problem: AttentionProblem) -> tuple[Tensor, Tensor]:
        out = attention_eager.attention(problem)
        lse = torch.zeros(problem.heads, problem.q.shape[0], dtype=torch.float32, device=out.device)
        return out.contiguous(), lse

    @staticmethod
    def backward(
        problem: AttentionProblem, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        del out, lse
        return attention_eager.gradients(problem, grad, bias_gradient)


dispatch.register("attention", "eager", _Eager)
dispatch.register("attention", "triton", _Triton)
dispatch.register("attention", "native", _Native)
