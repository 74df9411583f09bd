"""Launchers of positional attention: which kernels run, over which grid, into which memory. They never read the device.

All kernels have square tiles, in which distances repeat along diagonals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from fastbert.kernels.attention.inputs import NO_TABLES, AttentionInputs, TableGradients
from fastbert.kernels.attention.positional.buckets import positional_buckets
from fastbert.kernels.attention.positional.forward import positional_forward
from fastbert.kernels.attention.positional.keys import positional_keys
from fastbert.kernels.attention.positional.queries import positional_queries
from fastbert.kernels.attention.positional.tables import positional_tables
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables


def _config(inputs: AttentionInputs, kernel: str) -> tables.Config:
    """Return a kernel's configuration; relative positions count as a mask, which takes registers."""
    shape = tables.shape_class(
        inputs.q.dtype,
        inputs.tf32,
        inputs.q.shape[2],
        masked=inputs.buckets is not None,
        dropout=inputs.dropout_key is not None,
    )
    return tables.lookup(kernel, shape, architecture(inputs.q.device))


def _shared_arguments(inputs: AttentionInputs, tiles: int) -> tuple[Any, ...]:
    """Return the arguments that all kernels share, from the offsets to the dropout site."""
    bias, table = inputs.distance_bias, inputs.position_keys
    if table is None:
        table = inputs.position_queries
    return (
        inputs.cu_seqlens_q,
        inputs.cu_seqlens_k,
        inputs.dropout_key,
        inputs.rotary,
        inputs.rotary_positions,
        bias,
        inputs.position_keys,
        inputs.position_queries,
        inputs.buckets,
        inputs.q.shape[0],
        inputs.k.shape[0],
        0 if inputs.rotary is None else inputs.rotary.shape[0],
        0 if bias is None else bias.shape[1],
        0 if bias is None else bias.stride(0),
        0 if inputs.buckets is None else inputs.buckets.shape[0],
        0 if table is None else table.shape[0],
        # A wider window is as wide, and may not fit into 32 bits.
        inputs.max_seqlen if inputs.window is None else min(inputs.window, inputs.max_seqlen),
        tiles,
        inputs.scale,
        inputs.dropout_scale,
        inputs.dropout_threshold,
        inputs.dropout_site,
    )


