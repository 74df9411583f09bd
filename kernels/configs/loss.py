"""The default configurations of the cross-entropy kernels.

The shape class is the width of a block of columns; vocabularies beyond WIDEST are read in more blocks.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

NARROWEST, WIDEST = 1024, 2048


def _table(threads: int, rows_per_program: int = 2) -> Table:
    """Return the table for warps of `threads` threads; two rows per program halve the reads of the bias.

    Each thread loads 16 to 32 bytes of a row at a time; with fewer, two threads would read an element that one of them
    writes.
    """
    rows: dict[str, Config] = {}
    sums: dict[str, Config] = {}
    for kind in ("half", "ieee"):
        for columns in (NARROWEST, WIDEST):
            warps = columns // (8 * threads)
            rows[f"{kind}-{columns}"] = Config(
                constants={"BLOCK_M": rows_per_program, "BLOCK_N": columns}, num_warps=warps
            )
            sums[f"{kind}-{columns}"] = Config(constants={"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=4)
    scale = {"any": Config(constants={"BLOCK_N": 2048}, num_warps=4)}
    return {"cross_entropy": rows, "add_rows": sums, "scale": scale}


TABLES: dict[str, Table] = {
    **{target: _table(32) for target in ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")},
    "gfx942": _table(64),
    # Programs run one after the other, and each takes the same time whatever its size.
    "interpreter": _table(32, 8),
}
# The sizes that the kernels are written for.
SIZES = {"BLOCK_M": tuple(1 << power for power in range(9)), "BLOCK_N": tuple(1 << power for power in range(5, 14))}
