"""Softmax over explicit attention scores: scale, mask, softmax and dropout in one pass, and its gradient in another.

scores, grad, out and dscores (sequences, heads, queries, keys), mask bool of that shape through strides that may be 0.
Forward reads the scores and writes the probabilities; backward reads the scores and the gradient, computes the
probabilities again and writes the scores' gradient: nothing else is kept between them. A program has ROWS rows of up to
KEYS keys in registers; rows with more keys are read twice, KEYS at a time.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.attention.tiles import keep_mask, reciprocal, softmax_row
from fastbert.kernels.common import LOG2_E, narrow
from fastbert.kernels.configs.softmax import NARROWEST, WIDEST
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.tuning import tables
from fastbert.ops.dropout.op import quantized

RUNTIME = [
    "stride_x_sequence", "stride_x_head", "stride_x_query", "stride_grad_sequence", "stride_grad_head",
    "stride_grad_query", "stride_mask_sequence", "stride_mask_head", "stride_mask_query", "stride_mask_key",
    "rows", "heads", "queries", "units", "threshold", "site",
]  # fmt: skip


@triton.jit
def _place_rows(rows, heads, queries, ROWS: tl.constexpr):
    """This program's first row, how many are left from there on, and (ROWS, 1) sequence, head, query of its rows.

    The divisions in 64 bits are done once for the program, those of its rows are in 32 bits.
    """
    first = tl.program_id(0).to(tl.int64) * ROWS
    plane, query = first // queries, (first % queries).to(tl.int32)
    sequence, head = plane // heads, (plane % heads).to(tl.int32)
    query += tl.arange(0, ROWS)[:, None]
    head += query // queries
    sequence += head // heads
    return first, rows - first, sequence, head % heads, query % queries


@triton.jit
def _address(x_ptr, sequence, head, query, strides, UNIT: tl.constexpr):
    """(ROWS, 1) pointers to the first key of each row; strides count UNIT elements, so that the compiler knows them."""
    stride_sequence, stride_head, stride_query = strides
    offset = sequence * stride_sequence + head.to(tl.int64) * stride_head + query.to(tl.int64) * stride_query
    return x_ptr + offset * UNIT


@triton.jit
def _scores(
    x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale,
    HAS_MASK: tl.constexpr, MASK_CONTIGUOUS: tl.constexpr,
):  # fmt: skip
    """scale * scores in units of log2, fp32 (ROWS, KEYS); -inf where there is no visible key."""
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
def _gradient(grad_ptr, column, keys, exists, first_key, row, dropout, DROPOUT: tl.constexpr, KEYS: tl.constexpr):
    """The gradient of the probabilities before dropout, fp32 (ROWS, KEYS)."""
    dp = tl.load(grad_ptr + column, mask=(column < keys) & exists, other=0.0).to(tl.float32)
    if DROPOUT:
        head, query = row
        key, keep_scale, threshold, site = dropout
        keep = keep_mask(key, first_key, query, head, site, threshold, query.shape[0], KEYS)
        dp = tl.where(keep, dp * keep_scale, 0.0)
    return dp


@triton.jit
def _rise(highest, s):
    """The highest score so far and with `s`, and the factor for sums that were taken relative to the former."""
    higher = tl.maximum(highest, tl.max(s, 1, keep_dims=True))
    # Relative to 0 while every score is -inf, so that its exponential is 0.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    return higher, base, tl.exp2(highest - base)


@triton.jit
def _store(out_ptr, x, first, row, column, keys, exists):
    """Into the contiguous rows from row `first` on."""
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
    UNIT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows; a row has `units` x UNIT keys."""
    first, left, sequence, head, query = _place_rows(rows, heads, queries, ROWS)
    row, column, keys = tl.arange(0, ROWS)[:, None], tl.arange(0, KEYS)[None, :], units * UNIT
    exists = row < left
    x_ptr = _address(x_ptr, sequence, head, query, (stride_x_sequence, stride_x_head, stride_x_query), UNIT)
    if HAS_MASK:
        strides = (stride_mask_sequence, stride_mask_head, stride_mask_query)
        mask_ptr = _address(mask_ptr, sequence, head, query, strides, UNIT)
    if DROPOUT:
        key = tl.load(key_ptr + sequence, mask=exists, other=0)
    if LOOPED:
        highest = tl.full((ROWS, 1), float("-inf"), tl.float32)
        total = tl.zeros((ROWS, 1), tl.float32)
        for first_key in range(0, keys, KEYS):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            highest, base, fall = _rise(highest, s)
            total = total * fall + tl.sum(tl.exp2(s - base), 1, keep_dims=True)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        factor = reciprocal(total) * keep_scale
        for first_key in range(0, keys, KEYS):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            p = tl.exp2(s - base) * factor
            if DROPOUT:
                p = tl.where(keep_mask(key, first_key, query, head, site, threshold, ROWS, KEYS), p, 0.0)
            _store(out_ptr, p, first, row, first_key + column, keys, exists)
    else:
        s = _scores(x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS)
        p, total, _ = softmax_row(s)
        p *= reciprocal(total) * keep_scale
        if DROPOUT:
            p = tl.where(keep_mask(key, 0, query, head, site, threshold, ROWS, KEYS), p, 0.0)
        _store(out_ptr, p, first, row, column, keys, exists)


