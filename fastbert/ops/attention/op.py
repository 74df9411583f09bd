"""Attention over packed sequences: padding is never computed, and a token attends to its own sequence only."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.ops.attention.eager import Eager
from fastbert.ops.attention.native import Native
from fastbert.ops.attention.triton import Triton
from fastbert.ops.custom_op import operator
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.native import buffers
from fastbert.ops.operation import Operation

ATTENTION = Operation("attention", Eager(), Native(), Triton())
# The order of the operators' schemas.
_FIELDS = tuple(AttentionArguments.__dataclass_fields__)
_BIAS = _FIELDS.index("bias")


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
    """Compute softmax(Q K^T * scale + bias) V for each sequence (Vaswani et al. 2017, section 3.2.1).

    q (tokens_q, heads, head_dim), k and v (tokens_k, heads, head_dim), all of one floating dtype. `cu_seqlens_q` and
    `cu_seqlens_k` int32 (sequences + 1,) hold the offsets of the sequences, and `max_seqlen_q` and `max_seqlen_k`,
    integers on the host, are at least the longest lengths. With `causal`, the last query attends to all keys and each
    query before it to one key fewer. `bias` (heads, queries, keys) is added to the scores and gets a gradient; it
    counts as 0 beyond its shape. `scale` defaults to 1 / sqrt(head_dim). With `dropout_p`, `dropout_key` int64
    (sequences,) and `dropout_site` determine the mask; keys are drawn on the device if there are none. A query with no
    visible key, or with a bias of -inf for all of them, gets zeros.

    Returns (tokens_q, heads, head_dim) in the dtype of q; under autocast q, k and v are cast to its dtype first. Sums
    and the softmax are fp32. fp32 matmuls follow `torch.set_float32_matmul_precision`. Results and gradients are the
    same on every run; `deterministic` has no effect today, but without it a later version may give that up for speed.

    No backend needs a host-device sync: on a GPU the contents of `cu_seqlens_q` and `cu_seqlens_k` are checked under
    FASTBERT_DEBUG=1 only. The `triton` backend supports bf16, fp16 and fp32 with head_dim 32, 64, 96 or 128, positive
    scales and contiguous heads; unsupported calls fall back to PyTorch, with a warning in the log. The `native` backend
    supports bf16 and fp32 on a CPU with head_dim 1 to 256 and positive scales; the result of a sequence, and the
    gradients of its q, k and v, have the same bits in every batch and on any number of threads. Neither has second
    derivatives. Raises UserError, a ValueError, that names the wrong argument.
    """
    del deterministic
    if torch.is_autocast_enabled(q.device.type) and q.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if dropout_p and dropout_key is None and cu_seqlens_q.dim() == 1 and cu_seqlens_q.shape[0] > 0:
        dropout_key = draw_keys(cu_seqlens_q.shape[0] - 1, q.device)
    arguments = AttentionArguments(
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
    arguments.check()
    backend = dispatch.select_backend(ATTENTION, q.device, arguments)
    if backend.composite and not torch.compiler.is_compiling():
        arguments.check_offsets()
        composed: Tensor = backend.forward(arguments, False)[0]
        return composed
    if backend.name == "native":
        tensors = (q, k, v, bias, cu_seqlens_q, cu_seqlens_k, arguments.dropout_key)
        if not dispatch.needs_backward(*tensors) and buffers.direct(*tensors):
            output: Tensor = backend.forward(arguments, False)[0]
            return output
    dispatch.refuse_forward_mode("attention")
    traced: Tensor = _forward(*(getattr(arguments, name) for name in _FIELDS), backend.name)[0]
    return traced


def tf32_allowed() -> bool:
    """Return whether fp32 matmuls may use tf32; compiled code is already guarded by that setting.

    From torch 2.9 on there are two settings, and reading one after the other was written is an error; this attribute
    follows both.
    """
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return torch.get_float32_matmul_precision() != "highest" if precision is None else precision == "tf32"


# The effect of `torch.compiler.assume_constant_result`, which would import the whole compiler.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _arguments(*values: Any) -> AttentionArguments:
    return AttentionArguments(**dict(zip(_FIELDS, values, strict=True)))


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
    backend: str,
) -> tuple[Tensor, Tensor]:
    """Return the output, and the rows' log-sum-exp (heads, tokens_q) fp32 in the backend's own units."""
    arguments = _arguments(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, dropout_p, dropout_key,
        dropout_site, bias, scale, tf32,
    )  # fmt: skip
    arguments.check_offsets()
    output: tuple[Tensor, Tensor] = ATTENTION.backend(backend).forward(arguments)
    return output


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
    backend: str,
    bias_gradient: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and of the bias, the last empty without `bias_gradient`."""
    arguments = _arguments(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, dropout_p, dropout_key,
        dropout_site, bias, scale, tf32,
    )  # fmt: skip
    dq, dk, dv, dbias = ATTENTION.backend(backend).backward(arguments, out, lse, grad.contiguous(), bias_gradient)
    return dq, dk, dv, grad.new_empty(0) if dbias is None else dbias


@_backward.register_fake
def _(
    grad: Tensor, out: Tensor, lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    bias, bias_gradient = arguments[_BIAS - 3], arguments[-1]
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if bias_gradient else grad.new_empty(0)
    dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    return dq, dk, dv, dbias


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors = {i: value for i, value in enumerate(inputs) if isinstance(value, Tensor)}
    ctx.tensor_indices = tuple(tensors)
    ctx.values = tuple(None if i in tensors else value for i, value in enumerate(inputs))
    ctx.save_for_backward(*output, *tensors.values())
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, grad: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    gradients: list[Tensor | None] = [None] * len(ctx.values)
    if grad is None:
        return tuple(gradients)
    out, lse, *tensors = ctx.saved_tensors
    inputs = list(ctx.values)
    for i, tensor in zip(ctx.tensor_indices, tensors, strict=True):
        inputs[i] = tensor
    bias_gradient = ctx.needs_input_grad[_BIAS]
    dq, dk, dv, dbias = _backward(grad, out, lse, *inputs, bias_gradient)
    gradients[:3] = dq, dk, dv
    gradients[_BIAS] = dbias if bias_gradient else None
    return tuple(gradients)


_forward.register_autograd(_gradients, setup_context=_setup_context)
