"""Launchers of packed attention: which kernels run, over which grid, into which memory. They never read the device."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from fastbert.kernels.attention import library
from fastbert.kernels.attention.bias import backward_bias
from fastbert.kernels.attention.heads import backward_heads, forward_heads
from fastbert.kernels.attention.inputs import NO_TABLES, AttentionInputs, TableGradients
from fastbert.kernels.attention.long import backward_keys, backward_queries, forward_long
from fastbert.kernels.attention.medium import backward_medium
from fastbert.kernels.attention.positional import launchers as positional
from fastbert.kernels.attention.short import backward_short, forward_short
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables


def _config(inputs: AttentionInputs, kernel: str) -> tables.Config:
    shape = tables.shape_class(
        inputs.q.dtype,
        inputs.tf32,
        inputs.q.shape[2],
        masked=inputs.causal or inputs.bias is not None,
        dropout=inputs.dropout_key is not None,
    )
    return tables.lookup(kernel, shape, architecture(inputs.q.device))


def _shared_arguments(inputs: AttentionInputs, *sizes: int) -> tuple[Any, ...]:
    """Return the arguments that all kernels share, from the offsets to the dropout site; `sizes` differ by kernel."""
    bias = inputs.bias
    return (
        inputs.cu_seqlens_q,
        inputs.cu_seqlens_k,
        inputs.dropout_key,
        bias,
        *((0, 0, 0, 0, 0) if bias is None else (*bias.stride(), *bias.shape[1:])),
        inputs.q.shape[0],
        inputs.k.shape[0],
        *sizes,
        inputs.scale,
        inputs.dropout_scale,
        inputs.dropout_threshold,
        inputs.dropout_site,
    )


def _constants_of_heads(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compile-time constants that all kernels share, for those of up to 32 tokens."""
    head_dim = inputs.q.shape[2]
    return {
        "HEADS": inputs.heads,
        "STRIDE_Q": inputs.q.stride(0),
        "STRIDE_K": inputs.k.stride(0),
        "STRIDE_V": inputs.v.stride(0),
        "CAUSAL": inputs.causal,
        "HAS_BIAS": inputs.bias is not None,
        "DROPOUT": inputs.dropout_key is not None,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "PRECISION": "tf32" if inputs.tf32 else "ieee",
    }


