"""Softmax over explicit attention scores: scale, mask, softmax and dropout in one pass, and its gradient in another.

scores, grad, out and dscores (sequences, heads, queries, keys), mask bool of that shape through strides that may be 0.
Forward reads the scores and writes the probabilities; backward reads the scores and the gradient, recomputes the
probabilities and writes the scores' gradient: nothing else is saved between them. A program holds BLOCK_M rows of up to
BLOCK_N keys in registers; rows with more keys are read twice, BLOCK_N at a time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.attention.dropout import keep_mask_rows
from fastbert.kernels.attention.tiles import reciprocal, softmax_row
from fastbert.kernels.common import LOG2_E, narrow
from fastbert.kernels.configs.softmax import NARROWEST, WIDEST
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.tuning import tables

RUNTIME = [
    "stride_x_sequence", "stride_x_head", "stride_x_query", "stride_grad_sequence", "stride_grad_head",
    "stride_grad_query", "stride_mask_sequence", "stride_mask_head", "stride_mask_query", "stride_mask_key",
    "rows", "heads", "queries", "units", "threshold", "site",
]  # fmt: skip


@triton.jit
def _row_indices(rows, heads, queries, BLOCK_M: tl.constexpr):
    """Return the first row, the number of rows from there on, and (BLOCK_M, 1) sequence, head and query of each row.

    The 64-bit divisions are done once per program, those of its rows are in 32 bits.
    """
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    plane, query = first // queries, (first % queries).to(tl.int32)
    sequence, head = plane // heads, (plane % heads).to(tl.int32)
    query += tl.arange(0, BLOCK_M)[:, None]
    head += query // queries
    sequence += head // heads
    return first, rows - first, sequence, head % heads, query % queries


@triton.jit
def _address(x_ptr, sequence, head, query, strides, UNIT: tl.constexpr):
    """Return (BLOCK_M, 1) pointers to the first key of each row; strides count UNIT elements, a known divisor."""
    stride_sequence, stride_head, stride_query = strides
    offset = sequence * stride_sequence + head.to(tl.int64) * stride_head + query.to(tl.int64) * stride_query
    return x_ptr + offset * UNIT


@triton.jit
def _scores(
    x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale,
    HAS_MASK: tl.constexpr, MASK_CONTIGUOUS: tl.constexpr,
):  # fmt: skip
    """Return scale * scores in units of log2, fp32 (BLOCK_M, BLOCK_N); -inf where there is no visible key."""
    inside = (column < keys) & exists
    s = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32) * (scale * LOG2_E)
    if HAS_MASK:
        if MASK_CONTIGUOUS:
            visible = tl.load(mask_ptr + column, mask=inside, other=0)
        else:
            visible = tl.load(mask_ptr + column.to(tl.int64) * stride_mask_key, mask=inside, other=0)
        inside = inside & (visible != 0)
    return tl.where(inside, s, float("-inf"))


@triton.jit
def _gradient(grad_ptr, column, keys, exists, first_key, row, dropout, DROPOUT: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the gradient of the probabilities before dropout, fp32 (BLOCK_M, BLOCK_N)."""
    dp = tl.load(grad_ptr + column, mask=(column < keys) & exists, other=0.0).to(tl.float32)
    if DROPOUT:
        head, query = row
        draws, keep_scale = dropout
        keep = keep_mask_rows(draws, first_key, query, head, query.shape[0], BLOCK_N)
        dp = tl.where(keep, dp * keep_scale, 0.0)
    return dp


@triton.jit
def _update_maximum(maximum, s):
    """Return the maximum with `s`, the base of exponentials, and the factor for sums relative to the old maximum."""
    updated = tl.maximum(maximum, tl.max(s, 1, keep_dims=True))
    # Relative to 0 while every score is -inf, so that its exponential is 0.
    base = tl.where(updated == float("-inf"), 0.0, updated)
    return updated, base, tl.exp2(maximum - base)


@triton.jit
def _store(out_ptr, x, first, row, column, keys, exists):
    """Store x to the contiguous rows from row `first` on."""
    out_ptr += first * keys
    x = narrow(x, out_ptr.dtype.element_ty)
    tl.store(out_ptr + (row * keys + column), x, mask=(column < keys) & exists)


