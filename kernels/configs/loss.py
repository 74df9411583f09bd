"""The shipped configurations of the cross-entropy kernels.

The class of a vocabulary says how wide a block of its columns is; vocabularies beyond WIDEST are read in more blocks.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

NARROWEST, WIDEST = 1024, 2048


def _table(threads: int, rows_of_program: int = 2) -> Table:
    """For warps of `threads` threads; two rows a program halve how often the bias is read.

    Each thread has 16 to 32 bytes of a row to wait for at a time, and 16 at least: else two threads would read an
    element that one of them writes.
    """
    rows: dict[str, Config] = {}
    sums: dict[str, Config] = {}
    for kind in ("half", "ieee"):
        for columns in (NARROWEST, WIDEST):
            warps = columns // (8 * threads)
            rows[f"{kind}-{columns}"] = Config(constants={"ROWS": rows_of_program, "COLUMNS": columns}, num_warps=warps)
            sums[f"{kind}-{columns}"] = Config(constants={"ROWS": 64, "COLUMNS": 64}, num_warps=4)
    scale = {"any": Config(constants={"COLUMNS": 2048}, num_warps=4)}
    return {"cross_entropy": rows, "add_rows": sums, "scale": scale}


TABLES: dict[str, Table] = {
    **{target: _table(32) for target in ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")},
    "gfx942": _table(64),
    # One program runs after the other, and each costs the same whatever its size.
    "interpreter": _table(32, 8),
}
# The sizes that the kernels are written for.
SIZES = {"ROWS": tuple(1 << power for power in range(9)), "COLUMNS": tuple(1 << power for power in range(5, 14))}
