"""Kernels that the GPU's compiler refused: from the first refusal on, PyTorch computes such calls instead.

A kernel is compiled when it is first launched. `launch` raises `KernelError` if that fails; the Triton backend whose
method launched it is then marked for the calls of the same width (after a failure in backward: of every width), and its
`supports` returns the reason. The public functions, and the steps of training for what fails in backward, then run
again: `retried` and `until_compiled`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from fastbert.errors import KernelError
from fastbert.io.log import logger
from fastbert.ops.compiling import outside_old_graphs
from fastbert.ops.operation import Reason

P = ParamSpec("P")
T = TypeVar("T")
# By backend and width, None for all of its widths: why calls are left to PyTorch.
_failures: dict[tuple[str, int | None], str] = {}
_logged: set[str] = set()


def watched(method: Callable[P, T], *, every_width: bool) -> Callable[P, T]:
    """Return the method of a Triton backend with failures recorded, for calls of the first tensor's width or all."""

    @functools.wraps(method)
    def watching(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return method(*arguments, **options)
        except KernelError as error:
            backend, *rest = arguments
            key = (_name(backend), None if every_width else _width(rest))
            if key not in _failures:
                _failures[key] = str(error)
                error.recorded = True
                if error.kernel not in _logged:
                    _logged.add(error.kernel)
                    logger.warning("PyTorch computes what needs this kernel: %s", error)
            raise

    return watching


def reason(backend: object, arguments: Any) -> Reason | None:
    """Return why a Triton backend cannot compute a call: a kernel of an earlier one like it failed to compile."""
    if not _failures:
        return None
    name = _name(backend)
    text = _failures.get((name, None)) or _failures.get((name, _width(arguments)))
    return None if text is None else Reason(text, logged=True)


def report() -> tuple[str, ...]:
    """Return the failures so far, one line each."""
    return tuple(dict.fromkeys(_failures.values()))


def retried(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that chooses a backend: after a recorded failure it runs, and chooses, again."""

    @functools.wraps(function)
    def retrying(*arguments: P.args, **options: P.kwargs) -> T:
        if torch.compiler.is_compiling():  # nothing runs while a call is traced
            return function(*arguments, **options)
        return until_compiled(lambda: function(*arguments, **options))

    return outside_old_graphs(retrying)


def until_compiled(run: Callable[[], T], undo: Callable[[], object] | None = None) -> T:
    """Return run(), called again after each recorded failure; `undo` is called before, to drop partial results.

    Ends, since a failure is recorded once. Raises KernelError for a kernel that is needed whatever the choice.
    """
    while True:
        try:
            return run()
        except KernelError as error:
            if not error.recorded:
                raise
            if undo is not None:
                undo()


def _name(backend: object) -> str:
    return f"{type(backend).__module__}.{type(backend).__qualname__}"


def _width(values: Any) -> int | None:
    """Return the last size of the first floating tensor in nested tuples and lists; None if there is none."""
    for value in values:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                return value.shape[-1] if value.dim() else 1
        elif isinstance(value, tuple | list) and (width := _width(value)) is not None:
            return width
    return None
