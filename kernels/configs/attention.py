"""The default configurations of the attention kernels.

Chosen by registers, shared memory and instructions of code compiled by triton 3.6.0 and 3.7.1; on sm_90, some of
half precision with heads of 64 by time on an H100 (docs/performance-gpu.md). Without flags, with dropout, and with all
flags nothing spills but fp32 with heads of 128 and, by 8 bytes, what was chosen by time; with a causal mask or a bias
alone three classes do. A shape class without `-masked` or `-dropout` holds with them too, unless there is a nearer one.
"""

from __future__ import annotations

from dataclasses import replace

from fastbert.kernels.configs.configuration import Config, Table


def _heads(rows: int, num_warps: int = 4) -> Config:
    """Return one of up to 32 tokens: the rows of all heads of a program (0: the class is computed elsewhere)."""
    return Config(constants={"BLOCK_ROWS": rows}, num_warps=num_warps)


def _short(max_seqlen: int, num_warps: int = 4, max_registers: int = 0) -> Config:
    """Return one of whole rows in registers: the longest sequence it computes (0: none)."""
    return Config(constants={"MAX_SEQLEN": max_seqlen}, num_warps=num_warps, max_registers=max_registers)


def _tile(queries: int, keys: int, num_warps: int, num_stages: int, max_registers: int = 0) -> Config:
    constants = {"BLOCK_M": queries, "BLOCK_N": keys}
    return Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)


def _medium(
    max_seqlen: int, queries: int = 64, keys: int = 64, num_warps: int = 4, num_stages: int = 1, max_registers: int = 0
) -> Config:
    """Return one of a head per program: the longest sequence it computes (0: none), and its tile."""
    tile = _tile(queries, keys, num_warps, num_stages, max_registers)
    return replace(tile, constants={"MAX_MEDIUM": max_seqlen, **tile.constants})


