"""Break the graph that torch.compile records; a module of its own, since importing torch's compiler takes a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


@torch.compiler.disable(reason="fastbert's encoder already runs one operation per layer, on a varying number of tokens")
def outside_graph(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function outside the compiled graph."""
    return function(*args, **kwargs)


@torch.compiler.disable(reason="fastbert's models and operations are compiled with torch 2.12 and newer")
def outside_old_graph(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function outside the compiled graph of a torch that cannot trace it."""
    return function(*args, **kwargs)
