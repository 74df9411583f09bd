"""Gradients of embedding tables: the gradients of the tokens with one id summed into its row, in a fixed order.

dsum (tokens, width), keys int32 (tables, tokens): the row of a token's id, counted over all tables, each of which ends
in one more key than it has rows, for tokens that count for nothing. The keys of all tables are sorted at once, stably
and on the device; table t then owns the sorted places from t * tokens on. `sum_runs` walks the places in chunks of
CHUNK. A run of equal keys that begins and ends in a chunk goes straight to its row; the piece of one that crosses
a border of chunks becomes a row of `partial`, and `join_runs` adds the pieces up, many at a time, so that neither an id
that half of the tokens have nor a table of one row leaves a program alone with the work. No atomics: the same bits on
every run.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.common import narrow
from fastbert.kernels.configs.embedding import NARROWEST
from fastbert.kernels.launch import architecture, launch
from fastbert.kernels.tuning import tables as tuning

RUNTIME = ["rows0", "rows1", "rows2", "rows3", "tokens", "chunks", "blocks"]
# Rows that are read before the first of them is added.
GROUP = tl.constexpr(4)


@triton.jit
def _place(chunks, blocks, COLUMNS: tl.constexpr):
    """Table, chunk and (1, COLUMNS) columns of this program; programs that share keys are neighbours."""
    program = tl.program_id(0)
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    program = program // blocks
    return program // chunks, program % chunks, column


@triton.jit
def _target(table, pointers, rows, TABLES: tl.constexpr):
    """A table's gradient, its first key and its rows."""
    pointer, start, count = pointers[0], 0, rows[0]
    if TABLES > 1:
        here = table == 1
        pointer = tl.where(here, pointers[1], pointer)
        start, count = tl.where(here, rows[0] + 1, start), tl.where(here, rows[1], count)
    if TABLES > 2:
        here = table == 2
        pointer = tl.where(here, pointers[2], pointer)
        start, count = tl.where(here, rows[0] + rows[1] + 2, start), tl.where(here, rows[2], count)
    if TABLES > 3:
        here = table == 3
        pointer = tl.where(here, pointers[3], pointer)
        start, count = tl.where(here, rows[0] + rows[1] + rows[2] + 3, start), tl.where(here, rows[3], count)
    return pointer, start, count


@triton.jit
def _token(order_ptr, place, tokens, skipped):
    """The token at a sorted place; its number in `order` counts the tokens of the tables before, too."""
    return tl.load(order_ptr + place, mask=place < tokens, other=skipped).to(tl.int64) - skipped


