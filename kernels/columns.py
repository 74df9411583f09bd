"""Sums over rows in two stages and a fixed order: the gradients of weights that every row has used.

A kernel with rows to sum runs as few programs as fill the device, each of which keeps its sums in registers and writes
one partial row at its end; `column_sums` adds the partial rows up. No atomics: the same bits on every run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.launch import interpreted, launch, multiprocessors

CONFIG = Config(constants={"ROWS": 64, "COLUMNS": 32}, num_warps=4)
# The interpreter takes as long for a program whatever its tile.
INTERPRETED_CONFIG = Config(constants={"ROWS": 64, "COLUMNS": 1024})
PROGRAMS = 2  # of the first stage, on each multiprocessor


@triton.jit(do_not_specialize=["rows"])
def sum_columns(partial_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """partial (rows, columns) fp32 -> out (columns,) fp32. Grid: blocks of COLUMNS columns."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    inside = column < columns
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, rows, ROWS):
        offset = (first + row).to(tl.int64) * columns + column
        total += tl.load(partial_ptr + offset, mask=(first + row < rows) & inside, other=0.0)
    total = tl.sum(total, 0, keep_dims=True)
    tl.store(out_ptr + column, total, mask=inside)


def parts(device: torch.device, blocks: int) -> int:
    """How many programs share `blocks` of rows: at least one, at most PROGRAMS on each multiprocessor."""
    return max(1, min(blocks, PROGRAMS * multiprocessors(device)))


def column_sums(partial: Tensor) -> Tensor:
    """(parts, ..., columns) fp32, contiguous -> (..., columns) fp32."""
    out = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    if out.numel():
        config = INTERPRETED_CONFIG if interpreted() else CONFIG
        grid = (triton.cdiv(out.numel(), config.constants["COLUMNS"]),)
        launch(sum_columns, grid, partial, out, partial.shape[0], out.numel(), config=config)
    return out
