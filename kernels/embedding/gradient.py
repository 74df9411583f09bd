"""Gradients of embedding tables: the gradients of the tokens with one id summed into its row, in a fixed order.

dsum (tokens, width), keys int32 (tables, tokens): the row of a token's id, counted over all tables, each with an extra
key at its end for ignored tokens. The keys of all tables are sorted at once, stably and on the device; the sorted
positions from t * tokens on belong to table t. `sum_runs` walks the positions in chunks of CHUNK. A run of equal keys
that begins and ends in a chunk is written to its row; the piece of a run that crosses a chunk boundary becomes a row of
`partial`, and `join_runs` adds the pieces, many at a time, so that no program does most of the work, even if half of
the tokens have one id or a table has one row. No atomics: the same bits on every run.
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
# Rows that are read before the first one is added.
GROUP = tl.constexpr(4)


@triton.jit
def _program_tile(chunks, blocks, BLOCK_N: tl.constexpr):
    """Return table, chunk and (1, BLOCK_N) columns of this program; programs that share keys are neighbours."""
    program = tl.program_id(0)
    column = (program % blocks) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    program = program // blocks
    return program // chunks, program % chunks, column


@triton.jit
def _target(table, pointers, rows, TABLES: tl.constexpr):
    """Return a table's gradient, its first key and its number of rows."""
    pointer, start, count = pointers[0], 0, rows[0]
    if TABLES > 1:
        is_table = table == 1
        pointer = tl.where(is_table, pointers[1], pointer)
        start, count = tl.where(is_table, rows[0] + 1, start), tl.where(is_table, rows[1], count)
    if TABLES > 2:
        is_table = table == 2
        pointer = tl.where(is_table, pointers[2], pointer)
        start, count = tl.where(is_table, rows[0] + rows[1] + 2, start), tl.where(is_table, rows[2], count)
    if TABLES > 3:
        is_table = table == 3
        pointer = tl.where(is_table, pointers[3], pointer)
        start, count = tl.where(is_table, rows[0] + rows[1] + rows[2] + 3, start), tl.where(is_table, rows[3], count)
    return pointer, start, count


@triton.jit
def _token(order_ptr, position, tokens, table_start):
    """Return the token at a sorted position; its index in `order` includes the tokens of the tables before."""
    return tl.load(order_ptr + position, mask=position < tokens, other=table_start).to(tl.int64) - table_start