@triton.jit
def _read(dsum_ptr, token, place, tokens, column, width):
    """A token's gradient, fp32 (1, COLUMNS)."""
    inside = (column < width) & (place < tokens)
    return tl.load(dsum_ptr + token * width + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _add(x, total, joined, key, after, target, column, width):
    """Add a row to the run's total; where the run ends, store the total and begin the next run from zero.

    `joined`: the run began in a chunk before. Places behind the last token have key -1 and store nothing.
    """
    out_ptr, start, rows, partial_ptr = target
    total += x
    ends, in_row = key != after, column < width
    row = key - start
    whole = ends & ~joined & (key >= 0) & (row < rows)
    tl.store(out_ptr + row.to(tl.int64) * width + column, narrow(total, out_ptr.dtype.element_ty), mask=in_row & whole)
    tl.store(partial_ptr + column, total, mask=in_row & ends & joined & (key >= 0))
    return tl.where(ends, 0.0, total), joined & ~ends


@triton.jit(do_not_specialize=RUNTIME)
def sum_runs(
    keys_ptr, order_ptr, dsum_ptr, out0_ptr, out1_ptr, out2_ptr, out3_ptr, partial_ptr,
    rows0, rows1, rows2, rows3, tokens, width, chunks, blocks,
    TABLES: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: tables x chunks x blocks of columns. partial (tables, chunks, 2, width): the end of a run that began in a
    chunk before, or its middle; and the beginning of one that goes on behind the chunk.
    """
    table, chunk, column = _place(chunks, blocks, COLUMNS)
    out_ptr, start, rows = _target(
        table, (out0_ptr, out1_ptr, out2_ptr, out3_ptr), (rows0, rows1, rows2, rows3), TABLES
    )
    partial_ptr += (table * chunks + chunk).to(tl.int64) * (width * 2)
    skipped = table.to(tl.int64) * tokens
    keys_ptr += skipped
    order_ptr += skipped
    target = (out_ptr, start, rows, partial_ptr)
    first = chunk * CHUNK
    key = tl.load(keys_ptr + first)
    joined = tl.load(keys_ptr + first - 1, mask=first > 0, other=-1) == key
    total = tl.zeros((1, COLUMNS), tl.float32)
    before = key
    for place in range(first, tl.minimum(first + CHUNK, tokens), GROUP):
        t0 = _token(order_ptr, place, tokens, skipped)
        t1 = _token(order_ptr, place + 1, tokens, skipped)
        t2 = _token(order_ptr, place + 2, tokens, skipped)
        t3 = _token(order_ptr, place + 3, tokens, skipped)
        k1 = tl.load(keys_ptr + place + 1, mask=place + 1 < tokens, other=-1)
        k2 = tl.load(keys_ptr + place + 2, mask=place + 2 < tokens, other=-1)
        k3 = tl.load(keys_ptr + place + 3, mask=place + 3 < tokens, other=-1)
        after = tl.load(keys_ptr + place + 4, mask=place + 4 < tokens, other=-1)
        x0 = _read(dsum_ptr, t0, place, tokens, column, width)
        x1 = _read(dsum_ptr, t1, place + 1, tokens, column, width)
        x2 = _read(dsum_ptr, t2, place + 2, tokens, column, width)
        x3 = _read(dsum_ptr, t3, place + 3, tokens, column, width)
        total, joined = _add(x0, total, joined, key, k1, target, column, width)
        total, joined = _add(x1, total, joined, k1, k2, target, column, width)
        total, joined = _add(x2, total, joined, k2, k3, target, column, width)
        total, joined = _add(x3, total, joined, k3, after, target, column, width)
        key, before = after, k3
    # Behind the last token both are -1: its run has ended.
    goes_on = (key == before) & (key >= 0)
    partial_ptr += tl.where(joined, 0, width)
    tl.store(partial_ptr + column, total, mask=(column < width) & goes_on)


@triton.jit(do_not_specialize=RUNTIME)
def join_runs(
    keys_ptr, out0_ptr, out1_ptr, out2_ptr, out3_ptr, partial_ptr,
    rows0, rows1, rows2, rows3, tokens, width, chunks, blocks,
    TABLES: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: tables x borders of chunks x blocks of columns; a run belongs to the first border that it crosses."""
    table, chunk, column = _place(chunks - 1, blocks, COLUMNS)
    out_ptr, start, rows = _target(
        table, (out0_ptr, out1_ptr, out2_ptr, out3_ptr), (rows0, rows1, rows2, rows3), TABLES
    )
    keys_ptr += table.to(tl.int64) * tokens
    first = chunk * CHUNK
    before = tl.load(keys_ptr + first - 1, mask=first > 0, other=-1)
    key = tl.load(keys_ptr + first + CHUNK - 1)
    if (key == tl.load(keys_ptr + first + CHUNK)) & (key != before) & (key - start < rows):
        in_row = column < width
        partial_ptr += (table * chunks).to(tl.int64) * (width * 2)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        piece = chunk + 1
        while tl.load(keys_ptr + piece * CHUNK, mask=piece < chunks, other=-1) == key:
            others = piece + tl.arange(0, ROWS)
            member = tl.load(keys_ptr + others * CHUNK, mask=others < chunks, other=-1) == key
            pointers = partial_ptr + (others.to(tl.int64) * (width * 2))[:, None] + column
            total += tl.load(pointers, mask=member[:, None] & in_row, other=0.0)
            piece += ROWS
        beginning = tl.load(partial_ptr + chunk.to(tl.int64) * (width * 2) + width + column, mask=in_row, other=0.0)
        total = narrow(beginning + tl.sum(total, 0, keep_dims=True), out_ptr.dtype.element_ty)
        tl.store(out_ptr + (key - start).to(tl.int64) * width + column, total, mask=in_row)


def _config(kernel: Any, dsum: Tensor) -> tuning.Config:
    shape = tuning.shape_class(dsum.dtype, False, max(dsum.shape[1], NARROWEST))
    return tuning.lookup(kernel.__name__, shape, architecture(dsum.device))


def table_gradients(dsum: Tensor, keys: Tensor, rows: list[int]) -> list[Tensor]:
    """The gradient (rows, width) of each table, in the dtype of `dsum` and zero where no token has the id."""
    (tables, tokens), width, device = keys.shape, dsum.shape[1], dsum.device
    gradients = [torch.zeros(count, width, dtype=dsum.dtype, device=device) for count in rows]
    if tokens == 0 or width == 0:
        return gradients
    sorted_keys, order = torch.sort(keys.view(-1), stable=True)
    runs, joins = _config(sum_runs, dsum), _config(join_runs, dsum)
    chunk = runs.constants["CHUNK"]
    chunks = triton.cdiv(tokens, chunk)
    partial = torch.empty(tables, chunks, 2, width, dtype=torch.float32, device=device)
    absent = 4 - tables
    outputs = (*gradients, *[None] * absent, partial)
    sizes = (*rows, *[0] * absent, tokens, width, chunks)
    blocks = triton.cdiv(width, runs.constants["COLUMNS"])
    grid = (tables * chunks * blocks,)
    launch(sum_runs, grid, sorted_keys, order, dsum, *outputs, *sizes, blocks, TABLES=tables, config=runs)
    blocks = triton.cdiv(width, joins.constants["COLUMNS"])
    grid = (tables * (chunks - 1) * blocks,)
    launch(join_runs, grid, sorted_keys, *outputs, *sizes, blocks, TABLES=tables, CHUNK=chunk, config=joins)
    return gradients
