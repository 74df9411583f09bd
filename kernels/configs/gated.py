"""The default configurations of the kernels of gated activations: passes over memory, with 8 elements of each
tensor per thread, 16 bytes of half precision."""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table


def _rows(rows: int, columns: int, warps: int) -> dict[str, Config]:
    """Return one configuration for both arithmetics."""
    config = Config(constants={"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=warps)
    return {"half": config, "ieee": config}


def _passes(rows: int, columns: int) -> Table:
    return {"gated_forward": _rows(rows, columns, 4), "gated_backward": _rows(rows, columns, 4)}


TABLES: dict[str, Table] = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942"), _passes(4, 256)),
    # The interpreter takes as long for a program whatever its tile.
    "interpreter": _passes(64, 1024),
}
# The sizes that the kernels are written for.
SIZES = {"BLOCK_M": tuple(1 << power for power in range(9)), "BLOCK_N": tuple(1 << power for power in range(4, 14))}
