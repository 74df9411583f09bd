"""Custom operators whose plain calls bypass torch's dispatcher.

An operator of `torch.library` with many arguments is slow to call: the dispatcher checks each against the schema, and
flattens the inputs. Compilers, modes, transforms, tracers and profilers need the operator's name, fake and formula; a
plain call needs its result. So plain calls run the function itself, with the same formula for its gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fastbert.ops.native import buffers

# By argument: the number of tensors in its list, None if it is not a list.
_Structure: TypeAlias = tuple[int | None, ...]


def operator(name: str, *, device_types: str | None = None) -> Callable[[Callable[..., Any]], Operator]:
    """Decorate a function as the operator `name` ("fastbert::..."), which does not modify its arguments."""
    return lambda function: Operator(name, function, device_types)


class Operator:
    """A `torch.library.custom_op`, and the function itself for plain calls."""

    def __init__(self, name: str, function: Callable[..., Any], device_types: str | None = None) -> None:
        self._name = name.removeprefix("fastbert::")
        self._function = function
        self._traced: Any = torch.library.custom_op(name, function, mutates_args=(), device_types=device_types)
        self._differentiable: Any = None
        self.__doc__ = function.__doc__

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """Register a fake, as for `torch.library`."""
        self._traced.register_fake(fake)
        return fake

    def register_autograd(self, formula: Callable[..., Any], *, setup_context: Callable[..., None]) -> None:
        """Register the formula of the gradients, as for `torch.library`."""
        self._traced.register_autograd(formula, setup_context=setup_context)
        self._differentiable = _differentiable(self._name, self._function, formula, setup_context)

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():  # first: a compiler cannot trace the rest
            return self._traced(*arguments)
        structure = tuple(len(argument) if type(argument) is list else None for argument in arguments)
        flat = _flattened(arguments, structure)
        tensors = [value for value in flat if isinstance(value, Tensor)]
        observed = torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_function_stack()
        if observed or not buffers.direct(*tensors):
            return self._traced(*arguments)
        if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in tensors):
            return self._function(*arguments)
        # An operator without a formula is a backward one: torch's raises for a second derivative.
        return self._traced(*arguments) if self._differentiable is None else self._differentiable(structure, *flat)


def _differentiable(
    name: str, function: Callable[..., Any], formula: Callable[..., Any], setup_context: Callable[..., None]
) -> Callable[..., Any]:
    """Return the function with its gradients, as a function of a structure and flat arguments."""

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
            gradients = formula(ctx, list(grads)) if ctx.listed else formula(ctx, *grads)
        finally:
            ctx.needs_input_grad = needs
        return None, *_flattened(gradients if isinstance(gradients, tuple) else (gradients,), ctx.structure)

    subclass: Any = type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )
    return subclass.apply


def _flattened(arguments: Sequence[Any], structure: _Structure) -> Sequence[Any]:
    if not any(structure):
        return arguments
    flat: list[Any] = []
    for argument, count in zip(arguments, structure, strict=True):
        if count is None:
            flat.append(argument)
        else:
            flat.extend(argument)
    return flat


def _nested(flat: Sequence[Any], structure: _Structure) -> tuple[Any, ...]:
    if not any(structure):
        return tuple(flat)
    nested, values = [], iter(flat)
    for count in structure:
        nested.append(next(values) if count is None else [next(values) for _ in range(count)])
    return tuple(nested)
