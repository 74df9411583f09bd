"""Launchers of packed attention: which kernels run, over which grid, into which memory. They never read the device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from fastbert.kernels.attention.bias import backward_bias
from fastbert.kernels.attention.long import backward_keys, backward_queries, forward_long
from fastbert.kernels.attention.short import backward_short, forward_short
from fastbert.kernels.launch import architecture, launch, multiprocessors
from fastbert.kernels.tuning import tables


class AttentionInputs(NamedTuple):
    """The inputs of all launchers: q, k, v (tokens, heads, head_dim) with contiguous heads, int32 offsets."""

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    dropout_key: Tensor | None
    """int64 (sequences,); None without dropout."""
    dropout_threshold: int
    """16-bit draws below it are dropped."""
    dropout_scale: float
    """The factor of what is not dropped."""
    dropout_site: int
    bias: Tensor | None
    scale: float
    tf32: bool

    @property
    def sequences(self) -> int:
        """The number of sequences."""
        return self.cu_seqlens_q.shape[0] - 1

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.q.shape[1]

    @property
    def max_seqlen(self) -> int:
        """The longest sequence, of queries or of keys."""
        return max(self.max_seqlen_q, self.max_seqlen_k)


def _config(inputs: AttentionInputs, kernel: str) -> tables.Config:
    shape = tables.shape_class(
        inputs.q.dtype, inputs.tf32, inputs.q.shape[2], masked=inputs.causal or inputs.bias is not None
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
        inputs.q.stride(0),
        inputs.k.stride(0),
        inputs.v.stride(0),
        *((0, 0, 0, 0, 0) if bias is None else (*bias.stride(), *bias.shape[1:])),
        inputs.q.shape[0],
        inputs.k.shape[0],
        inputs.heads,
        *sizes,
        inputs.scale,
        inputs.dropout_scale,
        inputs.dropout_threshold,
        inputs.dropout_site,
    )


def _constants(inputs: AttentionInputs) -> dict[str, Any]:
    """Return the compile-time constants that all kernels share."""
    head_dim = inputs.q.shape[2]
    return {
        "CAUSAL": inputs.causal,
        "DROPOUT": inputs.dropout_key is not None,
        "HEAD_DIM": head_dim,
        "BLOCK_D": triton.next_power_of_2(head_dim),
        "PRECISION": "tf32" if inputs.tf32 else "ieee",
    }


def _groups(inputs: AttentionInputs, rows: int) -> int:
    """Return the programs per sequence on the short path: one per head, fewer if no sequence is longer than 32."""
    if inputs.max_seqlen > 32:
        return inputs.heads
    return triton.cdiv(inputs.heads, rows // (16 if inputs.max_seqlen <= 16 else 32))


def _launch_short(inputs: AttentionInputs, kernel: Any, *tensors: Tensor | None, **constants: Any) -> int:
    """Launch a kernel of the short path, and return the length up to which it has computed sequences."""
    config = _config(inputs, kernel.__name__)
    if config.constants["MAX_SEQLEN"] == 0:
        return 0
    groups = _groups(inputs, config.constants["BLOCK_ROWS"])
    launch(
        kernel,
        (inputs.sequences * groups,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs, groups),
        **_constants(inputs),
        **constants,
        HAS_BIAS=inputs.bias is not None,
        config=config,
    )
    return config.constants["MAX_SEQLEN"]


def _launch_long(
    inputs: AttentionInputs,
    kernel: Any,
    *tensors: Tensor | None,
    by: str,
    max_seqlen: int,
    short: int,
    **constants: Any,
) -> None:
    """Launch a kernel of the long path, with one program per tile of queries or keys; `by` names the tile's size."""
    config = _config(inputs, kernel.__name__)
    tiles = triton.cdiv(max_seqlen, config.constants[by])
    launch(
        kernel,
        (inputs.sequences * inputs.heads * tiles,),
        *(inputs.q, inputs.k, inputs.v, *tensors),
        *_shared_arguments(inputs, tiles),
        **_constants(inputs),
        **constants,
        HAS_BIAS=inputs.bias is not None,
        SHORT=short,
        config=config,
    )


def forward(inputs: AttentionInputs) -> tuple[Tensor, Tensor]:
    """Return out, contiguous, shape and dtype of q, and lse (heads, tokens_q) fp32 in units of log2."""
    q = inputs.q
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(inputs.heads, q.shape[0], dtype=torch.float32, device=q.device)
    short = _launch_short(inputs, forward_short, out, lse)
    if inputs.max_seqlen > short:
        _launch_long(inputs, forward_long, out, lse, by="BLOCK_M", max_seqlen=inputs.max_seqlen_q, short=short)
    return out, lse


def backward(
    inputs: AttentionInputs, out: Tensor, lse: Tensor, grad: Tensor, bias_gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients of q, k, v, contiguous, and with `bias_gradient` of the bias; `grad` is contiguous."""
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (inputs.q, inputs.k, inputs.v))
    delta = _backward(inputs, out, lse, grad, (dq, dk, dv), bias_gradient, spacing=1)
    return dq, dk, dv, _bias_gradient(inputs, grad, lse, delta) if bias_gradient else None


def backward_joined(inputs: AttentionInputs, out: Tensor, lse: Tensor, grad: Tensor) -> Tensor:
    """Return the gradients of q, k, v of the same tokens as one tensor (tokens, 3, heads, head_dim)."""
    q = inputs.q
    joined = torch.empty(q.shape[0], 3, *q.shape[1:], dtype=q.dtype, device=q.device)
    _backward(inputs, out, lse, grad, joined.unbind(1), False, spacing=3)
    return joined


def _backward(
    inputs: AttentionInputs,
    out: Tensor,
    lse: Tensor,
    grad: Tensor,
    gradients: tuple[Tensor, ...],
    bias_gradient: bool,
    spacing: int,
) -> Tensor:
    """Write dq, dk and dv, whose tokens are `spacing` times their size apart; return delta for the bias gradient."""
    dq, dk, dv = gradients
    delta = torch.empty_like(lse)
    delta_out = delta if bias_gradient else None
    short = _launch_short(inputs, backward_short, out, grad, lse, dq, dk, dv, delta_out, SPACING=spacing)
    if inputs.max_seqlen > short:
        queries, keys = inputs.max_seqlen_q, inputs.max_seqlen_k
        common = {"short": short, "SPACING": spacing}
        _launch_long(inputs, backward_queries, out, grad, lse, dq, delta, by="BLOCK_M", max_seqlen=queries, **common)
        _launch_long(inputs, backward_keys, grad, lse, delta, dk, dv, by="BLOCK_N", max_seqlen=keys, **common)
    return delta


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
        **_constants(inputs),
        config=config,
    )
    return partial.sum(0).to(inputs.bias.dtype)
