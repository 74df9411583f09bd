"""Where a compiled graph ends: imported only while one is made, since torch's compiler takes a second to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable(reason="fastbert's encoder is one operation a layer already, on a number of tokens that varies")
def outside_graph(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function as if nothing was being compiled."""
    return function(*args, **kwargs)
