"""The default configurations of the kernels of gated activations.

The passes over memory have 8 elements of each tensor per thread, 16 bytes of half precision. The matmuls have the tiles
of those with GELU (`fastbert.kernels.configs.linear`), forward half of them for gates and half for values; as there,
FUSED=1 prefers them to PyTorch's matmul with a pass beside it, by arithmetic and not by a measurement.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

_DEPTHS = tuple(1 << power for power in range(8, 13))


def _passes(rows: int, columns: int) -> Table:
    """Return one configuration for both passes and arithmetics."""
    config = Config(constants={"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=4)
    return {name: {"half": config, "ieee": config} for name in ("gated_forward", "gated_backward")}


def _matmul(
    sizes: tuple[int, int, int, int], num_warps: int, num_stages: int, *, fused: int = 0, max_registers: int = 0
) -> dict[str, Config]:
    """Return the configuration of a matmul for all depths; `fused` ones load their operands by TMA."""
    constants = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K", "EPILOGUE_N"), sizes)) | {"TMA": fused, "FUSED": fused}
    config = Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)
    return {f"half-{depth}": config for depth in _DEPTHS}


_AMPERE: Table = {
    **_passes(4, 256),
    "matmul_gated": _matmul((128, 64, 32, 32), 4, 4),
    "matmul_gated_backward": _matmul((128, 128, 32, 16), 4, 4),
}
_HOPPER: Table = {
    **_passes(4, 256),
    "matmul_gated": _matmul((128, 64, 64, 32), 8, 3, fused=1, max_registers=128),
    # Half as many columns as with GELU: three results per element of the gradient spill beside 128 of its columns.
    "matmul_gated_backward": _matmul((128, 64, 64, 16), 8, 3, fused=1, max_registers=128),
}
TABLES: dict[str, Table] = {
    "sm_80": _AMPERE,
    "sm_86": _AMPERE,
    "sm_90": _HOPPER,
    "sm_100": _HOPPER,
    "sm_120": _AMPERE,
    "gfx942": {
        **_passes(4, 256),
        "matmul_gated": _matmul((128, 64, 64, 32), 4, 2),
        "matmul_gated_backward": _matmul((128, 128, 64, 32), 4, 2),
    },
    # The interpreter takes as long for a program whatever its tile; it has descriptors too.
    "interpreter": {
        **_passes(64, 1024),
        "matmul_gated": _matmul((32, 32, 32, 32), 4, 1, fused=1),
        "matmul_gated_backward": _matmul((32, 64, 32, 32), 4, 1, fused=1),
    },
}
# The sizes that the kernels are written for.
SIZES: dict[str, tuple[int, ...]] = {
    "BLOCK_M": tuple(1 << power for power in range(9)),
    "BLOCK_N": tuple(1 << power for power in range(4, 14)),
    "BLOCK_K": (16, 32, 64, 128),
    "EPILOGUE_N": (16, 32, 64, 128, 256),
    "TMA": (0, 1),
    "FUSED": (0, 1),
}
