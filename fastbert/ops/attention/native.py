"""Packed attention by the C++ kernels of csrc/cpu/attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionArguments, AttentionGradients, WantedGradients
from fastbert.ops.dropout.arguments import quantized_attention
from fastbert.ops.native import buffers, caching_allocator
from fastbert.ops.operation import NativeBackend, Reason

MAX_HEAD_DIM = 256


class Native(NativeBackend[AttentionArguments]):
    """bf16 and fp32 on CPUs: the same bits in every batch and on any number of threads."""

    def supports(self, arguments: AttentionArguments) -> Reason | None:
        """Support head_dim up to MAX_HEAD_DIM and positive scales."""
        if not 1 <= arguments.q.shape[2] <= MAX_HEAD_DIM:
            return Reason(f"head_dim={arguments.q.shape[2]} is not between 1 and {MAX_HEAD_DIM}")
        if not 1e-30 <= arguments.scale <= 1e30:
            return Reason(f"scale={arguments.scale} is not between 1e-30 and 1e30")
        if not arguments.heads and arguments.features:
            return Reason("there are no heads")
        tables = (arguments.position_keys, arguments.position_queries, arguments.distance_bias)
        return buffers.unsupported(arguments.q, arguments.k, arguments.v, arguments.bias, *tables)

    def forward(self, arguments: AttentionArguments, with_lse: bool = True) -> tuple[Tensor, Tensor]:
        """Return out, contiguous, shape and dtype of q, and lse (heads, tokens_q) fp32, the rows' log-sum-exp.

        lse is -inf where a query attends to no key, and empty without `with_lse`; dropout does not affect it. Matmuls
        take bf16 and fp32 operands as they are; sums and the softmax are fp32. Raises UserError for offsets that do not
        describe the tokens.
        """
        arguments.check_positions()
        tokens, heads, dim = arguments.q.shape
        out = caching_allocator.empty((tokens, heads, dim), arguments.q.dtype)
        lse = caching_allocator.empty((heads, tokens) if with_lse else (0,), torch.float32)
        inputs, _tensors = _kernel_inputs(arguments)
        if not _C.attention(inputs, out.data_ptr(), lse.data_ptr() if with_lse else 0):
            _refuse_offsets(arguments)
        return out, lse

    def backward(
        self, arguments: AttentionArguments, out: Tensor, lse: Tensor, grad: Tensor, wanted: WantedGradients
    ) -> AttentionGradients:
        """Return the gradients of q, k, v, contiguous, and those that are wanted, in their tensors' dtypes.

        `out` and `lse` are the results of `forward`, `grad` (tokens_q, heads, head_dim) is the gradient of `out` in its
        dtype. Probabilities are recomputed from `lse`; delta, the sum of p dp, is computed from them and not from the
        rounded `out`, so dq and dk are zero where a query attends to one key. Sums are fp32, in one order on any number
        of threads. The bias gradient is summed over the sequences in their order, each head on one thread.
        """
        q, k, _ = arguments[:3]
        # Each head of queries writes its own gradients of keys and values, which are summed below.
        shapes = (q.shape, (k.shape[0], *q.shape[1:]), (k.shape[0], *q.shape[1:]))
        dq, dk, dv = (caching_allocator.empty(shape, q.dtype) for shape in shapes)
        dbias = None
        if arguments.bias is not None and wanted.bias:
            dbias = torch.zeros(arguments.bias.shape, dtype=torch.float32, device="cpu")
        names = WantedGradients._fields[1:]
        sums: list[Tensor | None] = [
            torch.zeros(getattr(arguments, name).shape, dtype=torch.float32, device="cpu") if want else None
            for name, want in zip(names, wanted[1:], strict=True)
        ]
        _write_gradients(arguments, out, lse, grad, (dq, dk, dv), dbias, sums)
        bias = None if dbias is None or arguments.bias is None else dbias.to(arguments.bias.dtype)
        if arguments.key_value_heads != arguments.heads:
            groups = (-1, arguments.key_value_heads, arguments.heads // arguments.key_value_heads, q.shape[2])
            dk, dv = (x.view(groups).sum(2, dtype=torch.float32).to(q.dtype) for x in (dk, dv))
        tables = {
            name: None if total is None else total.to(getattr(arguments, name).dtype)
            for name, total in zip(names, sums, strict=True)
        }
        return AttentionGradients(dq, dk, dv, bias, **tables)

    def backward_joined(self, arguments: AttentionArguments, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
        """Return the gradients of q, k, v as one tensor (tokens, 3, heads, head_dim); all have the same tokens."""
        if arguments.q.shape != arguments.k.shape:
            raise UserError(
                f"q has shape {tuple(arguments.q.shape)}, k {tuple(arguments.k.shape)}: joined gradients need the same"
                " tokens in both; call backward"
            )
        tokens, heads, dim = arguments.q.shape
        joined = caching_allocator.empty((tokens, 3, heads, dim), arguments.q.dtype)
        _write_gradients(arguments, out, lse, grad, joined.unbind(1), None)
        return joined


def _write_gradients(
    arguments: AttentionArguments,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    gradients: tuple[Tensor, ...],
    dbias: Tensor | None,
    tables: Sequence[Tensor | None] = (None, None, None),
) -> None:
    q = arguments.q
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
    lse, grad = lse.contiguous(), _contiguous_heads(grad)
    inputs, _tensors = _kernel_inputs(arguments)
    dq, dk, dv = map(_strided, ("dq", "dk", "dv"), gradients)
    valid = _C.attention_backward(
        inputs,
        buffers.address("lse", lse),
        _strided("grad", grad),
        (dq, dk, dv),
        0 if dbias is None else dbias.data_ptr(),
        tuple(0 if table is None else table.data_ptr() for table in tables),  # type: ignore[arg-type]
    )
    if not valid:
        _refuse_offsets(arguments)


def kernel_arguments(arguments: AttentionArguments) -> tuple[_C.AttentionArguments, tuple[Any, ...]]:
    """Return checked arguments as kernels read them, by address, and the tensors that must outlive the call."""
    arguments.check()
    arguments.check_positions()
    return _kernel_inputs(arguments)


def _kernel_inputs(arguments: AttentionArguments) -> tuple[_C.AttentionArguments, tuple[Any, ...]]:
    """Return the arguments as kernels read them, by address, and the tensors that must outlive the call."""
    q, k, v = (_contiguous_heads(x) for x in arguments[:3])
    cu_seqlens_q, cu_seqlens_k = arguments.cu_seqlens_q.contiguous(), arguments.cu_seqlens_k.contiguous()
    bias, strided_bias = arguments.bias, (0, 0, 0, 0, 0)
    if bias is not None:
        if bias.shape[2] > 1 and bias.stride(2) != 1:
            bias = bias.contiguous()
        if bias.numel():
            address = buffers.address("bias", bias)
            strided_bias = (address, bias.shape[1], bias.shape[2], bias.stride(0), bias.stride(1))
    key, dropout, dropout_scale = arguments.dropout_key, (0, 0, 0), 1.0
    if key is not None:
        key = key.contiguous()
        threshold, dropout_scale = quantized_attention(arguments.dropout_p)
        dropout = (buffers.address("dropout_key", key), arguments.dropout_site, threshold)
    inputs = _C.AttentionArguments(
        _strided("q", q),
        _strided("k", k),
        _strided("v", v),
        q.dtype == torch.bfloat16,
        q.shape[1],
        q.shape[2],
        q.shape[0],
        k.shape[0],
        buffers.address("cu_seqlens_q", cu_seqlens_q),
        buffers.address("cu_seqlens_k", cu_seqlens_k),
        arguments.sequences,
        arguments.max_seqlen_q,
        arguments.max_seqlen_k,
        arguments.causal,
        arguments.scale,
        strided_bias,
        bias is not None and bias.dtype == torch.bfloat16,
        dropout,
        dropout_scale,
    )
    tensors = (q, k, v, cu_seqlens_q, cu_seqlens_k, bias, key)
    return inputs, (*tensors, *_set_positions(inputs, arguments)) if arguments.features else tensors


def _set_positions(inputs: _C.AttentionArguments, arguments: AttentionArguments) -> tuple[Any, ...]:
    """Add positions and grouped heads to the arguments of kernels; return the tensors that must outlive the call."""
    rotary, positions, bias = arguments.rotary, arguments.rotary_positions, arguments.distance_bias
    tables = [None if x is None else _contiguous_heads(x) for x in arguments[-3:-1]]
    rotary = None if rotary is None else rotary.contiguous()
    positions = None if positions is None else positions.contiguous()
    # A copy in fp32 is small beside q.
    bias = None if bias is None else bias.to(torch.float32).contiguous()
    buckets = None if arguments.buckets is None else arguments.buckets.contiguous()
    keys, queries = ((0, 0, 0) if x is None else _strided("relative positions", x) for x in tables)
    inputs.set_positions(
        group=arguments.heads // arguments.key_value_heads,
        window=arguments.window,
        rotary=(
            buffers.address("rotary", rotary),
            0 if rotary is None else rotary.shape[1],
            buffers.address("rotary_positions", positions),
        ),
        distance_bias=(buffers.address("distance_bias", bias), 0 if bias is None else (bias.shape[1] + 1) // 2),
        position_keys=keys,
        position_queries=queries,
        buckets=(buffers.address("buckets", buckets), 0 if buckets is None else (len(buckets) + 1) // 2),
    )
    return rotary, positions, bias, buckets, *tables


def _strided(name: str, x: Tensor) -> tuple[int, int, int]:
    """Return the address, and the strides of tokens and heads in elements."""
    return buffers.address(name, x), x.stride(0), x.stride(1)


def _contiguous_heads(x: Tensor) -> Tensor:
    """Return x (tokens, heads, head_dim), copied unless the elements of a head are contiguous."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _refuse_offsets(arguments: AttentionArguments) -> None:
    arguments.check_offsets()
    raise AssertionError("the kernel refused offsets that pass check_offsets")
