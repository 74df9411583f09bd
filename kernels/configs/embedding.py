"""The default configurations of the embedding kernels, by the padded width of a row.

Whole rows stay in registers. Dropout shares a block of random numbers among eight columns, and rows narrower than 32
would leave lanes idle, so a row is padded to at least 32.
"""

from __future__ import annotations

from dataclasses import replace

from fastbert.kernels.configs.configuration import Config, Table

NARROWEST, WIDEST = 32, 8192


def _rows(elements: int, num_warps: int, registers: dict[int, int] | None = None) -> dict[str, Config]:
    """Return configurations of about `elements` elements per program, with more warps from twice as wide rows on.

    Narrow rows, which need a pointer each, get a quarter of the elements. `registers`: limit per thread by width, where
    ptxas would spill.
    """
    table = {}
    width = NARROWEST
    while width <= WIDEST:
        rows = max(1, (elements if width > 64 else elements // 4) // width)
        warps = num_warps * max(1, width // (2 * elements))
        most = (registers or {}).get(width, 0)
        config = Config(constants={"BLOCK_M": rows, "BLOCK_N": width}, num_warps=warps, max_registers=most)
        table |= {f"half-{width}": config, f"ieee-{width}": config}
        width *= 2
    return table


def _runs(warp: int) -> dict[str, Config]:
    """Return configurations of one warp of `warp` lanes per program; each lane reads 16 bytes of a row."""
    table = {}
    width = NARROWEST
    while width <= WIDEST:
        for kind, lane in (("half", 8), ("ieee", 4)):
            columns = min(width, warp * lane)
            table[f"{kind}-{width}"] = Config(constants={"CHUNK": 64, "BLOCK_N": columns}, num_warps=1)
        width *= 2
    return table


def _joins(num_warps: int) -> dict[str, Config]:
    """Return configurations that read many rows at a time: few programs have anything to join."""
    table = {}
    width = NARROWEST
    while width <= WIDEST:
        config = Config(constants={"BLOCK_M": 64, "BLOCK_N": min(width, 64)}, num_warps=num_warps)
        table |= {f"half-{width}": config, f"ieee-{width}": config}
        width *= 2
    return table


def _table(num_warps: int, warp: int) -> Table:
    return {
        "embedding_forward": _rows(2048, num_warps, {256: 80} if warp == 32 else None),
        "embedding_backward": _rows(2048, 2 * num_warps),
        "sum_runs": _runs(warp),
        "join_runs": _joins(num_warps),
    }


def _blackwell() -> Table:
    """Return a table whose widest rows have 8 warps: they need more than the 128 registers that 16 leave a thread."""
    table = _table(4, 32)
    backward = table["embedding_backward"]
    widest = {shape: replace(backward[shape], num_warps=8) for shape in (f"half-{WIDEST}", f"ieee-{WIDEST}")}
    return {**table, "embedding_backward": backward | widest}


TABLES: dict[str, Table] = {
    **{target: _table(4, 32) for target in ("sm_80", "sm_86", "sm_90", "sm_120")},
    "sm_100": _blackwell(),
    "gfx942": _table(2, 64),
    # The interpreter takes as long for a wide row as for a narrow one.
    "interpreter": _table(4, 256),
}
# The values that the kernels support.
SIZES = {
    "BLOCK_M": tuple(1 << power for power in range(8)),
    "BLOCK_N": tuple(1 << power for power in range(5, 14)),
    "CHUNK": tuple(1 << power for power in range(3, 9)),
}
