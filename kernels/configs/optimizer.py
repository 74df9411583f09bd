"""The default configurations of the optimiser's kernels, which stream flat fp32 buffers.

Chosen by registers of compiled code, not by time: no GPU has been measured yet. AdamW reads and writes four fp32
numbers per parameter; with eight parameters per thread, six to eight programs of four warps fit on a multiprocessor.
The sums for vectors have the tiles of `columns.py`.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table


def _table(block: int, *, columns: int = 32, max_registers: int = 0) -> Table:
    """Return the table for flat blocks of `block` elements and tiles of `columns` columns."""
    return {
        "sum_squares": {"any": Config(constants={"BLOCK": block})},
        # One program, which loops over the parameters.
        "begin_step": {"any": Config(constants={"BLOCK": 512})},
        "adamw": {"any": Config(constants={"BLOCK": block}, max_registers=max_registers)},
        # Over the blocks of `adamw`, and one program per parameter, which loops over its blocks.
        "tensor_sums": {"any": Config(constants={"BLOCK": block}, max_registers=max_registers)},
        "scale_rates": {"any": Config(constants={"BLOCK": 512})},
        "sum_rows": {"any": Config(constants={"BLOCK_M": 64, "BLOCK_N": max(columns, 64)})},
        "add_partial_sums": {"any": Config(constants={"BLOCK_M": 64, "BLOCK_N": columns})},
    }


TABLES: dict[str, Table] = {
    # Without a limit ptxas takes 64 registers and spills eight bytes on Blackwell.
    **{target: _table(1024, max_registers=80) for target in ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120")},
    "gfx942": _table(2048),
    # Programs run one after the other, and each takes about the same time whatever its size.
    "interpreter": _table(8192, columns=1024),
}
# The sizes that the kernels are written for.
SIZES = {
    "BLOCK": tuple(1 << power for power in range(8, 15)),
    "BLOCK_M": tuple(1 << power for power in range(4, 9)),
    "BLOCK_N": tuple(1 << power for power in range(5, 11)),
}
