"""The default configurations of the kernels of LayerNorm and RMSNorm.

Whole rows stay in registers, so a class has as many columns as its widest row. Forward has 16 elements per thread, two
accesses of 16 bytes to bf16 rows. Backward accumulates up to three sums per element: it has 8 elements per thread, but
for the widest rows, and the loads of the blocks ahead are buffered in shared memory.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

NARROWEST, WIDEST = 32, 8192


def _registers(threads: int, warps: int, arithmetic: str, width: int) -> int:
    """Return the limit per thread, 0 for none: it is set where ptxas would otherwise spill to run more warps."""
    if threads == 64:  # AMD's compiler has no such limit
        return 0
    if warps > 8:
        return 128
    if arithmetic == "ieee":
        return 255 if width <= 64 else 168
    return 128 if width == 2048 else 0


def _forward(threads: int, least: int) -> dict[str, Config]:
    """Return configurations by shape class for warps of `threads` and at least `least` elements per program."""
    table = {}
    width = NARROWEST
    while width <= WIDEST:
        elements = max(width, least)
        constants, warps = {"BLOCK_M": elements // width, "BLOCK_N": width}, elements // 16 // threads
        wide = Config(constants=constants, num_warps=warps, max_registers=_registers(threads, warps, "ieee", width))
        table |= {f"half-{width}": Config(constants=constants, num_warps=warps), f"ieee-{width}": wide}
        width *= 2
    return table


def _backward(threads: int, least: int, memory: int) -> dict[str, Config]:
    """Return configurations by shape class; two programs buffer their loads in `memory` bytes of a multiprocessor."""
    table = {}
    width = NARROWEST
    while width <= WIDEST:
        elements = max(width, least)
        for arithmetic, size in (("half", 2), ("ieee", 4)):
            # Three tensors are read; the number of blocks ahead is rounded down to a power of two.
            stages = min(max(memory // (2 * 3 * elements * size), 1), 4) if width < WIDEST else 1
            constants = {"BLOCK_M": elements // width, "BLOCK_N": width, "STAGES": 1 << (stages.bit_length() - 1)}
            warps = min(elements // 8, 512) // threads
            registers = _registers(threads, warps, arithmetic, width)
            table[f"{arithmetic}-{width}"] = Config(constants=constants, num_warps=warps, max_registers=registers)
        width *= 2
    return table


def _table(memory: int, threads: int = 32, least: int = 2048) -> Table:
    forward, backward = _forward(threads, least), _backward(threads, least, memory)
    return {
        "norm_forward": forward,
        "norm_backward": backward,
        "rms_norm_forward": forward,
        "rms_norm_backward": backward,
        "gelu_norm_forward": forward,
        "gelu_norm_backward": backward,
    }


TABLES: dict[str, Table] = {
    "sm_80": _table(160 * 1024),
    "sm_86": _table(96 * 1024),
    "sm_90": _table(200 * 1024),
    "sm_100": _table(200 * 1024),
    "sm_120": _table(96 * 1024),
    "gfx942": _table(64 * 1024, threads=64),
    # The interpreter takes as long for a large block as for a small one.
    "interpreter": _table(96 * 1024, least=16384),
}
# The values that the kernels support.
SIZES: dict[str, tuple[int, ...]] = {
    "BLOCK_M": tuple(1 << power for power in range(10)),
    "BLOCK_N": tuple(1 << power for power in range(5, 14)),
    "STAGES": (1, 2, 4),
}
