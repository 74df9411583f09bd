"""The shipped configurations of GELU with a bias, and of the products with GELU in their epilogue.

Chosen by registers, spills and shared memory of compiled code and by arithmetic, not by time: no GPU has been measured
yet. Products: tiles of 128 x 128 on eight warps, so that two programs run on a multiprocessor of Hopper or Blackwell
(128 registers a thread, 96 KiB of tiles in flight each) and one multiplies while the other computes GELU. One program
with 128 x 256 reads a third less from the second-level cache, but its matrix units wait during its epilogue, which at a
depth of 768 takes about half as long as the product.

OWN=1 prefers that product to the library's with `bias_gelu` after it. It pays above roughly 450 TFLOP/s on an H200, by
the bytes that the separate pass reads and writes; taken for granted on sm_90 and sm_100 alone.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

SHALLOWEST, DEEPEST = 256, 4096
_DEPTHS = tuple(1 << power for power in range(8, 13))


def _rows(rows: int, columns: int, num_warps: int) -> dict[str, Config]:
    """In fp32 half as many rows, which are as many bytes."""
    return {
        "half": Config(constants={"ROWS": rows, "COLUMNS": columns}, num_warps=num_warps),
        "ieee": Config(constants={"ROWS": rows // 2, "COLUMNS": columns}, num_warps=num_warps),
    }


def _product(
    rows: int,
    columns: int,
    depth: int,
    width: int,
    num_warps: int,
    num_stages: int,
    *,
    tma: int = 0,
    own: int = 0,
    max_registers: int = 0,
) -> dict[str, Config]:
    constants = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "WIDTH": width, "TMA": tma, "OWN": own}
    config = Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)
    return {f"half-{deep}": config for deep in _DEPTHS}


_PASSES: Table = {"bias_gelu_forward": _rows(8, 512, 4), "bias_gelu_backward": _rows(8, 512, 4)}
_HOPPER: Table = {
    **_PASSES,
    "product_gelu": _product(128, 128, 64, 32, 8, 3, tma=1, own=1, max_registers=128),
    # Wider slices spill: on Blackwell, whose sums come out of tensor memory, and everywhere with triton 3.6.
    "product_gelu_gradient": _product(128, 128, 64, 16, 8, 3, tma=1, own=1, max_registers=128),
}
_AMPERE: Table = {
    **_PASSES,
    "product_gelu": _product(128, 128, 32, 32, 4, 4),
    "product_gelu_gradient": _product(128, 128, 32, 32, 4, 4),
}
TABLES: dict[str, Table] = {
    "sm_80": _AMPERE,
    "sm_86": _AMPERE,
    "sm_90": _HOPPER,
    "sm_100": _HOPPER,
    # The shared memory of the older ones for desktops.
    "sm_120": _AMPERE,
    "gfx942": {
        **_PASSES,
        "product_gelu": _product(128, 128, 64, 32, 4, 2),
        "product_gelu_gradient": _product(128, 128, 64, 32, 4, 2),
    },
    "interpreter": {
        "bias_gelu_forward": _rows(8, 512, 4),
        "bias_gelu_backward": _rows(8, 512, 4),
        "product_gelu": _product(32, 64, 32, 32, 4, 1, own=1),
        "product_gelu_gradient": _product(32, 64, 32, 32, 4, 1, own=1),
    },
}
# The sizes that the kernels are written for.
SIZES = {
    "ROWS": tuple(1 << power for power in range(9)),
    "COLUMNS": tuple(1 << power for power in range(4, 14)),
    "DEPTH": (16, 32, 64, 128),
    "WIDTH": (16, 32, 64, 128, 256),
    "TMA": (0, 1),
    "OWN": (0, 1),
}
