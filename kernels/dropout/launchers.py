"""Dropout of token vectors on its own, where no other kernel fuses it: x * mask, forward and backward alike.

x and out (tokens, width); key int64 (sequences,), sequence and offset int64 (tokens,). Reads x and writes out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastbert.kernels.common import narrow
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.dropout.inputs import DropoutInputs, kernel_arguments
from fastbert.kernels.launch import launch
from fastbert.kernels.token_dropout import keep_mask, load_key_and_offset

# Eight columns per thread, so that a thread computes only the blocks of random numbers that it needs.
CONFIG = Config(constants={"BLOCK_M": 8, "BLOCK_N": 128}, num_warps=4)


@triton.jit(do_not_specialize=["tokens", "sequences", "site", "threshold"])
def drop_tokens(
    x_ptr, out_ptr, key_ptr, sequence_ptr, offset_ptr, tokens, sequences, width, keep_scale, threshold, site,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Grid: blocks of BLOCK_M tokens, blocks of BLOCK_N columns."""
    first = tl.program_id(0).to(tl.int64) * BLOCK_M
    row, column = tl.arange(0, BLOCK_M)[:, None], tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    exists = row < tokens - first
    key, offset = load_key_and_offset(key_ptr, sequence_ptr + first, offset_ptr + first, row, exists, sequences)
    inside = exists & (column < width)
    x = tl.load(x_ptr + first * width + (row * width + column), mask=inside, other=0.0).to(tl.float32)
    keep = keep_mask(key, offset, tl.program_id(1) * BLOCK_N, site, threshold, BLOCK_M, BLOCK_N)
    x = tl.where(keep, x * keep_scale, 0.0)
    tl.store(out_ptr + first * width + (row * width + column), narrow(x, out_ptr.dtype.element_ty), mask=inside)


def apply(x: Tensor, dropout: DropoutInputs) -> Tensor:
    """Return x (tokens, width) with elements dropped and the others scaled, contiguous."""
    x = x.contiguous()
    out = torch.empty_like(x)
    tokens, width = x.shape
    grid = (triton.cdiv(tokens, CONFIG.constants["BLOCK_M"]), triton.cdiv(width, CONFIG.constants["BLOCK_N"]))
    tensors, sequences, numbers = kernel_arguments(dropout)
    launch(drop_tokens, grid, x, out, *tensors, tokens, sequences, width, *numbers, config=CONFIG)
    return out