@triton.jit
def _read(dsum_ptr, token, position, tokens, column, width):
    """Return a token's gradient, fp32 (1, BLOCK_N)."""
    inside = (column < width) & (position < tokens)
    return tl.load(dsum_ptr + token * width + column, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _add(x, total, joined, key, after, target, column, width):
    """Add a row to the run's total; where the run ends, store the total and begin the next run from zero.

    `joined`: the run began in an earlier chunk. Positions after the last token have key -1 and store nothing.
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
    TABLES: tl.constexpr, CHUNK: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: tables x chunks x blocks of columns.

    partial (tables, chunks, 2, width): the middle or end of a run that began in an earlier chunk; and the beginning of
    a run that continues in the next chunk.
    """
    table, chunk, column = _program_tile(chunks, blocks, BLOCK_N)
    out_ptr, start, rows = _target(
        table, (out0_ptr, out1_ptr, out2_ptr, out3_ptr), (rows0, rows1, rows2, rows3), TABLES
    )
    partial_ptr += (table * chunks + chunk).to(tl.int64) * (width * 2)
    table_start = table.to(tl.int64) * tokens
    keys_ptr += table_start
    order_ptr += table_start
    target = (out_ptr, start, rows, partial_ptr)
    first = chunk * CHUNK
    key = tl.load(keys_ptr + first)
    joined = tl.load(keys_ptr + first - 1, mask=first > 0, other=-1) == key
    total = tl.zeros((1, BLOCK_N), tl.float32)
    before = key
    for position in range(first, tl.minimum(first + CHUNK, tokens), GROUP):
        t0 = _token(order_ptr, position, tokens, table_start)
        t1 = _token(order_ptr, position + 1, tokens, table_start)
        t2 = _token(order_ptr, position + 2, tokens, table_start)
        t3 = _token(order_ptr, position + 3, tokens, table_start)
        k1 = tl.load(keys_ptr + position + 1, mask=position + 1 < tokens, other=-1)
        k2 = tl.load(keys_ptr + position + 2, mask=position + 2 < tokens, other=-1)
        k3 = tl.load(keys_ptr + position + 3, mask=position + 3 < tokens, other=-1)
        after = tl.load(keys_ptr + position + 4, mask=position + 4 < tokens, other=-1)
        x0 = _read(dsum_ptr, t0, position, tokens, column, width)
        x1 = _read(dsum_ptr, t1, position + 1, tokens, column, width)
        x2 = _read(dsum_ptr, t2, position + 2, tokens, column, width)
        x3 = _read(dsum_ptr, t3, position + 3, tokens, column, width)
        total, joined = _add(x0, total, joined, key, k1, target, column, width)
        total, joined = _add(x1, total, joined, k1, k2, target, column, width)
        total, joined = _add(x2, total, joined, k2, k3, target, column, width)
        total, joined = _add(x3, total, joined, k3, after, target, column, width)
        key, before = after, k3
    # Beyond the last token both are -1: its run has ended.
    continues = (key == before) & (key >= 0)
    partial_ptr += tl.where(joined, 0, width)
    tl.store(partial_ptr + column, total, mask=(column < width) & continues)


@triton.jit(do_not_specialize=RUNTIME)
def join_runs(
    keys_ptr, out0_ptr, out1_ptr, out2_ptr, out3_ptr, partial_ptr,
    rows0, rows1, rows2, rows3, tokens, width, chunks, blocks,
    TABLES: tl.constexpr, CHUNK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: tables x chunk boundaries x blocks of columns; a run belongs to the first boundary that it crosses."""
    table, chunk, column = _program_tile(chunks - 1, blocks, BLOCK_N)
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
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        piece = chunk + 1
        while tl.load(keys_ptr + piece * CHUNK, mask=piece < chunks, other=-1) == key:
            pieces = piece + tl.arange(0, BLOCK_M)
            member = tl.load(keys_ptr + pieces * CHUNK, mask=pieces < chunks, other=-1) == key
            pointers = partial_ptr + (pieces.to(tl.int64) * (width * 2))[:, None] + column
            total += tl.load(pointers, mask=member[:, None] & in_row, other=0.0)
            piece += BLOCK_M
        beginning = tl.load(partial_ptr + chunk.to(tl.int64) * (width * 2) + width + column, mask=in_row, other=0.0)
        total = narrow(beginning + tl.sum(total, 0, keep_dims=True), out_ptr.dtype.element_ty)
        tl.store(out_ptr + (key - start).to(tl.int64) * width + column, total, mask=in_row)


def _config(kernel: Any, dsum: Tensor) -> tuning.Config:
    shape = tuning.shape_class(dsum.dtype, False, max(dsum.shape[1], NARROWEST))
    return tuning.lookup(kernel.__name__, shape, architecture(dsum.device))


def table_gradients(dsum: Tensor, keys: Tensor, rows: list[int]) -> list[Tensor]:
    """Return the gradient (rows, width) of each table, in the dtype of `dsum` and zero where no token has the id."""
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
    blocks = triton.cdiv(width, runs.constants["BLOCK_N"])
    grid = (tables * chunks * blocks,)
    launch(sum_runs, grid, sorted_keys, order, dsum, *outputs, *sizes, blocks, TABLES=tables, config=runs)
    blocks = triton.cdiv(width, joins.constants["BLOCK_N"])
    grid = (tables * (chunks - 1) * blocks,)
    launch(join_runs, grid, sorted_keys, *outputs, *sizes, blocks, TABLES=tables, CHUNK=chunk, config=joins)
    return gradients
