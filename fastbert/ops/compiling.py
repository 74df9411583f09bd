"""What differs between versions of torch while `torch.compile` and `torch.export` trace.

From torch 2.12 on, Dynamo traces fastbert's models and operations as they are. Before, it cannot follow properties of
named tuples, and `torch.compiler.is_exporting()` is also true in `torch.compile`, where its flag is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_TRACES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 12)


def is_exporting() -> bool:
    """Return whether `torch.export` runs, as `torch.compiler.is_exporting` does from torch 2.12 on."""
    return torch.compiler.is_exporting() if _TRACES else torch.compiler._is_exporting_flag


def breaks_graph() -> bool:
    """Return whether a call has to leave the graph that `torch.compile` records, for a torch that cannot trace it."""
    return not _TRACES and torch.compiler.is_dynamo_compiling() and not is_exporting()


def outside_old_graphs(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that runs uncompiled where this torch cannot trace it: its results are the same."""
    if _TRACES:
        return function

    @functools.wraps(function)
    def breaking(*arguments: P.args, **options: P.kwargs) -> T:
        if breaks_graph():
            from fastbert.ops.dynamo_break import outside_old_graph

            result: T = outside_old_graph(function, arguments, options)
            return result
        return function(*arguments, **options)

    return breaking
