"""Custom operators whose plain calls bypass torch's dispatcher.

An operator of `torch.library` with many arguments is slow to call: the dispatcher checks each against the schema, and
flattens the inputs. Compilers, modes, transforms, tracers and profilers need the operator's name, fake and formula; a
plain call needs its result. So plain calls run the function itself, with the same formula for its gradients.

A function may receive a record of arguments, a NamedTuple. Records never cross `torch.library`: in the operator and its
formula the fields of the record stand in its place, and the function and the fake receive a record built from them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, get_type_hints

import torch
from torch import Tensor

from fastbert.ops import dispatch
from fastbert.ops.native import buffers

# By argument: the number of tensors in its list, None if it is not a list.
_Structure: TypeAlias = list[int | None]


def operator(name: str, *, device_types: str | None = None) -> Callable[[Callable[..., Any]], Operator]:
    """Decorate a function as the operator `name` ("fastbert::..."), which does not modify its arguments."""
    return lambda function: Operator(name, function, device_types)


class Operator:
    """A `torch.library.custom_op`, and the function itself for plain calls."""

    def __init__(self, name: str, function: Callable[..., Any], device_types: str | None = None) -> None:
        self._name = name.removeprefix("fastbert::")
        self._function = _without_record(function)
        self._traced: Any = torch.library.custom_op(name, self._function, mutates_args=(), device_types=device_types)
        self._differentiable: Any = None
        self.__doc__ = function.__doc__

    def register_fake(self, fake: Callable[..., Any]) -> Callable[..., Any]:
        """Register a fake, as for `torch.library`; it may receive the record that the function receives."""
        self._traced.register_fake(_without_record(fake))
        return fake

    def register_autograd(
        self, formula: Callable[..., Any] | None = None, *, setup_context: Callable[..., None]
    ) -> Callable[..., Any]:
        """Register the formula of the gradients, as for `torch.library`; without a formula, decorate it."""
        if formula is None:
            return functools.partial(self.register_autograd, setup_context=setup_context)
        self._traced.register_autograd(formula, setup_context=setup_context)
        self._differentiable = _differentiable(self._name, self._function, formula, setup_context)
        return formula

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():  # first: a compiler cannot trace the rest
            return self._traced(*arguments)
        structure = [len(argument) if type(argument) is list else None for argument in arguments]
        flat = _flattened(arguments, structure)
        tensors = [value for value in flat if isinstance(value, Tensor)]
        observed = torch.autograd.profiler._is_profiler_enabled or torch._C._len_torch_function_stack()
        if observed or not buffers.direct(*tensors):
            return self._traced(*arguments)
        if not dispatch.needs_backward(*tensors):
            return self._function(*arguments)
        # An operator without a formula is a backward one: torch's raises for a second derivative.
        return self._traced(*arguments) if self._differentiable is None else self._differentiable(structure, *flat)


def _without_record(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the fields of the record that `function` receives; itself if it receives none."""
    signature = inspect.signature(function, eval_str=True)
    parameters = list(signature.parameters.values())
    first = next((i for i, parameter in enumerate(parameters) if hasattr(parameter.annotation, "_fields")), None)
    if first is None:
        return function
    record = parameters[first].annotation
    last, types = first + len(record._fields), get_type_hints(record)

    @functools.wraps(function)
    def flat(*values: Any) -> Any:
        return function(*values[:first], record(*values[first:last]), *values[last:])

    parameters[first : first + 1] = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=types[name])
        for name in record._fields
    ]
    flat.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return flat


def save(ctx: Any, *values: Any) -> None:
    """Save values for backward: tensors by autograd, which notices when they change, all others as they are."""
    tensors = [value if isinstance(value, Tensor) else None for value in values]
    ctx.save_for_backward(*tensors)
    ctx.others = [value if tensor is None else None for value, tensor in zip(values, tensors)]


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Save the inputs of an operator; a `setup_context`."""
    save(ctx, *inputs)


def saved(ctx: Any) -> list[Any]:
    """Return the values that `save` saved."""
    return [other if tensor is None else tensor for tensor, other in zip(ctx.saved_tensors, ctx.others)]


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
