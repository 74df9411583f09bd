"""The default configurations of GELU with a bias, and of the matmuls with GELU in their epilogue.

Chosen by registers, spills and shared memory of compiled code and by arithmetic; the matmuls of many rows on sm_90 by
time on an H100, where tiles of 64 x 128, 64 x 256, 128 x 256 and 256 x 128 took 8 to 50 % longer. Matmuls: tiles of
128 x 128 on eight warps, so that two programs run on a multiprocessor of Hopper or Blackwell (128 registers per thread,
96 KiB of tiles in flight each) and one multiplies while the other computes GELU. All multiprocessors together then read
some 7 TB/s of operands from the L2 cache, for which these kernels wait. One program with 128 x 256 reads a quarter
less, but its matrix units wait during its epilogue, which at a depth of 768 takes about half as long as the matmul.

FUSED=1 prefers that matmul to PyTorch's with `bias_gelu` after it. It pays above roughly 450 TFLOP/s on an H200, by the
bytes that the separate pass reads and writes; assumed on sm_90 and sm_100 alone.

With few rows a matmul reads its weight once and does little else: 768 x 3072 in half precision are 4.7 MB, 1.4
microseconds at the 3.35 TB/s of an H100. To reach that, all multiprocessors must read, each with some 15 to 20 KB in
flight (3.35 TB/s for 0.6 to 0.8 microseconds of latency, over 132). Tiles of 128 x 128 are 24 programs. For up to 16
rows, tiles of 16 x 16 are 192, each with five sixths of its 24 KB of weight in flight, and no sum is split. The kernel
then waits for memory whatever its instructions, so it is preferred on every GPU: the library's matmul reads as many
bytes, and the pass after it is one more launch. With more rows the tiles grow, since programs of the same columns read
the weight again.
"""

from __future__ import annotations

from fastbert.kernels.configs.configuration import Config, Table

SHALLOWEST, DEEPEST = 256, 4096
_DEPTHS = tuple(1 << power for power in range(8, 13))
# The largest numbers of rows of the classes that have configurations of their own, in ascending order.
FEW_ROWS = (16, 64, 256)


def row_class(rows: int) -> str:
    """Return the suffix of the shape class of a forward matmul, empty for many rows."""
    return next((f"-rows{most}" for most in FEW_ROWS if rows <= most), "")


def _rows(rows: int, columns: int, num_warps: int) -> dict[str, Config]:
    """Return half as many rows for fp32, which are as many bytes."""
    return {
        "half": Config(constants={"BLOCK_M": rows, "BLOCK_N": columns}, num_warps=num_warps),
        "ieee": Config(constants={"BLOCK_M": rows // 2, "BLOCK_N": columns}, num_warps=num_warps),
    }


def _matmul(
    block_m: int,
    block_n: int,
    block_k: int,
    epilogue_n: int,
    num_warps: int,
    num_stages: int,
    *,
    tma: int = 0,
    fused: int = 0,
    max_registers: int = 0,
    suffix: str = "",
) -> dict[str, Config]:
    constants = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_K": block_k,
        "EPILOGUE_N": epilogue_n,
        "TMA": tma,
        "FUSED": fused,
    }
    config = Config(constants=constants, num_warps=num_warps, num_stages=num_stages, max_registers=max_registers)
    return {f"half-{depth}{suffix}": config for depth in _DEPTHS}


def _few_rows(fused: int) -> dict[str, Config]:
    """Return the configurations for few rows; `fused` holds above 16 rows. Loads are asynchronous copies: building a
    tensor descriptor takes about as long as such a tile."""
    return {
        **_matmul(16, 16, 128, 16, 2, 6, fused=1, suffix="-rows16"),
        **_matmul(64, 32, 64, 32, 4, 5, fused=fused, suffix="-rows64"),
        **_matmul(64, 64, 64, 32, 4, 4, fused=fused, suffix="-rows256"),
    }


_PASSES: Table = {"bias_gelu_forward": _rows(8, 512, 4), "bias_gelu_backward": _rows(8, 512, 4)}
_HOPPER: Table = {
    **_PASSES,
    "matmul_gelu": {**_matmul(128, 128, 64, 32, 8, 3, tma=1, fused=1, max_registers=128), **_few_rows(1)},
    "matmul_gelu_backward": _matmul(128, 128, 64, 32, 8, 3, tma=1, fused=1, max_registers=128),
}
_AMPERE: Table = {
    **_PASSES,
    "matmul_gelu": {**_matmul(128, 128, 32, 32, 4, 4), **_few_rows(0)},
    "matmul_gelu_backward": _matmul(128, 128, 32, 32, 4, 4),
}
TABLES: dict[str, Table] = {
    "sm_80": _AMPERE,
    "sm_86": _AMPERE,
    "sm_90": _HOPPER,
    # Accumulators are read from tensor memory, and wider slices spill.
    "sm_100": {
        **_HOPPER,
        "matmul_gelu_backward": _matmul(128, 128, 64, 16, 8, 3, tma=1, fused=1, max_registers=128),
    },
    # It has as much shared memory as the older desktop GPUs.
    "sm_120": _AMPERE,
    "gfx942": {
        **_PASSES,
        "matmul_gelu": {**_matmul(128, 128, 64, 32, 4, 2), **_few_rows(0)},
        "matmul_gelu_backward": _matmul(128, 128, 64, 32, 4, 2),
    },
    "interpreter": {
        "bias_gelu_forward": _rows(8, 512, 4),
        "bias_gelu_backward": _rows(8, 512, 4),
        "matmul_gelu": _matmul(32, 64, 32, 32, 4, 1, fused=1),
        "matmul_gelu_backward": _matmul(32, 64, 32, 32, 4, 1, fused=1),
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
