"""Operators of torch that are called past torch's dispatcher where nobody watches it.

An operator of `torch.library` with many arguments is slow to call: its schema is gone through for each of them, and so
are trees of its inputs. What compilers, modes, transforms, tracers and profilers want of it
is its name, its fake and its formula; a plain call wants the result. So plain calls run the function itself, with the
same formula for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fastbert.ops.native import buffers

# Of each argument: how many tensors its list has, None for what is no list.
_Structure: TypeAlias = tuple[int | None, ...]


def operator(name: str, *, device_types: str | None = None) -> Callable[[Callable[..., Any]], Operator]:
    """A decorator: the function as the operator `name` ("fastbert::..."), which changes none of its arguments."""
    return lambda function: Operator(name, function, device_types)


class Operator:
    """What `torch.library.custom_op` makes of a function, and the function for calls that need no more."""

    def __init__(self, name: str, function: Callable[..., Any], device_types: str | None = None) -> None:
        self._name = name.removeprefix("fastbert::")
        self._function = function
        self._traced: Any = torch.library.custom_op(name, function, mutates_args=(), device_types=device_types)
        self._differentiable: Any = None
        self.__doc__ = function.__doc__

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """`fake` gives results without contents, as for `torch.library`."""
        self._traced.register_fake(fake)
        return fake

    def register_autograd(self, formula: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """The gradients, as for `torch.library`."""
        self._traced.register_autograd(formula, setup_context=setup_context)
        self._differentiable = _differentiable(self._name, self._function, formula, setup_context)

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():  # first: a compiler may not look at what follows
            return self._traced(*arguments)
        structure = tuple(len(one) if type(one) is list else None for one in arguments)
        flat = _flattened(arguments, structure)
        tensors = [one for one in flat if isinstance(one, Tensor)]
        watched = torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_function_stack()
        if watched or not buffers.direct(*tensors):
            return self._traced(*arguments)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return self._function(*arguments)
        # Without a formula a second derivative is asked for: torch's operator says that there is none.
        return self._traced(*arguments) if self._differentiable is None else self._differentiable(structure, *flat)


def _differentiable(
    name: str, function: Callable[..., Any], formula: Callable[..., Any], setup_context: Callable[..., None]
) -> Callable[..., Any]:
    """The function with its gradients, of a structure and flat arguments."""

    def forward(ctx: Any, structure: _Structure, *flat: Any) -> Any:
        arguments = _nested(flat, structure)
        output = function(*arguments)
        setup_context(ctx, arguments, output)
        ctx.structure, ctx.listed = structure, isinstance(output, list)
        return tuple(output) if ctx.listed else output

    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad
        ctx.needs_input_grad = _nested(needs[1:], ctx.structure)
        try:
            found = formula(ctx, list(grads)) if ctx.listed else formula(ctx, *grads)
        finally:
            ctx.needs_input_grad = needs
        return None, *_flattened(found if isinstance(found, tuple) else (found,), ctx.structure)

    kind: Any = type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )
    return kind.apply


def _flattened(arguments: Sequence[Any], structure: _Structure) -> Sequence[Any]:
    if not any(structure):
        return arguments
    flat: list[Any] = []
    for one, count in zip(arguments, structure, strict=True):
        if count is None:
            flat.append(one)
        else:
            flat.extend(one)
    return flat


def _nested(flat: Sequence[Any], structure: _Structure) -> tuple[Any, ...]:
    if not any(structure):
        return tuple(flat)
    nested, rest = [], iter(flat)
    for count in structure:
        nested.append(next(rest) if count is None else [next(rest) for _ in range(count)])
    return tuple(nested)
