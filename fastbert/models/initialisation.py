"""Draw new weights: the same values on every device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def draw(
    initialiser: Callable[..., Any],
    weight: Tensor,
    *arguments: float,
    generator: torch.Generator | None,
    **named: float,
) -> None:
    """Apply a function of `torch.nn.init` to a weight.

    With a generator, values are drawn on the generator's device and copied: a generator of the CPU cannot draw on a
    GPU, and a GPU's own draws would be others.
    """
    if generator is None or generator.device == weight.device:
        initialiser(weight, *arguments, generator=generator, **named)
        return
    with torch.no_grad():
        drawn = torch.empty_like(weight, device=generator.device)
        initialiser(drawn, *arguments, generator=generator, **named)
        weight.copy_(drawn)