# Classes that the kernels with a head or more per program do not have registers for: fp32 without tensor cores, and
# wide heads in tf32. Tiles of 32 keys take half the registers.
_NONE = {
    "heads": {f"ieee-{width}": _heads(0) for width in (32, 64, 128)} | {"tf32-128": _heads(0)},
    "short": {f"ieee-{width}": _short(0) for width in (32, 64, 128)} | {"tf32-128": _short(0)},
    "medium": {f"ieee-{width}": _medium(0) for width in (32, 64, 128)} | {"tf32-128": _medium(0)},
}
# Which kernels compute attention without masks and dropout: 0 those of this project, 1 the library's flash. By use and
# the longest sequence; a table that was measured on the GPU chooses.
_LIBRARY: Table = {
    f"attention_{use}_{length}": {
        f"{kind}-{width}": Config(constants={"LIBRARY": 0})
        for kind in ("half", "tf32", "ieee")
        for width in (32, 64, 128)
    }
    for use in ("inference", "training")
    for length in ("128", "512", "any")
}
_COMPILED: Table = {
    **_LIBRARY,
    "forward_heads": {
        **_NONE["heads"],
        "half-32": _heads(128),
        "half-64": _heads(128),
        "half-128": _heads(64),
        "tf32-32": _heads(128),
        "tf32-64": _heads(128),
    },
    "forward_short": {
        **_NONE["short"],
        "half-32": _short(128),
        "half-64": _short(128),
        "half-128": _short(128),
        "half-128-masked-dropout": _short(64),
        "tf32-32": _short(128),
        "tf32-64": _short(128),
    },
    "forward_long": {
        "half-32": _tile(64, 128, 4, 2),
        # Three programs per multiprocessor, whose turns hide the loads of the others.
        "half-32-dropout": _tile(64, 128, 4, 1, 168),
        "half-32-masked-dropout": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 128, 4, 2),
        "half-64-dropout": _tile(64, 128, 4, 1, 168),
        "half-64-masked": _tile(128, 64, 8, 3),
        "half-64-masked-dropout": _tile(64, 64, 4, 2),
        "half-128": _tile(64, 128, 4, 2),
        "half-128-dropout": _tile(64, 64, 4, 2),
        "half-128-masked": _tile(128, 128, 8, 2),
        "half-128-masked-dropout": _tile(64, 64, 4, 1),
        "tf32-32": _tile(64, 64, 4, 2),
        "tf32-64": _tile(64, 64, 4, 1),
        "tf32-128": _tile(64, 32, 8, 2),
        "ieee-32": _tile(32, 32, 4, 1, 255),
        "ieee-64": _tile(32, 32, 8, 1, 168),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_heads": {
        **_NONE["heads"],
        "half-32": _heads(128),
        "half-64": _heads(128),
        "half-128": _heads(0),
        "tf32-32": _heads(128),
        "tf32-64": _heads(0),
    },
    "backward_short": {
        **_NONE["short"],
        "half-32": _short(128),
        "half-32-dropout": _short(128, 8),
        "half-32-masked": _short(128, 8),
        "half-32-masked-dropout": _short(64),
        "half-64": _short(128),
        "half-64-masked-dropout": _short(64),
        "half-128": _short(64),
        "tf32-32": _short(0),
        "tf32-64": _short(64),
    },
    "backward_medium": {
        **_NONE["medium"],
        "half-32": _medium(512, 64, 64, 4, 1),
        "half-32-dropout": _medium(512, 64, 32, 4, 1),
        "half-32-masked": _medium(512, 64, 64, 4, 1),
        "half-32-masked-dropout": _medium(512, 64, 32, 8, 1),
        "half-64": _medium(512, 64, 64, 4, 1),
        "half-64-dropout": _medium(512, 64, 64, 4, 1),
        "half-64-masked-dropout": _medium(512, 128, 64, 8, 1),
        "half-128": _medium(512, 64, 64, 8, 1),
        "half-128-masked": _medium(512, 64, 32, 8, 1),
        "half-128-masked-dropout": _medium(512, 64, 32, 8, 1),
        "tf32-32": _medium(512, 32, 32, 4, 1),
        "tf32-64": _medium(512, 32, 64, 4, 1),
    },
    "backward_queries": {
        "half-32": _tile(64, 64, 4, 2),
        "half-64": _tile(64, 64, 4, 2),
        "half-64-masked-dropout": _tile(64, 64, 4, 1),
        "half-128": _tile(64, 64, 4, 2),
        "half-128-dropout": _tile(64, 64, 8, 1),
        "half-128-masked": _tile(64, 64, 8, 1),
        "half-128-masked-dropout": _tile(32, 64, 4, 1, 255),
        "tf32-32": _tile(64, 64, 4, 2),
        "tf32-64": _tile(32, 64, 8, 1),
        "tf32-128": _tile(16, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(16, 16, 8, 1, 255),
    },
    "backward_keys": {
        "half-32": _tile(64, 64, 4, 2),
        "half-32-masked": _tile(64, 64, 4, 1),
        "half-64": _tile(64, 64, 4, 2),
        "half-64-masked": _tile(64, 64, 4, 1),
        "half-64-masked-dropout": _tile(32, 64, 4, 2),
        "half-128": _tile(32, 64, 4, 2),
        "half-128-dropout": _tile(32, 64, 8, 1),
        "half-128-masked": _tile(32, 64, 8, 1),
        "half-128-masked-dropout": _tile(64, 32, 8, 1),
        "tf32-32": _tile(32, 64, 8, 1),
        "tf32-64": _tile(32, 64, 8, 1),
        "tf32-128": _tile(32, 32, 8, 1, 255),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 8, 1, 255),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
    "backward_bias": {
        "half-32": _tile(64, 64, 4, 1),
        "half-64": _tile(64, 64, 4, 1),
        "half-128": _tile(64, 64, 4, 1),
        "tf32-32": _tile(64, 64, 4, 1),
        "tf32-64": _tile(64, 64, 4, 1),
        "tf32-128": _tile(16, 32, 8, 1),
        "ieee-32": _tile(32, 32, 4, 1),
        "ieee-64": _tile(32, 32, 8, 1),
        "ieee-128": _tile(16, 32, 8, 1, 255),
    },
}
# Small tiles, so that small tests have several of them.
_INTERPRETER = _LIBRARY | {
    kernel: {f"{kind}-{width}": config for kind in ("half", "tf32", "ieee") for width in (32, 64, 128)}
    for kernel, config in {
        "forward_heads": _heads(128),
        "forward_short": _short(128),
        "forward_long": _tile(32, 64, 4, 1),
        "backward_heads": _heads(128),
        "backward_short": _short(128),
        "backward_medium": _medium(256, 64, 64),
        "backward_queries": _tile(64, 32, 4, 1),
        "backward_keys": _tile(32, 64, 4, 1),
        "backward_bias": _tile(32, 64, 4, 1),
    }.items()
}