def _constants(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compile-time constants that all other kernels share."""
    return _constants_of_heads(inputs) | {"PTX": architecture(inputs.q.device).startswith("sm_")}


def _launch_heads(inputs: AttentionInputs, kernel: Any, *tensors: Tensor | None, **constants: Any) -> int:
    """Launch a kernel of sequences of up to 32 tokens; return the length up to which it has computed sequences."""
    config = _config(inputs, kernel.__name__)
    rows = config.constants["BLOCK_ROWS"]
    if rows == 0:
        return 0
    groups = triton.cdiv(inputs.heads, rows // (16 if inputs.max_seqlen <= 16 else 32))
    launch(
        kernel,
        (inputs.sequences * groups,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs, groups),
        **_constants_of_heads(inputs),
        **constants,
        config=config,
    )
    return 32


def _launch_head(inputs: AttentionInputs, kernel: Any, done: int, *tensors: Tensor | None, **constants: Any) -> int:
    """Launch a kernel with a program per sequence and head, for sequences longer than `done`, unless none is left.

    Return the length up to which sequences have been computed.
    """
    config = _config(inputs, kernel.__name__)
    longest = config.constants.get("MAX_SEQLEN", 0) or config.constants.get("MAX_MEDIUM", 0)
    if longest <= done or inputs.max_seqlen <= done:
        return done
    launch(
        kernel,
        (inputs.sequences * inputs.heads,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs),
        **_constants(inputs),
        SHORT=done,
        **constants,
        config=config,
    )
    return longest


def _launch_tiles(
    inputs: AttentionInputs, kernel: Any, by: str, max_seqlen: int, *tensors: Tensor | None, **constants: Any
) -> None:
    """Launch a kernel with a program per tile of queries or keys; `by` names the tile's size."""
    config = _config(inputs, kernel.__name__)
    tiles = triton.cdiv(max_seqlen, config.constants[by])
    launch(
        kernel,
        (inputs.sequences * inputs.heads * tiles,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs, tiles),
        **_constants(inputs),
        **constants,
        config=config,
    )


def rest_rows(inputs: AttentionInputs) -> int:
    """Return the tokens of `rest`: all where backward sums delta from the output, 0 where it recomputes delta.

    In fp32 nothing is rounded away; the library's kernels know only the output.
    """
    if inputs.is_positional:
        return positional.rest_rows(inputs)
    if inputs.q.dtype == torch.float32 or library.is_chosen(inputs, training=True):
        return 0
    recomputed = 32 if _config(inputs, backward_heads.__name__).constants["BLOCK_ROWS"] else 0
    recomputed = max(recomputed, _config(inputs, backward_short.__name__).constants["MAX_SEQLEN"])
    return inputs.q.shape[0] if inputs.max_seqlen > recomputed else 0


def forward(inputs: AttentionInputs, with_rest: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Return out, contiguous, shape and dtype of q; lse (heads, tokens_q) fp32 in units of log2; and for backward rest,
    (rest_rows, heads, head_dim) in the dtype of q: what rounding removed from out.

    With `with_rest`, backward follows. Where the library's kernels are chosen, lse is in their units."""
    q = inputs.q
    if inputs.is_positional:
        return positional.forward(inputs, with_rest)
    if library.is_chosen(inputs, training=with_rest):
        return *library.forward(inputs), q.new_empty(0, *q.shape[1:])
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(inputs.heads, q.shape[0], dtype=torch.float32, device=q.device)
    rest = torch.empty(rest_rows(inputs) if with_rest else 0, *q.shape[1:], dtype=q.dtype, device=q.device)
    tensors = (out, rest if rest.shape[0] else None, lse)
    done = _launch_heads(inputs, forward_heads, *tensors)
    done = _launch_head(inputs, forward_short, done, *tensors)
    if inputs.max_seqlen > done:
        _launch_tiles(inputs, forward_long, "BLOCK_M", inputs.max_seqlen_q, *tensors, SHORT=done)
    return out, lse, rest


def backward(
    inputs: AttentionInputs,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad: Tensor,
    bias_gradient: bool,
    wanted: TableGradients = NO_TABLES,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of q, k, v, contiguous, of the bias with `bias_gradient`, and those of distance_bias,
    position_keys and position_queries that are `wanted`; `grad` is contiguous."""
    if inputs.is_positional:
        gradients = positional.backward(inputs, out, lse, rest, grad, wanted)
        return *gradients[:3], None, *gradients[3:]
    if library.is_chosen(inputs, training=True):
        return *library.backward(inputs, out, lse, grad), None, None, None, None
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (inputs.q, inputs.k, inputs.v))
    delta = _backward(inputs, out, lse, rest, grad, (dq, dk, dv), bias_gradient, spacing=1)
    bias = _bias_gradient(inputs, grad, lse, delta) if bias_gradient else None
    return dq, dk, dv, bias, None, None, None


def backward_joined(inputs: AttentionInputs, out: Tensor, lse: Tensor, rest: Tensor, grad: Tensor) -> Tensor:
    """Return the gradients of q, k, v of the same tokens as one tensor (tokens, 3, heads, head_dim)."""
    if inputs.is_positional:
        return torch.stack(positional.backward(inputs, out, lse, rest, grad)[:3], 1)
    if library.is_chosen(inputs, training=True):
        return torch.stack(library.backward(inputs, out, lse, grad), 1)
    q = inputs.q
    joined = torch.empty(q.shape[0], 3, *q.shape[1:], dtype=q.dtype, device=q.device)
    _backward(inputs, out, lse, rest, grad, joined.unbind(1), False, spacing=3)
    return joined


def _backward(
    inputs: AttentionInputs,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    grad: Tensor,
    gradients: tuple[Tensor, ...],
    bias_gradient: bool,
    spacing: int,
) -> Tensor:
    """Write dq, dk and dv, whose tokens are `spacing` times their size apart; return delta for the bias gradient."""
    dq, dk, dv = gradients
    delta = torch.empty_like(lse)
    recomputing = (grad, lse, dq, dk, dv)
    done = _launch_heads(inputs, backward_heads, *recomputing, delta if bias_gradient else None, SPACING=spacing)
    done = _launch_head(inputs, backward_short, done, *recomputing, delta, SPACING=spacing)
    outputs = (out, rest if rest.shape[0] else None, grad, lse)
    sums = _sums_of_dq(inputs, done)
    done = _launch_head(inputs, backward_medium, done, *outputs, sums, dq, dk, dv, delta, SPACING=spacing)
    if inputs.max_seqlen > done:
        constants = {"SHORT": done, "SPACING": spacing}
        queries, keys = inputs.max_seqlen_q, inputs.max_seqlen_k
        _launch_tiles(inputs, backward_queries, "BLOCK_M", queries, *outputs, dq, delta, **constants)
        _launch_tiles(inputs, backward_keys, "BLOCK_N", keys, grad, lse, delta, dk, dv, **constants)
    return delta


def _sums_of_dq(inputs: AttentionInputs, done: int) -> Tensor | None:
    """Allocate the partial sums of `backward_medium`: whole tiles for every head; None where it is not launched."""
    constants = _config(inputs, backward_medium.__name__).constants
    if constants["MAX_MEDIUM"] <= done or inputs.max_seqlen <= done:
        return None
    rows = inputs.q.shape[0] + inputs.sequences * constants["BLOCK_M"]
    size = rows * inputs.heads * triton.next_power_of_2(inputs.q.shape[2])
    return torch.empty(size, dtype=torch.float32, device=inputs.q.device)


def _bias_gradient(inputs: AttentionInputs, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    assert inputs.bias is not None
    config = _config(inputs, backward_bias.__name__)
    heads, rows, columns = inputs.bias.shape
    columns_of_tiles, rows_of_tiles = (
        triton.cdiv(columns, config.constants["BLOCK_N"]),
        triton.cdiv(rows, config.constants["BLOCK_M"]),
    )
    # Enough programs to fill the device twice, by what the host knows; never more parts than sequences.
    needed = triton.cdiv(2 * multiprocessors(grad.device), max(columns_of_tiles * rows_of_tiles * heads, 1))
    parts = max(1, min(inputs.sequences, needed))
    partial = torch.empty(parts, heads, rows, columns, dtype=torch.float32, device=grad.device)
    launch(
        backward_bias,
        (columns_of_tiles, rows_of_tiles, parts * heads),
        *(inputs.q, inputs.k, inputs.v, grad, lse, delta, partial),
        *_shared_arguments(inputs, inputs.sequences, parts),
        **{name: value for name, value in _constants(inputs).items() if name != "HAS_BIAS"},
        config=config,
    )
    return partial.sum(0).to(inputs.bias.dtype)
