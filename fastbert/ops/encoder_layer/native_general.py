"""Layers of other encoders than BERT's as one call into C++, for inference on CPUs: windows, rotary embeddings and
relative positions in attention, grouped heads, gated networks, norms in front, absent biases; fp32, bf16 and int8.

What has a gradient or dropout, and what a compiler or a transform traces, is composed of the single operations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.ops.attention.native import MAX_HEAD_DIM, kernel_arguments
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS, LayerSpec
from fastbert.ops.native import buffers, matmul, matmul_table, prepacked_weights
from fastbert.ops.operation import Reason

_PROJECTIONS = ("query", "key", "value")
_VECTORS = (
    "query_bias", "key_bias", "value_bias", "attention_output_bias", "attention_norm", "attention_norm_bias",
    "intermediate_bias", "output_bias", "output_norm", "output_norm_bias",
)  # fmt: skip


class PositionTables(NamedTuple):
    """Keys and queries of relative positions (rows, heads, head_dim), in the dtype of matmuls; None if absent."""

    keys: Tensor | None = None
    queries: Tensor | None = None


NO_TABLES = PositionTables()


def unsupported_spec(spec: LayerSpec) -> Reason | None:
    """Return why the kernels do not compute a layer of this spec, None if they do."""
    attention, network = spec.self_attention, spec.feed_forward
    if spec.cross_attention is not None or attention.similarity != "dot":
        return Reason("the layer has cross-attention, or a similarity other than the dot product")
    if attention.head_dim > MAX_HEAD_DIM:
        return Reason(f"heads are {attention.head_dim} wide, more than {MAX_HEAD_DIM}")
    if not network.gated and network.activation not in APPROXIMATIONS:
        return Reason("the layer has an activation other than GELU, which is not gated")
    first, last = spec.attention_norm, spec.output_norm
    if last is None or (first is not None and (first.place != last.place or first.kind != last.kind)):
        return Reason("the layer's norms are of several kinds")
    if last.place == "post" and (first is None or last.kind != "layer_norm"):
        return Reason("norms behind the sub-layers are not both LayerNorms")
    return None


def prefers_kernels(spec: LayerSpec, tokens: int, dtype: torch.dtype) -> bool:
    """Return whether the matmul table prefers our matmuls, fp32 or bf16, for a layer of so many tokens."""
    if dtype not in buffers.DTYPES:
        return False
    width, inner = spec.hidden_size, spec.feed_forward.first_width
    return matmul_table.prefers_native_layer(buffers.DTYPES[dtype], tokens, width, inner)


def unsupported(
    parameters: Mapping[str, Tensor], spec: LayerSpec, x: Tensor, dtype: torch.dtype, *, int8: bool
) -> Reason | None:
    """Return why the kernels do not compute a layer of x (tokens, width) in matmuls of `dtype`, None if they do.

    `parameters` are by the names of `LayerParameters`; biases and norms that the layer lacks are absent. One weight
    "qkv" may replace the three projections, "gate" and "up" the intermediate one of a gated network, likewise biases.
    """
    reason = unsupported_spec(spec)
    if reason is not None:
        return reason
    if x.dim() != 2 or x.dtype not in buffers.DTYPES or dtype not in buffers.DTYPES or buffers.is_transformed():
        return Reason("x must be (tokens, width) in bfloat16 or float32, outside of torch.func's transforms")
    if not (int8 or prefers_kernels(spec, x.shape[0], dtype)):
        return Reason("the matmul table prefers torch's library for a layer of this size")
    return buffers.unsupported(x, *parameters.values())


def infer(
    x: Tensor,
    parameters: Mapping[str, Tensor],
    spec: LayerSpec,
    batch: LayerBatch,
    dtype: torch.dtype,
    *,
    int8: bool = False,
    tables: PositionTables = NO_TABLES,
) -> Tensor:
    """Return a layer's output (tokens, width), or (rows, width) of `batch.token_indices`, in `dtype`, fp32 or bf16.

    Operands are of that dtype, or int8 (weights with a scale per output, tokens with one each). Raises UserError for
    offsets that do not describe the tokens, and for x and token indices that are not of the layer.
    """
    if x.shape[1] != spec.hidden_size or len(parameters["attention_output"]) != spec.hidden_size:
        raise UserError(
            f"x is {x.shape[1]} wide and attention's output {len(parameters['attention_output'])}, but the layer's"
            f" hidden_size={spec.hidden_size}"
        )
    cpu_capability.apply()
    if x.stride(-1) != 1:
        x = x.contiguous()
    network, gated = spec.feed_forward, spec.feed_forward.gated
    groups = (
        ("qkv",) if "qkv" in parameters else _PROJECTIONS,
        ("attention_output",),
        ("gate", "up") if "gate" in parameters else ("intermediate",),
        ("output",),
    )
    element = "int8" if int8 else buffers.DTYPES[dtype]
    matrices = [parameters[name] for group in groups for name in group]
    weights = prepacked_weights.prepacked_group(
        matrices, tuple(map(len, groups)), element, rows=x.shape[0], gated=(2,) if gated else ()
    )
    biases = _apart(parameters, spec)
    vectors = [biases[name].contiguous() if name in biases else None for name in _VECTORS]
    rows = batch.token_indices
    if rows is not None:
        if rows.dtype != torch.int64 or rows.dim() != 1 or not rows.is_cpu:
            raise UserError(
                f"token_indices must be int64 of shape (rows,) on {x.device}, not {rows.dtype} {tuple(rows.shape)}"
            )
        rows = rows.contiguous()
    arguments, kept = _attention(x, spec, batch, dtype, tables)
    y = torch.empty((x.shape[0] if rows is None else rows.shape[0], x.shape[1]), dtype=dtype, device="cpu")
    norms = [norm for norm in (spec.attention_norm, spec.output_norm) if norm is not None]
    try:
        _C.general_layer(
            x=(buffers.address("x", x), buffers.DTYPES[x.dtype], x.stride(0)),
            tokens=x.shape[0],
            weights=weights,
            vectors=[
                (0, 0, "fp32") if vector is None else
                (0 if buffers.was_freed(vector) else vector.data_ptr(), vector.numel(), buffers.DTYPES[vector.dtype])
                for vector in vectors
            ],
            attention=arguments,
            eps=(norms[0].eps, norms[-1].eps),
            activation=matmul.GATED_ACTIVATIONS[network.activation] if gated else network.activation,
            pre_norm=norms[-1].place == "pre",
            rms=norms[-1].kind == "rms_norm",
            rows=None if rows is None else (buffers.address("token_indices", rows), len(rows)),
            y=y.data_ptr(),
            y_dtype=buffers.DTYPES[dtype],
        )  # fmt: skip
    except ValueError as error:
        raise UserError(str(error)) from None
    del kept
    return y


def _apart(parameters: Mapping[str, Tensor], spec: LayerSpec) -> Mapping[str, Tensor]:
    """Return the biases by the names of `LayerParameters`, whichever weights are joined."""
    if "qkv_bias" in parameters:
        attention = spec.self_attention
        groups = attention.heads if attention.key_value_heads is None else attention.key_value_heads
        sizes = [heads * attention.head_dim for heads in (attention.heads, groups, groups)]
        split = parameters["qkv_bias"].split(sizes)
        parameters = {**parameters, **{f"{name}_bias": bias for name, bias in zip(_PROJECTIONS, split, strict=True)}}
    if "gate_bias" in parameters:
        joined = torch.cat((parameters["gate_bias"], parameters["up_bias"]))
        parameters = {**parameters, "intermediate_bias": joined}
    return parameters


def _attention(
    x: Tensor, spec: LayerSpec, batch: LayerBatch, dtype: torch.dtype, tables: PositionTables
) -> tuple[_C.AttentionArguments, object]:
    """Return the arguments of attention but q, k and v, which the layer computes, and what must outlive the call.

    Layers of one spec share them, since checking them takes as long as computing a few tokens.
    """
    attention, positions = spec.self_attention, batch.positions
    read: dict[str, Tensor | None] = batch.rotary_arguments(attention)
    by_distance = buckets = None
    if attention.position in ("alibi", "relative") and positions is not None:
        by_distance = positions.distance_bias
    if attention.position == "disentangled" and positions is not None:
        buckets = positions.buckets
    tensors = [tensor for tensor in (batch.cu_seqlens, by_distance, buckets, *read.values()) if tensor is not None]
    key = None
    copied = any(not tensor.is_contiguous() for tensor in tensors)
    copied |= by_distance is not None and by_distance.dtype != torch.float32
    if not (copied or tables.keys is not None or tables.queries is not None):
        # By address, because a tensor whose storage was given back has another, and by version, because checks read
        # the positions. Inference tensors have no version: nothing writes to a batch between two layers of a call.
        changes = [0 if tensor.is_inference() else tensor._version for tensor in tensors]
        addresses = [tensor.data_ptr() for tensor in tensors]
        key = (attention, dtype, x.shape[0], batch.max_seqlen, *addresses, *changes)
        shared = batch.shared.get(key)
        if shared is not None:
            return shared
    groups = attention.heads if attention.key_value_heads is None else attention.key_value_heads
    # One row for all tokens: the layer computes q, k and v itself, and the checks of attention read their shapes.
    row = x.new_empty(attention.head_dim, dtype=dtype)
    q, k = (row.as_strided((x.shape[0], heads, attention.head_dim), (0, 0, 1)) for heads in (attention.heads, groups))
    scale = 1 / math.sqrt(attention.head_dim) if attention.scale is None else attention.scale
    arguments = AttentionArguments(
        q=q, k=k, v=k, cu_seqlens_q=batch.cu_seqlens, cu_seqlens_k=batch.cu_seqlens, max_seqlen_q=batch.max_seqlen,
        max_seqlen_k=batch.max_seqlen, causal=attention.causal, dropout_p=0.0, dropout_key=None, dropout_site=0,
        bias=None, scale=scale, tf32=False, window=attention.window, **read,
        distance_bias=by_distance, position_keys=tables.keys, position_queries=tables.queries, buckets=buckets,
    )  # fmt: skip
    checked = kernel_arguments(arguments)
    if key is not None:
        batch.shared[key] = checked
    return checked
