"""Candidates for the products with GELU in their epilogue, and what is timed to choose among them.

Timed is the feed-forward half of an encoder layer up to GELU, forward and backward, as a layer would run it: so the
library's product with GELU behind it (OWN=0) is a candidate like the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fastbert.kernels.linear.feed_forward import contract_backward, expand
from fastbert.kernels.tuning.tables import Config

# One shape class serves base and large: depths of 768 and 1024.
WIDTHS = (768, 1024)
KERNELS = ("product_gelu", "product_gelu_gradient")
# Rows and columns of a tile, columns of the epilogue's slices, warps, stages.
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


def candidates(tma: bool) -> list[Config]:
    """Configurations of both kernels, with tensor descriptors where the GPU has them; the last is the library's way."""
    found = [
        Config(
            constants={"ROWS": rows, "COLUMNS": columns, "DEPTH": 64, "WIDTH": width, "TMA": use, "OWN": 1},
            num_warps=warps,
            num_stages=stages,
        )
        for use in ((1, 0) if tma else (0,))
        for rows, columns, width, warps, stages in _TILES
    ]
    return [*found, replace(found[0], constants={**found[0].constants, "OWN": 0})]


def run(device: torch.device, rows: int, time: Callable[[Callable[[], object]], float]) -> float:
    """The milliseconds that `time` finds for both directions, with the table as it is now."""
    generator = torch.Generator(device).manual_seed(rows)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device, generator=generator)

    total = 0.0
    for width in WIDTHS:
        x, grad, bias = random(rows, width), random(rows, width), random(4 * width)
        intermediate, output = (random(*shape) / width**0.5 for shape in ((4 * width, width), (width, 4 * width)))
        _, u = expand(x, intermediate, bias, False, True)
        total += time(lambda x=x, w=intermediate, bias=bias: expand(x, w, bias, False, True))  # type: ignore[misc]
        total += time(lambda grad=grad, u=u, w=output: contract_backward(grad, u, w, False))  # type: ignore[misc]
    return total
