"""The default configurations of the softmax kernels.

Whole rows stay in registers up to the widest class; the class after it holds all longer rows, read in blocks. Dropout
shares blocks of random numbers among 32 keys, so a row is padded to at least 32.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

NARROWEST, WIDEST = 32, 16384


def _softmax(elements: int, num_warps: int) -> dict[str, Config]:
    """Return configurations of about `elements` elements per program, with warps in proportion for longer rows.

    Narrow rows have a pointer each, which occupies registers: they get a quarter of the elements.
    """
    table = {}
    width = NARROWEST
    while width <= 2 * WIDEST:
        keys = width if width <= WIDEST else WIDEST // 2
        warps = num_warps * max(1, keys // elements)
        rows = max(1, (elements if keys > 64 else elements // 4) // keys)
        config = Config(constants={"BLOCK_M": rows, "BLOCK_N": keys}, num_warps=warps)
        table |= {f"half-{width}": config, f"ieee-{width}": config}
        width *= 2
    return table


def _table(num_warps: int) -> Table:
    return {kernel: _softmax(4096, num_warps) for kernel in ("softmax_forward", "softmax_backward")}


TABLES: dict[str, Table] = {
    **{target: _table(4) for target in ("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "interpreter")},
    "gfx942": _table(2),
}
# The values that the kernels support.
SIZES = {"BLOCK_M": tuple(1 << power for power in range(9)), "BLOCK_N": tuple(1 << power for power in range(5, 15))}