@triton.jit(do_not_specialize=RUNTIME)
def softmax_forward(
    x_ptr, mask_ptr, key_ptr, out_ptr,
    stride_x_sequence, stride_x_head, stride_x_query,
    stride_mask_sequence, stride_mask_head, stride_mask_query, stride_mask_key,
    rows, heads, queries, units, scale, keep_scale, threshold, site,
    HAS_MASK: tl.constexpr, MASK_CONTIGUOUS: tl.constexpr, DROPOUT: tl.constexpr, LOOPED: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows; a row has `units` x UNIT keys."""
    first, left, sequence, head, query = _row_indices(rows, heads, queries, BLOCK_M)
    row, column, keys = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :], units * UNIT
    exists = row < left
    x_ptr = _address(x_ptr, sequence, head, query, (stride_x_sequence, stride_x_head, stride_x_query), UNIT)
    if HAS_MASK:
        strides = (stride_mask_sequence, stride_mask_head, stride_mask_query)
        mask_ptr = _address(mask_ptr, sequence, head, query, strides, UNIT)
    if DROPOUT:
        dropout = (tl.load(key_ptr + sequence, mask=exists, other=0), site, threshold)
    if LOOPED:
        maximum = tl.full((BLOCK_M, 1), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M, 1), tl.float32)
        for first_key in range(0, keys, BLOCK_N):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            maximum, base, rescale = _update_maximum(maximum, s)
            total = total * rescale + tl.sum(tl.exp2(s - base), 1, keep_dims=True)
        base = tl.where(maximum == float("-inf"), 0.0, maximum)
        factor = reciprocal(total) * keep_scale
        for first_key in range(0, keys, BLOCK_N):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            p = tl.exp2(s - base) * factor
            if DROPOUT:
                p = tl.where(keep_mask_rows(dropout, first_key, query, head, BLOCK_M, BLOCK_N), p, 0.0)
            _store(out_ptr, p, first, row, first_key + column, keys, exists)
    else:
        s = _scores(x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS)
        p, total, _ = softmax_row(s, 1.0)
        p *= reciprocal(total) * keep_scale
        if DROPOUT:
            p = tl.where(keep_mask_rows(dropout, 0, query, head, BLOCK_M, BLOCK_N), p, 0.0)
        _store(out_ptr, p, first, row, column, keys, exists)


@triton.jit(do_not_specialize=RUNTIME)
def softmax_backward(
    x_ptr, mask_ptr, key_ptr, grad_ptr, dx_ptr,
    stride_x_sequence, stride_x_head, stride_x_query,
    stride_mask_sequence, stride_mask_head, stride_mask_query, stride_mask_key,
    stride_grad_sequence, stride_grad_head, stride_grad_query,
    rows, heads, queries, units, scale, keep_scale, threshold, site,
    HAS_MASK: tl.constexpr, MASK_CONTIGUOUS: tl.constexpr, DROPOUT: tl.constexpr, LOOPED: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M rows. dscores = scale * p * (dp - sum of p * dp over the row)."""
    first, left, sequence, head, query = _row_indices(rows, heads, queries, BLOCK_M)
    row, column, keys = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :], units * UNIT
    exists = row < left
    x_ptr = _address(x_ptr, sequence, head, query, (stride_x_sequence, stride_x_head, stride_x_query), UNIT)
    strides = (stride_grad_sequence, stride_grad_head, stride_grad_query)
    grad_ptr = _address(grad_ptr, sequence, head, query, strides, UNIT)
    if HAS_MASK:
        strides = (stride_mask_sequence, stride_mask_head, stride_mask_query)
        mask_ptr = _address(mask_ptr, sequence, head, query, strides, UNIT)
    dropout = ((0, site, threshold), keep_scale)
    if DROPOUT:
        dropout = ((tl.load(key_ptr + sequence, mask=exists, other=0), site, threshold), keep_scale)
    row_index = (head, query)
    if LOOPED:
        maximum = tl.full((BLOCK_M, 1), float("-inf"), tl.float32)
        total, delta = tl.zeros((BLOCK_M, 1), tl.float32), tl.zeros((BLOCK_M, 1), tl.float32)
        for first_key in range(0, keys, BLOCK_N):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            dp = _gradient(grad_ptr, first_key + column, keys, exists, first_key, row_index, dropout, DROPOUT, BLOCK_N)
            maximum, base, rescale = _update_maximum(maximum, s)
            p = tl.exp2(s - base)
            total = total * rescale + tl.sum(p, 1, keep_dims=True)
            delta = delta * rescale + tl.sum(p * dp, 1, keep_dims=True)
        base = tl.where(maximum == float("-inf"), 0.0, maximum)
        factor = reciprocal(total)
        delta *= factor
        for first_key in range(0, keys, BLOCK_N):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            dp = _gradient(grad_ptr, first_key + column, keys, exists, first_key, row_index, dropout, DROPOUT, BLOCK_N)
            ds = tl.exp2(s - base) * (factor * scale) * (dp - delta)
            _store(dx_ptr, ds, first, row, first_key + column, keys, exists)
    else:
        s = _scores(x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS)
        dp = _gradient(grad_ptr, column, keys, exists, 0, row_index, dropout, DROPOUT, BLOCK_N)
        p, total, _ = softmax_row(s, 1.0)
        p *= reciprocal(total)
        delta = tl.sum(p * dp, 1, keep_dims=True)
        _store(dx_ptr, p * (dp - delta) * scale, first, row, column, keys, exists)