@triton.jit(do_not_specialize=RUNTIME)
def softmax_backward(
    x_ptr, mask_ptr, key_ptr, grad_ptr, dx_ptr,
    stride_x_sequence, stride_x_head, stride_x_query,
    stride_mask_sequence, stride_mask_head, stride_mask_query, stride_mask_key,
    stride_grad_sequence, stride_grad_head, stride_grad_query,
    rows, heads, queries, units, scale, keep_scale, threshold, site,
    HAS_MASK: tl.constexpr, MASK_CONTIGUOUS: tl.constexpr, DROPOUT: tl.constexpr, LOOPED: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS rows. dscores = scale * p * (dp - sum of p * dp over the row)."""
    first, left, sequence, head, query = _place_rows(rows, heads, queries, ROWS)
    row, column, keys = tl.arange(0, ROWS)[:, None], tl.arange(0, KEYS)[None, :], units * UNIT
    exists = row < left
    x_ptr = _address(x_ptr, sequence, head, query, (stride_x_sequence, stride_x_head, stride_x_query), UNIT)
    strides = (stride_grad_sequence, stride_grad_head, stride_grad_query)
    grad_ptr = _address(grad_ptr, sequence, head, query, strides, UNIT)
    if HAS_MASK:
        strides = (stride_mask_sequence, stride_mask_head, stride_mask_query)
        mask_ptr = _address(mask_ptr, sequence, head, query, strides, UNIT)
    dropout = (0, keep_scale, threshold, site)
    if DROPOUT:
        dropout = (tl.load(key_ptr + sequence, mask=exists, other=0), keep_scale, threshold, site)
    place = (head, query)
    if LOOPED:
        highest = tl.full((ROWS, 1), float("-inf"), tl.float32)
        total, delta = tl.zeros((ROWS, 1), tl.float32), tl.zeros((ROWS, 1), tl.float32)
        for first_key in range(0, keys, KEYS):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            dp = _gradient(grad_ptr, first_key + column, keys, exists, first_key, place, dropout, DROPOUT, KEYS)
            highest, base, fall = _rise(highest, s)
            p = tl.exp2(s - base)
            total = total * fall + tl.sum(p, 1, keep_dims=True)
            delta = delta * fall + tl.sum(p * dp, 1, keep_dims=True)
        base = tl.where(highest == float("-inf"), 0.0, highest)
        factor = reciprocal(total)
        delta *= factor
        for first_key in range(0, keys, KEYS):
            s = _scores(
                x_ptr, mask_ptr, stride_mask_key, first_key + column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS
            )
            dp = _gradient(grad_ptr, first_key + column, keys, exists, first_key, place, dropout, DROPOUT, KEYS)
            ds = tl.exp2(s - base) * (factor * scale) * (dp - delta)
            _store(dx_ptr, ds, first, row, first_key + column, keys, exists)
    else:
        s = _scores(x_ptr, mask_ptr, stride_mask_key, column, keys, exists, scale, HAS_MASK, MASK_CONTIGUOUS)
        dp = _gradient(grad_ptr, column, keys, exists, 0, place, dropout, DROPOUT, KEYS)
        p, total, _ = softmax_row(s)
        p *= reciprocal(total)
        delta = tl.sum(p * dp, 1, keep_dims=True)
        _store(dx_ptr, p * (dp - delta) * scale, first, row, column, keys, exists)


def _with_contiguous_keys(x: Tensor) -> Tensor:
    """A copy where a row's keys are not side by side, as in a gradient that was expanded or in a compiled graph."""
    return x if x.stride(3) == 1 or x.shape[3] <= 1 else x.contiguous()


def _launch(
    kernel: Any,
    scores: Tensor,
    mask: Tensor | None,
    key: Tensor | None,
    tensors: tuple[Tensor, ...],
    grad: Tensor | None,
    scale: float,
    dropout_p: float,
    site: int,
) -> None:
    """Start a kernel on `scores` and what comes behind the dropout key, with its configuration for the rows' width."""
    sequences, heads, queries, keys = scores.shape
    visible = None if mask is None else mask.expand(scores.shape).view(torch.uint8)
    read = [x for x in (scores, grad) if x is not None]
    mask_contiguous = visible is not None and visible.stride(3) == 1
    # What all rows begin at a multiple of: from there the compiler knows how many bytes a thread may read at once.
    unit = math.gcd(16 // scores.element_size(), keys, *(stride for x in read for stride in x.stride()[:3]))
    if visible is not None:
        unit = math.gcd(unit, *visible.stride()[:3])
    width = min(max(keys, NARROWEST), 2 * WIDEST)
    shape = tables.shape_class(scores.dtype, False, width)
    config = tables.lookup(kernel.__name__, shape, architecture(scores.device))
    rows = sequences * heads * queries
    threshold, keep_scale = quantized(dropout_p)
    launch(
        kernel,
        (triton.cdiv(rows, config.constants["ROWS"]),),
        *(scores, visible, key, *tensors),
        *(stride // unit for stride in scores.stride()[:3]),
        *((0, 0, 0, 0) if visible is None else (*(s // unit for s in visible.stride()[:3]), visible.stride(3))),
        *(() if grad is None else (stride // unit for stride in grad.stride()[:3])),
        *(rows, heads, queries, keys // unit),
        *(scale, keep_scale, threshold, site),
        HAS_MASK=visible is not None,
        MASK_CONTIGUOUS=mask_contiguous,
        DROPOUT=key is not None,
        LOOPED=keys > config.constants["KEYS"],
        UNIT=unit,
        config=config,
    )


def forward(
    scores: Tensor, mask: Tensor | None, scale: float, dropout_p: float, dropout_key: Tensor | None, site: int
) -> Tensor:
    """Probabilities in the shape and dtype of `scores`, contiguous; `dropout_key` is None where nothing is dropped."""
    out = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    if out.numel():
        scores = _with_contiguous_keys(scores)
        _launch(softmax_forward, scores, mask, dropout_key, (out,), None, scale, dropout_p, site)
    return out


def backward(
    grad: Tensor,
    scores: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout_p: float,
    dropout_key: Tensor | None,
    site: int,
) -> Tensor:
    """The gradient of `scores`, contiguous."""
    dscores = torch.empty(scores.shape, dtype=scores.dtype, device=scores.device)
    if dscores.numel():
        scores, grad = _with_contiguous_keys(scores), _with_contiguous_keys(grad)
        _launch(softmax_backward, scores, mask, dropout_key, (grad, dscores), grad, scale, dropout_p, site)
    return dscores
