"""Dropout of token vectors on its own, where no other kernel does it by the way: x * mask, forward and backward alike.

x and out (tokens, width); key int64 (sequences,), sequence and offset int64 (tokens,). Reads x and writes out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.common import narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.launch import launch
from fastbert.kernels.token_dropout import kept_columns, token_place
from fastbert.ops.dropout.op import TokenDropout, quantized

# Eight columns a thread, so that a thread computes just the blocks of random numbers that it needs.
CONFIG = Config(constants={"ROWS": 8, "COLUMNS": 128}, num_warps=4)


@triton.jit(do_not_specialize=["tokens", "sequences", "site", "threshold"])
def drop_tokens(
    x_ptr, out_ptr, key_ptr, sequence_ptr, offset_ptr, tokens, sequences, width, site, threshold, keep_scale,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of ROWS tokens, blocks of COLUMNS columns."""
    first = tl.program_id(0).to(tl.int64) * ROWS
    row, column = tl.arange(0, ROWS)[:, None], tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    exists = row < tokens - first
    key, offset = token_place(key_ptr, sequence_ptr + first, offset_ptr + first, row, exists, sequences)
    inside = exists & (column < width)
    x = tl.load(x_ptr + first * width + (row * width + column), mask=inside, other=0.0).to(tl.float32)
    keep = kept_columns(key, offset, tl.program_id(1) * COLUMNS, site, threshold, ROWS, COLUMNS)
    x = tl.where(keep, x * keep_scale, 0.0)
    tl.store(out_ptr + first * width + (row * width + column), narrow(x, out_ptr.dtype.element_ty), mask=inside)


def apply(x: Tensor, dropout: TokenDropout) -> Tensor:
    """x (tokens, width) with elements dropped, contiguous."""
    x = x.contiguous()
    out = torch.empty_like(x)
    tokens, width = x.shape
    threshold, keep_scale = quantized(dropout.p)
    grid = (triton.cdiv(tokens, CONFIG.constants["ROWS"]), triton.cdiv(width, CONFIG.constants["COLUMNS"]))
    places = (dropout.key.contiguous(), dropout.sequence_ids.contiguous(), dropout.offsets.contiguous())
    launch(
        drop_tokens, grid, x, out, *places, tokens, dropout.key.shape[0], width, dropout.site, threshold, keep_scale,
        config=CONFIG,
    )  # fmt: skip
    return out