def _constants(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compile-time constants that all kernels share."""
    head_dim = inputs.q.shape[2]
    rotary = 0 if inputs.rotary is None else inputs.rotary.shape[1]
    return {
        "HEADS": inputs.heads,
        "GROUP": inputs.heads // inputs.k.shape[1],
        "STRIDE_Q": inputs.q.stride(0),
        "STRIDE_K": inputs.k.stride(0),
        "STRIDE_V": inputs.v.stride(0),
        "CAUSAL": inputs.causal,
        "WINDOW": inputs.window is not None,
        "ROTARY": rotary,
        "DROPOUT": inputs.dropout_key is not None,
        "BIAS": inputs.distance_bias is not None,
        "POSITION_KEYS": inputs.position_keys is not None,
        "POSITION_QUERIES": inputs.position_queries is not None,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "WIDTH": triton.next_power_of_2(head_dim // 2 if rotary else head_dim),
        "PRECISION": "tf32" if inputs.tf32 else "ieee",
        "PTX": architecture(inputs.q.device).startswith("sm_"),
    }


def _launch(inputs: AttentionInputs, kernel: Any, heads: int, max_seqlen: int, *tensors: Tensor | None) -> None:
    """Launch a kernel with a program per tile of queries or keys."""
    config = _config(inputs, kernel.__name__)
    tiles = triton.cdiv(max_seqlen, config.constants["BLOCK"])
    launch(
        kernel,
        (inputs.sequences * heads * tiles,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs, tiles),
        **_constants(inputs),
        config=config,
    )


def _contiguous(inputs: AttentionInputs) -> AttentionInputs:
    """Return the inputs with tables as the kernels read them: rotary and relative ones whole, biases along distances.

    They are small, and contiguous in models.
    """
    names = ("rotary", "rotary_positions", "position_keys", "position_queries", "buckets")
    whole = {name: x.contiguous() for name in names if (x := getattr(inputs, name)) is not None}
    bias = inputs.distance_bias
    if bias is not None and bias.stride(1) != 1:
        whole["distance_bias"] = bias.contiguous()
    return inputs._replace(**whole)


def rest_rows(inputs: AttentionInputs) -> int:
    """Return the tokens of `rest`: all in half precision. In fp32 nothing is rounded away."""
    return 0 if inputs.q.dtype == torch.float32 else inputs.q.shape[0]


def forward(inputs: AttentionInputs, with_rest: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return out, lse and rest as `fastbert.kernels.attention.launchers.forward`."""
    inputs = _contiguous(inputs)
    q = inputs.q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(inputs.heads, q.shape[0], dtype=torch.float32, device=q.device)
    rest = torch.empty(rest_rows(inputs) if with_rest else 0, *q.shape[1:], dtype=q.dtype, device=q.device)
    saved = (out, rest if rest.shape[0] else None, lse)
    _launch(inputs, positional_forward, inputs.heads, inputs.max_seqlen_q, *saved)
    return out, lse, rest


def backward(
    inputs: AttentionInputs,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad: Tensor,
    wanted: TableGradients = NO_TABLES,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of q, k, v, contiguous, and those of distance_bias, position_keys and position_queries that
    are wanted; `grad` is contiguous."""
    inputs = _contiguous(inputs)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (inputs.q, inputs.k, inputs.v))
    delta = torch.empty_like(lse)
    outputs = (out, rest if rest.shape[0] else None, grad, lse, dq, delta)
    _launch(inputs, positional_queries, inputs.heads, inputs.max_seqlen_q, *outputs)
    _launch(inputs, positional_keys, inputs.k.shape[1], inputs.max_seqlen_k, grad, lse, delta, dk, dv)
    return dq, dk, dv, *_table_gradients(inputs, grad, lse, delta, wanted)


def _table_gradients(
    inputs: AttentionInputs, grad: Tensor, lse: Tensor, delta: Tensor, wanted: TableGradients
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    config = _config(inputs, positional_tables.__name__)
    block = config.constants["BLOCK"]
    # The distance between the first and the last tile whose scores may be visible, in tiles.
    farthest = max(inputs.max_seqlen - 1, 0) if inputs.window is None else min(inputs.window, inputs.max_seqlen)
    tiles = (farthest + block - 1) // block
    diagonals = 2 * tiles + 1
    # Enough programs to fill the device twice, by what the host knows; never more parts than sequences.
    needed = triton.cdiv(2 * multiprocessors(grad.device), diagonals * inputs.heads)
    parts = max(1, min(inputs.sequences, needed))

    def sums(*shape: int) -> Tensor:
        return torch.empty(parts, inputs.heads, diagonals, 2, block, *shape, dtype=torch.float32, device=grad.device)

    def run(bias: Tensor | None, keys: Tensor | None, queries: Tensor | None) -> None:
        launch(
            positional_tables,
            (diagonals, inputs.heads, parts),
            *(inputs.q, inputs.k, inputs.v, grad, lse, delta, bias, keys, queries),
            *_shared_arguments(inputs, tiles),
            *(inputs.sequences, parts),
            **_constants(inputs),
            config=config,
        )

    bias = keys = queries = None
    if inputs.distance_bias is not None and wanted.distance_bias:
        by_distance = sums()
        run(by_distance, None, None)
        bias = _bias_gradient(by_distance.sum(0), inputs.distance_bias)
    head_dim = inputs.q.shape[2]
    by_key = sums(head_dim) if inputs.position_keys is not None and wanted.position_keys else None
    by_query = sums(head_dim) if inputs.position_queries is not None and wanted.position_queries else None
    if by_key is not None or by_query is not None:
        run(None, by_key, by_query)
    if inputs.position_keys is not None and by_key is not None:
        keys = _bucket_gradient(inputs, by_key, inputs.position_keys)
    if inputs.position_queries is not None and by_query is not None:
        queries = _bucket_gradient(inputs, by_query, inputs.position_queries)
    return bias, keys, queries


def _bias_gradient(halves: Tensor, bias: Tensor) -> Tensor:
    """Return the gradient of a distance bias from (heads, diagonals, 2, BLOCK) of `positional_tables`."""
    heads, diagonals, _, block = halves.shape
    lower, upper = halves.flatten(3).unbind(2)
    # The upper half of a diagonal has the distances of the lower one of the next.
    total = F.pad(lower.flatten(1), (0, block)) + F.pad(upper.flatten(1), (block, 0))
    center, distances = (diagonals + 1) // 2 * block - 1, bias.shape[1]
    side = distances // 2
    return F.pad(total, (side - center, side + 1 - (total.shape[1] - center))).to(bias.dtype).view(heads, distances)


def _bucket_gradient(inputs: AttentionInputs, sums: Tensor, table: Tensor) -> Tensor:
    """Return the gradient of a table of relative positions from its sums of `positional_tables`."""
    assert inputs.buckets is not None
    parts, heads, diagonals, _, block, head_dim = sums.shape
    config = _config(inputs, positional_buckets.__name__)
    # A chunk of distances lies within a block.
    config = replace(config, constants={"CHUNK": min(config.constants["CHUNK"], block)})
    out = torch.empty(table.shape, dtype=table.dtype, device=table.device)
    launch(
        positional_buckets,
        (table.shape[0], heads),
        *(sums, inputs.buckets, out),
        *(inputs.buckets.shape[0], table.shape[0], diagonals, parts),
        HEADS=heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK=block,
        config=config,
    )
    return out
