"""The candidate configurations of the matmuls with GELU in their epilogue, and the passes that are timed.

The feed-forward half of an encoder layer up to GELU is timed, forward and backward, as a layer runs it: PyTorch's
matmul with GELU after it (FUSED=0) is a candidate like the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fastbert.kernels.configs.configuration import Config, shape_class
from fastbert.kernels.configs.linear import FEW_ROWS, row_class
from fastbert.kernels.linear import feed_forward

# One shape class holds for base and large: depths of 768 and 1024.
WIDTHS = (768, 1024)
# BLOCK_M, BLOCK_N, EPILOGUE_N, warps, stages.
_TILES = (
    (128, 128, 32, 8, 3),
    (128, 128, 16, 8, 3),
    (128, 128, 32, 8, 4),
    (128, 128, 32, 4, 3),
    (128, 256, 32, 8, 3),
    (128, 256, 64, 8, 4),
    (256, 128, 32, 8, 3),
    (64, 256, 32, 4, 3),
)
# For up to 16 rows: BLOCK_N, BLOCK_K, warps, stages.
_FEW_ROWS_TILES = ((16, 128, 2, 6), (16, 128, 4, 6), (16, 64, 2, 8), (16, 64, 4, 8), (32, 128, 4, 4), (32, 64, 4, 6))


def candidates(target: str, widths: tuple[int, ...] | None = None) -> list[tuple[str, str, int, list[Config]]]:
    """Return kernel, shape class, depth and candidates of what is tuned, with tensor descriptors where the GPU has
    them; `widths` are attention's and have no effect."""
    fused = [
        Config(
            constants={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "EPILOGUE_N": epilogue, "TMA": tma, "FUSED": 1},
            num_warps=warps,
            num_stages=stages,
        )
        for tma in ((1, 0) if target in ("sm_90", "sm_100") else (0,))
        for m, n, epilogue, warps, stages in _TILES
    ]
    unfused = replace(fused[0], constants={**fused[0].constants, "FUSED": 0})
    # The forward kernel decides for both whether they run.
    depth = WIDTHS[-1]
    shape = shape_class(torch.bfloat16, False, depth)
    few = FEW_ROWS[0]
    narrow = [
        replace(
            fused[-1],
            constants={"BLOCK_M": few, "BLOCK_N": n, "BLOCK_K": k, "EPILOGUE_N": n, "TMA": 0, "FUSED": 1},
            num_warps=warps,
            num_stages=stages,
        )
        for n, k, warps, stages in _FEW_ROWS_TILES
    ]
    library = replace(narrow[0], constants={**narrow[0].constants, "FUSED": 0})
    return [
        ("matmul_gelu", shape, depth, [*fused, unfused]),
        ("matmul_gelu_backward", shape, depth, fused),
        ("matmul_gelu", shape + row_class(few), depth, [*narrow, library]),
    ]


def milliseconds(
    kernel: str,
    shape: str,
    width: int,
    device: torch.device,
    tokens: int,
    time: Callable[[Callable[[], object]], float],
) -> float:
    """Return what `time` measures of both directions at all widths of the shape class, with the present table; of a
    class of few rows, forward without gradients alone, on as many tokens."""
    few = shape.partition("-rows")[2]
    tokens = min(tokens, int(few)) if few else tokens
    generator = torch.Generator(device).manual_seed(tokens)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device, generator=generator)

    total = 0.0
    for width in WIDTHS:
        x, grad, bias = random(tokens, width), random(tokens, width), random(4 * width)
        up, down = random(4 * width, width) / width**0.5, random(width, 4 * width) / width**0.5
        if few:
            total += time(lambda x=x, up=up, bias=bias: feed_forward.up_projection(x, up, bias, False, False))  # type: ignore[misc]
            continue
        _, u = feed_forward.up_projection(x, up, bias, False, True)
        total += time(lambda x=x, up=up, bias=bias: feed_forward.up_projection(x, up, bias, False, True))  # type: ignore[misc]
        total += time(
            lambda grad=grad, down=down, u=u: feed_forward.down_projection_backward(grad, down, u, False)  # type: ignore[misc]
        )
    return total
