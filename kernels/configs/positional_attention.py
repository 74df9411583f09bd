"""The default configurations of the positional attention kernels, chosen by registers and shared memory of compiled
code. Classes with `-masked` have relative positions.
"""

from __future__ import annotations

from dataclasses import replace

from fastbert.kernels.configs.configuration import Config, Table


def _tile(block: int, num_warps: int, num_stages: int = 1, max_registers: int = 0) -> Config:
    constants = {"BLOCK": block}
    return Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)


# Left to ptxas, a table in fp32 spills 8 bytes to run more warps.
_BUCKETS = {
    f"{kind}-{width}": Config(constants={"CHUNK": 32}, num_warps=4, max_registers=limit)
    for kind, limit in (("half", 0), ("tf32", 64), ("ieee", 64))
    for width in (32, 64)
}
_KERNELS = ("positional_forward", "positional_queries", "positional_keys", "positional_tables")
# Relative positions exchange scores between threads, which takes registers: tiles of 32 hold them. Without tensor cores
# a thread holds whole rows of operands, so that only tiles of 16 do.
_SHARED = {
    "half-32": _tile(64, 4),
    "half-32-masked": _tile(32, 8),
    "half-64": _tile(64, 4),
    "half-64-masked": _tile(32, 4),
    "half-128": _tile(32, 4),
    "half-128-masked": _tile(32, 8),
    "tf32-32": _tile(32, 4),
    "tf32-64": _tile(32, 4),
    "tf32-64-masked": _tile(32, 8),
    "tf32-128": _tile(32, 8),
    "ieee-32": _tile(32, 4),
    "ieee-32-masked": _tile(32, 8),
    "ieee-64": _tile(32, 4),
    "ieee-64-masked": _tile(16, 8),
    "ieee-128": _tile(32, 8),
}
_COMPILED: Table = {
    # Left to ptxas, some classes in fp32 spill 8 bytes to run more warps.
    "positional_forward": _SHARED
    | {
        "tf32-32": _tile(32, 4, max_registers=255),
        "tf32-64": _tile(32, 4, max_registers=255),
        "ieee-64": _tile(32, 8, max_registers=255),
    },
    "positional_queries": _SHARED
    | {
        "tf32-32-masked": _tile(16, 4, max_registers=168),
        "ieee-32": _tile(32, 8, max_registers=255),
        "tf32-64-masked-dropout": _tile(32, 4),
        "tf32-128": _tile(32, 8, max_registers=255),
        "ieee-64": _tile(16, 8, max_registers=255),
        "ieee-64-masked": _tile(16, 8, max_registers=255),
        "ieee-128": _tile(32, 8, max_registers=255),
    },
    "positional_keys": _SHARED
    | {
        "half-32-masked": _tile(32, 4),
        "half-64": _tile(64, 8),
        **{shape: _tile(32, 4, max_registers=255) for shape in ("tf32-32", "ieee-32", "ieee-64")},
    },
    "positional_tables": _SHARED
    | {
        "half-32-masked": _tile(16, 4),
        "tf32-32-masked": _tile(16, 4, max_registers=255),
        "ieee-32": _tile(32, 4, max_registers=255),
        "ieee-64": _tile(32, 4, max_registers=255),
        "ieee-64-masked": _tile(16, 8, max_registers=192),
    },
    "positional_buckets": _BUCKETS,
}
_HOPPER: Table = _COMPILED | {
    "positional_forward": _COMPILED["positional_forward"]
    | {"half-32-masked": _tile(64, 8), "half-64-masked": _tile(64, 8)},
}
# Their matrix units read registers.
_AMPERE: Table = {
    "positional_forward": _COMPILED["positional_forward"] | {"half-64": _tile(32, 4)},
    "positional_queries": _COMPILED["positional_queries"]
    | {"half-32": _tile(64, 4, max_registers=255), "half-64": _tile(32, 4)},
    "positional_keys": _COMPILED["positional_keys"] | {"half-64": _tile(32, 4)},
    "positional_tables": _COMPILED["positional_tables"] | {"half-64": _tile(32, 4)},
    "positional_buckets": _BUCKETS,
}
_BLACKWELL: Table = _COMPILED | {
    "positional_forward": _COMPILED["positional_forward"] | {"tf32-128-dropout": _tile(16, 8, max_registers=255)},
    "positional_queries": _COMPILED["positional_queries"]
    | {"half-64": _tile(64, 4, max_registers=255), "tf32-128-dropout": _tile(16, 8, max_registers=255)},
    "positional_keys": _COMPILED["positional_keys"]
    | {
        "half-64-dropout": _tile(64, 8, max_registers=255),
        "half-64-masked-dropout": _tile(32, 4),
        "half-128": _tile(32, 4, max_registers=255),
        "tf32-128-dropout": _tile(32, 8, max_registers=255),
    },
}
# With more than four warps, of 64 threads each, a thread has half the registers. Only NVIDIA's compiler takes limits.
_CDNA3: Table = {
    kernel: {
        shape: replace(config, num_warps=min(config.num_warps, 4), max_registers=0) for shape, config in entries.items()
    }
    for kernel, entries in (
        _COMPILED
        | {
            "positional_keys": _SHARED | {"tf32-128-dropout": _tile(16, 4)},
            "positional_tables": _COMPILED["positional_tables"] | {"tf32-64-masked": _tile(16, 4)},
        }
    ).items()
}
# Small tiles, so that small tests have several of them.
_INTERPRETER: Table = {
    kernel: {f"{kind}-{width}": _tile(32, 4) for kind in ("half", "tf32", "ieee") for width in (32, 64, 128)}
    for kernel in _KERNELS
} | {"positional_buckets": _BUCKETS}
TABLES: dict[str, Table] = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_120"), _AMPERE),
    "sm_90": _HOPPER,
    "sm_100": _BLACKWELL,
    "gfx942": _CDNA3,
    "interpreter": _INTERPRETER,
}
# The sizes that the kernels are written for.
SIZES: dict[str, tuple[int, ...]] = {"BLOCK": (16, 32, 64, 128), "CHUNK": (16, 32)}