class SoftmaxInputs(NamedTuple):
    """Scores (sequences, heads, queries, keys), a bool mask that broadcasts to them, and the dropout of their softmax.

    `key`, int64 (sequences,), is None where nothing is dropped. A probability is kept where its 8-bit draw is at least
    `threshold`, and then multiplied by `keep_scale`; `site` is the last word of the draw's counter.
    """

    scores: Tensor
    mask: Tensor | None
    scale: float
    key: Tensor | None
    threshold: int
    keep_scale: float
    site: int


def _with_contiguous_keys(x: Tensor) -> Tensor:
    """Return x, copied if the keys of a row are not contiguous, as in an expanded gradient or in a compiled graph."""
    return x if x.stride(3) == 1 or x.shape[3] <= 1 else x.contiguous()


def _launch(kernel: Any, inputs: SoftmaxInputs, out: Tensor, grad: Tensor | None = None) -> None:
    """Start a kernel with the configuration of the rows' width; `grad` is given to backward alone."""
    scores = _with_contiguous_keys(inputs.scores)
    sequences, heads, queries, keys = scores.shape
    visible = None if inputs.mask is None else inputs.mask.expand(scores.shape).view(torch.uint8)
    rows_read = [scores] if grad is None else [scores, _with_contiguous_keys(grad)]
    mask_contiguous = visible is not None and visible.stride(3) == 1
    # Every row begins at a multiple of it: from there the compiler knows how many bytes a thread may read at once.
    unit = math.gcd(16 // scores.element_size(), keys, *(stride for x in rows_read for stride in x.stride()[:3]))
    if visible is not None:
        unit = math.gcd(unit, *visible.stride()[:3])
    width = min(max(keys, NARROWEST), 2 * WIDEST)
    shape = tables.shape_class(scores.dtype, False, width)
    config = tables.lookup(kernel.__name__, shape, architecture(scores.device))
    strides = [[stride // unit for stride in x.stride()[:3]] for x in rows_read]
    rows = sequences * heads * queries
    launch(
        kernel,
        (triton.cdiv(rows, config.constants["BLOCK_M"]),),
        *(scores, visible, inputs.key, *rows_read[1:], out),
        *strides[0],
        *((0, 0, 0, 0) if visible is None else (*(s // unit for s in visible.stride()[:3]), visible.stride(3))),
        *(stride for row_strides in strides[1:] for stride in row_strides),
        *(rows, heads, queries, keys // unit),
        *(inputs.scale, inputs.keep_scale, inputs.threshold, inputs.site),
        HAS_MASK=visible is not None,
        MASK_CONTIGUOUS=mask_contiguous,
        DROPOUT=inputs.key is not None,
        LOOPED=keys > config.constants["BLOCK_N"],
        UNIT=unit,
        config=config,
    )


def forward(inputs: SoftmaxInputs) -> Tensor:
    """Return probabilities in the shape and dtype of the scores, contiguous."""
    out = torch.empty(inputs.scores.shape, dtype=inputs.scores.dtype, device=inputs.scores.device)
    if out.numel():
        _launch(softmax_forward, inputs, out)
    return out


def backward(grad: Tensor, inputs: SoftmaxInputs) -> Tensor:
    """Return the gradient of the scores, contiguous."""
    dscores = torch.empty(inputs.scores.shape, dtype=inputs.scores.dtype, device=inputs.scores.device)
    if dscores.numel():
        _launch(softmax_backward, inputs, dscores, grad)
    return dscores
