"""The default configurations of the attention kernels.

Chosen by registers and shared memory of compiled code (no spills, two programs on a multiprocessor of the short path),
not by time: no GPU has been measured yet. A shape class without `-masked` holds for both.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table


def _short(max_seqlen: int, rows: int = 128, num_warps: int = 4) -> Config:
    """Return one of the short path: the longest sequence it computes (0: none), and the rows of several heads."""
    return Config(constants={"MAX_SEQLEN": max_seqlen, "BLOCK_ROWS": rows}, num_warps=num_warps)


def _tile(queries: int, keys: int, num_warps: int, num_stages: int, max_registers: int = 0) -> Config:
    constants = {"BLOCK_M": queries, "BLOCK_N": keys}
    return Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)


_HOPPER = {
    "forward_short": {
        "half-32": _short(128),
        "half-64": _short(128),
        "half-128": _short(128, 64),
        "half-128-masked": _short(64, 64),
        "tf32-32": _short(64),
        "tf32-64": _short(64),
        "tf32-128": _short(0),
        "ieee-32": _short(0),
        "ieee-64": _short(0),
        "ieee-128": _short(0),
    },
    "forward_long": {
        "half-32": _tile(128, 64, 8, 3),
        "half-64": _tile(128, 64, 8, 3),
        "half-128": _tile(128, 64, 8, 3),
        "half-128-masked": _tile(128, 32, 8, 3),
        "tf32-32": _tile(64, 32, 4, 2),
        "tf32-64": _tile(64, 32, 4, 2),
        "tf32-128": _tile(64, 32, 8, 2),
        "ieee-32": _tile(32, 32, 4, 1, 255),
        "ieee-64": _tile(32, 32, 8, 1, 168),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_short": {
        "half-32": _short(128),
        "half-32-masked": _short(64),
        "half-64": _short(128),
        "half-64-masked": _short(64),
        "half-128": _short(0),
        "tf32-32": _short(32),
        "tf32-64": _short(32, 64),
        "tf32-128": _short(0),
        "ieee-32": _short(0),
        "ieee-64": _short(0),
        "ieee-128": _short(0),
    },
    "backward_queries": {
        "half-32": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 64, 8, 2),
        "tf32-32": _tile(64, 32, 4, 1),
        "tf32-64": _tile(64, 32, 4, 1),
        "tf32-128": _tile(16, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 16, 1, 128),
    },
    "backward_keys": {
        "half-32": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 64, 4, 2),
        "half-64-masked": _tile(64, 64, 8, 1, 255),
        "half-128": _tile(32, 64, 8, 1),
        "tf32-32": _tile(32, 64, 4, 1),
        "tf32-64": _tile(32, 64, 4, 1),
        "tf32-128": _tile(32, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 8, 1, 255),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_bias": {
        "half-32": _tile(64, 64, 4, 1),
        "half-64": _tile(64, 64, 4, 1),
        "half-128": _tile(64, 64, 8, 1),
        "tf32-32": _tile(32, 32, 4, 1),
        "tf32-64": _tile(32, 32, 4, 1),
        "tf32-128": _tile(16, 32, 8, 1),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
}
# Small tiles, so that small tests have several of them.
_INTERPRETER = {
    kernel: {f"{kind}-{width}": config for kind in ("half", "tf32", "ieee") for width in (32, 64, 128)}
    for kernel, config in {
        "forward_short": _short(128),
        "forward_long": _tile(32, 64, 4, 1),
        "backward_short": _short(128),
        "backward_queries": _tile(64, 32, 4, 1),
        "backward_keys": _tile(32, 64, 4, 1),
        "backward_bias": _tile(32, 64, 4, 1),
    }.items()
}


def _changed(base: Table, **changes: dict[str, Config]) -> Table:
    """Return `base` with other configurations for some shape classes of some kernels."""
    return {kernel: entries | changes.get(kernel, {}) for kernel, entries in base.items()}


# Its matrix units take both operands from registers.
_AMPERE = _changed(
    _HOPPER,
    forward_long={"half-128-masked": _tile(64, 64, 8, 2), "ieee-32": _tile(32, 32, 4, 1, 168)},
    backward_short={"half-64": _short(64)},
    backward_queries={"half-64": _tile(64, 32, 4, 2)},
    backward_keys={
        "half-64": _tile(64, 64, 8, 1),
        "half-64-masked": _tile(64, 64, 8, 1),
        "tf32-64": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 4, 1),
        "ieee-128": _tile(32, 32, 8, 1, 255),
    },
    backward_bias={"half-64": _tile(64, 64, 8, 1), "half-128": _tile(32, 64, 8, 1)},
)
_BLACKWELL = _changed(
    _HOPPER,
    forward_long={
        "half-128-masked": _tile(64, 64, 8, 2),
        "tf32-64": _tile(64, 32, 8, 2),
        "tf32-128": _tile(32, 32, 8, 2),
    },
    backward_queries={
        "half-64": _tile(64, 64, 4, 2, 255),
        "half-128": _tile(64, 64, 8, 2, 255),
        "tf32-128": _tile(32, 32, 8, 1, 255),
    },
    backward_keys={"half-64": _tile(64, 64, 4, 2, 255)},
)
# 64 KiB of shared memory for all programs of a compute unit, and 64 threads in a warp.
_CDNA3 = _changed(
    _HOPPER,
    forward_long={
        "half-32": _tile(128, 64, 4, 1),
        "half-64": _tile(128, 64, 4, 1),
        "half-128": _tile(64, 64, 4, 1),
        "half-128-masked": _tile(64, 64, 4, 1),
        "ieee-32": _tile(32, 32, 4, 1),
        "tf32-128": _tile(64, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_queries={
        "half-128": _tile(64, 32, 4, 1),
        "tf32-128": _tile(64, 32, 4, 1),
        "ieee-64": _tile(32, 32, 4, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_keys={
        "half-64-masked": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 32, 4, 1),
        "half-128-masked": _tile(32, 32, 4, 1),
        "tf32-128": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_bias={"ieee-128": _tile(16, 32, 8, 1)},
)
# 99 KiB of shared memory for a program: A10, L4, L40S, RTX 30, 40 and 50.
_SMALL = _changed(
    _AMPERE,
    forward_long={
        "half-32-masked": _tile(64, 64, 4, 2),
        "half-64-masked": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 64, 4, 2),
        "half-128-masked": _tile(64, 32, 4, 2),
    },
    backward_keys={"tf32-128": _tile(32, 32, 8, 1)},
)
TABLES: dict[str, Table] = {
    "sm_80": _AMPERE,
    "sm_86": _SMALL,
    "sm_90": _HOPPER,
    "sm_100": _BLACKWELL,
    "sm_120": _SMALL,
    "gfx942": _CDNA3,
    "interpreter": _INTERPRETER,
}
# The sizes that the kernels are written for: with others they do not compile, or leave sequences out.
SIZES: dict[str, tuple[int, ...]] = {
    "MAX_SEQLEN": (0, 32, 64, 128),
    "BLOCK_ROWS": (32, 64, 128, 256),
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (32, 64, 128, 256),
}
