"""The gradient of a table of relative positions from the sums that `tables` leaves by distance.

A row of the table is the position of all distances that fall into its bucket. A program adds the halves and parts of
those of one row and head, in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fastbert.kernels.common import narrow


@triton.jit(do_not_specialize=["distances", "rows", "diagonals", "parts"])
def positional_buckets(
    sums_ptr, buckets_ptr, out_ptr, distances, rows, diagonals, parts,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum (parts, HEADS, diagonals, 2, BLOCK, HEAD_DIM) fp32 into out (rows, HEADS, HEAD_DIM); grid: rows x heads.

    Blocks of distances begin with the lower half of the first diagonal; from the second on, a block is the upper half
    of a diagonal and the lower one of the next.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    column, index = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, CHUNK)[:, None]
    center, total = (diagonals + 1) // 2 * BLOCK - 1, tl.zeros((CHUNK, BLOCK_D), tl.float32)
    for here in range(0, (diagonals + 1) * BLOCK, CHUNK):
        distance = here + index - center + distances // 2
        present = (distance >= 0) & (distance < distances)
        bucket = tl.load(buckets_ptr + distance, mask=present, other=-1)
        # As forward reads it.
        chosen = present & (tl.minimum(tl.maximum(bucket, 0), rows - 1) == row)
        block, place = here // BLOCK, here % BLOCK + index
        for part in range(parts):
            first = ((part * HEADS + head) * diagonals + block).to(tl.int64) * (2 * BLOCK) + place
            lower = chosen & (block < diagonals) & (column < HEAD_DIM)
            upper = chosen & (block > 0) & (column < HEAD_DIM)
            total += tl.load(sums_ptr + first * HEAD_DIM + column, mask=lower, other=0.0)
            total += tl.load(sums_ptr + (first - BLOCK) * HEAD_DIM + column, mask=upper, other=0.0)
    out_ptr += (row.to(tl.int64) * HEADS + head) * HEAD_DIM + tl.arange(0, BLOCK_D)
    total = narrow(tl.sum(total, 0), out_ptr.dtype.element_ty)
    tl.store(out_ptr, total, mask=tl.arange(0, BLOCK_D) < HEAD_DIM)
