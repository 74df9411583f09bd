"""Sums over rows in two stages and a fixed order: the gradients of vectors that all rows share.

A kernel with rows to sum runs as few programs as fill the device, each of which keeps its sums in registers and writes
one partial row at its end; `column_sums` adds the partial rows. No atomics: the same bits on every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.launch import interpreted, launch, multiprocessors

CONFIG = Config(constants={"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4)
# The interpreter takes as long for a program whatever its tile.
INTERPRETED_CONFIG = Config(constants={"BLOCK_M": 64, "BLOCK_N": 1024})
# Of the first stage, per multiprocessor.
PROGRAMS = 2
# What a launcher returns of partial rows (rows, ...): their sums, or the rows themselves, for a caller that adds them.
Reduction: TypeAlias = Callable[[Tensor], Tensor]


@triton.jit(do_not_specialize=["rows"])
def sum_columns(partial_ptr, out_ptr, rows, columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """partial (rows, columns) fp32 -> out (columns,) fp32. Grid: blocks of BLOCK_N columns."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    row = tl.arange(0, BLOCK_M)[:, None]
    inside = column < columns
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, rows, BLOCK_M):
        offset = (first + row).to(tl.int64) * columns + column
        total += tl.load(partial_ptr + offset, mask=(first + row < rows) & inside, other=0.0)
    total = tl.sum(total, 0, keep_dims=True)
    tl.store(out_ptr + column, total, mask=inside)


def programs_for(device: torch.device, blocks: int) -> int:
    """Return how many programs share `blocks` of rows: at least one, at most PROGRAMS per multiprocessor."""
    return max(1, min(blocks, PROGRAMS * multiprocessors(device)))


def column_sums(partial: Tensor) -> Tensor:
    """Return (..., columns) fp32, the sums over the first axis of `partial`, which is fp32 and contiguous."""
    out = torch.empty(partial.shape[1:], dtype=torch.float32, device=partial.device)
    if out.numel():
        config = INTERPRETED_CONFIG if interpreted() else CONFIG
        grid = (triton.cdiv(out.numel(), config.constants["BLOCK_N"]),)
        launch(sum_columns, grid, partial, out, partial.shape[0], out.numel(), config=config)
    return out


def unreduced(partial: Tensor) -> Tensor:
    """Return `partial` itself: the `Reduction` for callers that sum partial rows of several kernels in one launch."""
    return partial