def _changed(base: Table, **changes: dict[str, Config]) -> Table:
    """Return `base` with other configurations for some shape classes of some kernels."""
    return {kernel: entries | changes.get(kernel, {}) for kernel, entries in base.items()}


# By time on an H100. A program of backward_medium reads and writes its head's sums of dq once per tile of keys; those
# of all programs that run at a time, 131 KB each with 512 tokens, exceed what the L2 cache retains, and the kernel then
# waits for memory: 1.10 ms per layer of 32,768 tokens beside 0.63 in two kernels.
_HOPPER = _changed(
    _COMPILED,
    forward_long={"half-64-dropout": _tile(64, 64, 4, 3)},
    backward_medium={
        "half-64": _medium(256, 64, 64, 4, 1),
        "half-64-dropout": _medium(256, 64, 64, 4, 1),
    },
    backward_queries={"half-64-dropout": _tile(64, 64, 4, 3, 168)},
    backward_keys={"half-64-dropout": _tile(64, 64, 4, 3)},
)


# Its matrix units take both operands from registers.
_AMPERE = _changed(
    _COMPILED,
    forward_short={
        "half-128-dropout": _short(64),
        "half-128-masked-dropout": _short(0),
        "tf32-64": _short(64),
    },
    forward_long={
        "half-32-masked": _tile(64, 64, 4, 2),
        "half-64-dropout": _tile(64, 64, 4, 2),
        "half-64-masked-dropout": _tile(64, 64, 4, 1),
        "half-128": _tile(128, 64, 8, 3),
        "half-128-dropout": _tile(64, 64, 8, 1),
        "half-128-masked": _tile(64, 64, 4, 1),
        "half-128-masked-dropout": _tile(32, 64, 8, 1),
        "tf32-64": _tile(64, 64, 4, 2),
        "ieee-32": _tile(32, 32, 4, 1, 168),
    },
    backward_heads={"half-64-masked-dropout": _heads(64)},
    backward_short={
        "half-32-masked": _short(64),
        "half-64": _short(64),
        "half-64-dropout": _short(128),
        "half-128": _short(0),
        "tf32-64": _short(0),
    },
    backward_medium={
        "half-32": _medium(512, 32, 64, 4, 1),
        "half-32-masked": _medium(512, 32, 32, 4, 1),
        "half-32-masked-dropout": _medium(0),
        "half-64": _medium(512, 32, 64, 8, 1),
        "half-64-dropout": _medium(512, 32, 64, 8, 1),
        "half-64-masked": _medium(512, 32, 64, 8, 1),
        "half-64-masked-dropout": _medium(0),
        "half-128": _medium(0),
        "half-128-dropout": _medium(0),
        "half-128-masked": _medium(0),
        "half-128-masked-dropout": _medium(0),
        "tf32-32": _medium(0),
        "tf32-64": _medium(0),
    },
    backward_queries={
        "half-64-masked": _tile(64, 64, 4, 1),
        "half-64-masked-dropout": _tile(32, 64, 4, 1),
        "half-128-masked-dropout": _tile(16, 64, 8, 1),
        "tf32-32": _tile(64, 32, 4, 1),
        "ieee-32": _tile(32, 32, 8, 1),
    },
    backward_keys={
        "half-32-dropout": _tile(64, 64, 8, 1),
        "half-32-masked": _tile(64, 64, 4, 2),
        "half-64": _tile(32, 64, 4, 2),
        "half-64-dropout": _tile(64, 32, 4, 1),
        "half-64-masked": _tile(64, 32, 4, 1),
        "half-64-masked-dropout": _tile(64, 32, 4, 1),
        "half-128": _tile(64, 32, 8, 1),
        "half-128-dropout": _tile(64, 32, 8, 1),
        "half-128-masked": _tile(64, 32, 8, 1),
        "half-128-masked-dropout": _tile(64, 32, 8, 1),
        "tf32-64": _tile(32, 32, 4, 1),
        "ieee-64": _tile(16, 32, 4, 1),
        "ieee-128": _tile(32, 32, 8, 1, 255),
    },
    backward_bias={
        "half-128": _tile(32, 64, 4, 1),
        "tf32-32": _tile(64, 64, 8, 1),
        "tf32-64": _tile(32, 64, 4, 1),
    },
)
_BLACKWELL = _changed(
    _COMPILED,
    forward_long={
        "half-32-masked": _tile(128, 64, 8, 3),
        "half-128": _tile(128, 128, 8, 2),
        "half-128-masked": _tile(128, 64, 8, 3),
        "tf32-64": _tile(64, 64, 8, 1),
        "tf32-128": _tile(32, 32, 8, 2),
    },
    backward_short={"half-64-dropout": _short(128, 8)},
    backward_medium={
        "half-32-masked": _medium(512, 64, 32, 4, 1),
        "half-64": _medium(512, 64, 64, 4, 1),
        "half-128": _medium(512, 128, 64, 8, 1),
        "half-128-masked-dropout": _medium(512, 64, 64, 8, 1),
        "tf32-32": _medium(0),
        "tf32-64": _medium(512, 64, 64, 8, 1),
    },
    backward_queries={"half-128-dropout": _tile(64, 64, 4, 1), "half-128-masked-dropout": _tile(16, 64, 8, 1)},
    backward_keys={
        "half-32-masked-dropout": _tile(64, 64, 8, 1),
        "half-64-masked-dropout": _tile(64, 64, 8, 1),
        "half-128": _tile(64, 64, 4, 1),
        "half-128-dropout": _tile(64, 64, 8, 1),
        "half-128-masked-dropout": _tile(32, 64, 8, 1),
    },
    backward_bias={"half-128": _tile(64, 64, 8, 1), "tf32-64": _tile(64, 64, 8, 1)},
)
# 64 KiB of shared memory for all programs of a compute unit, and 64 threads in a warp.
_CDNA3 = _changed(
    {
        kernel: {shape: replace(config, max_registers=0) for shape, config in entries.items()}
        for kernel, entries in _COMPILED.items()
    },
    forward_long={"half-128": _tile(64, 64, 4, 1), "tf32-128": _tile(64, 32, 4, 1)},
    backward_short={"half-32-dropout": _short(128)},
    backward_medium={
        "half-32": _medium(512, 64, 64, 4, 1),
        "half-32-masked-dropout": _medium(0),
        "half-64-masked-dropout": _medium(0),
        "half-128": _medium(0),
        "half-128-masked-dropout": _medium(0),
        "tf32-32": _medium(0),
        "tf32-64": _medium(0),
    },
    backward_queries={
        "half-128": _tile(64, 64, 4, 1),
        "half-128-dropout": _tile(32, 64, 4, 1),
        "tf32-64": _tile(32, 64, 4, 1),
        "tf32-128": _tile(32, 32, 4, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
    backward_keys={
        "half-128": _tile(64, 64, 4, 1),
        "half-128-dropout": _tile(32, 32, 4, 1),
        "half-128-masked-dropout": _tile(32, 32, 4, 1),
        "tf32-32": _tile(32, 64, 4, 1),
        "tf32-64": _tile(32, 64, 4, 1),
        "tf32-128": _tile(32, 32, 4, 1),
        "ieee-128": _tile(32, 32, 4, 1),
    },
)
# 99 KiB of shared memory for a program: A10, L4, L40S, RTX 30, 40 and 50.
_SMALL = _changed(
    _AMPERE,
    forward_short={"tf32-32": _short(64)},
    forward_long={"half-32-dropout": _tile(64, 64, 4, 2), "tf32-64": _tile(32, 64, 4, 1)},
    backward_short={"half-32-dropout": _short(64), "half-64-dropout": _short(64)},
    backward_medium={
        "half-32": _medium(512, 32, 64, 4, 1),
        "half-32-dropout": _medium(512, 32, 64, 8, 1),
        "half-64": _medium(512, 32, 64, 8, 1),
    },
    backward_queries={
        "half-64-dropout": _tile(64, 64, 4, 1),
        "half-64-masked-dropout": _tile(32, 64, 8, 1),
        "tf32-32": _tile(32, 32, 4, 1),
        "tf32-64": _tile(32, 64, 8, 1),
        "ieee-32": _tile(32, 32, 8, 1),
    },
    backward_keys={
        "half-64-masked-dropout": _tile(16, 32, 8, 1),
        "half-128-masked-dropout": _tile(16, 32, 8, 1),
    },
    backward_bias={"half-32": _tile(32, 64, 4, 1), "tf32-32": _tile(32, 64, 4, 1)},
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
    "MAX_SEQLEN": (0, 64, 128),
    "MAX_MEDIUM": (0, 256, 512, 1024),
    "LIBRARY": (0, 1),
    "BLOCK_ROWS": (0, 32, 64, 128, 256),
    "BLOCK_M": (16, 32, 64, 128, 256),
    "BLOCK_N": (16, 32, 64, 128, 256),
}
