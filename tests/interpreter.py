"""Triton's interpreter without what it repeats within each kernel, which takes most of its time.

For each call of a `@triton.jit` function inside a kernel it searches all of `triton.language` for what to replace,
though the launch has replaced it; for each array it builds a table of all dtypes, and for each tensor its shape as
constants; and each sum of integers is computed again in 64 bits, for a check of overflow that only `debug` reads. What
kernels compute stays.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import Any


def hasten() -> None:
    """Let the interpreter remember what it looks up again and again; versions built differently are left alone."""
    from triton.runtime import interpreter

    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_builtin = _patch_builtin()
        interpreter._patch_lang = _patch_lang(interpreter._patch_lang)
        interpreter._get_np_dtype = _numpy_dtype(interpreter._get_np_dtype)
        _hasten_tensors()
        _check_overflow_if_read()


def _patch_builtin() -> Any:
    """Return a `_patch_builtin` that knows the names to be replaced instead of searching for them."""
    from triton import language as tl
    from triton.runtime import interpreter

    packages = (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    names = {
        package: [name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member)]
        for package in packages
    }

    def patch(package: Any, builder: Any, scope: Any) -> None:
        for name in names[package]:
            member = getattr(package, name)
            if tl.core.is_builtin(member):
                interpreter._patch_attr(package, name, member, builder, scope)

    return patch


def _patch_lang(original: Any) -> Any:
    """Return a `_patch_lang` that does nothing for a call inside a launch that has replaced the same modules."""
    from triton import language as tl
    from triton.runtime import interpreter

    replaced: set[str] = set()
    launch: list[Any] = []

    class Scope(interpreter._LangPatchScope):  # type: ignore[misc, name-defined]
        """The replacements of a launch; calls inside it put nothing back."""

        def __init__(self, changes: list[Any], modules: frozenset[str]) -> None:
            self._changes = changes
            self._modules = modules

        def restore(self) -> None:
            super().restore()
            replaced.difference_update(self._modules)
            launch.clear()

    @functools.cache
    def modules(function: Any) -> frozenset[str]:
        values = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return frozenset(value.__name__ for value in values if value in (tl, tl.core))

    def patch(function: Any) -> Any:
        missing = modules(function) - replaced
        if launch and modules(function) and not missing:
            return None
        scope = original(function)
        replaced.update(missing)
        if not launch:
            launch.append(Scope(scope._changes, missing))
            return launch[0]
        return scope

    return patch


def _numpy_dtype(original: Any) -> Any:
    """Return a `_get_np_dtype` that remembers its answers."""
    from triton import language as tl

    remembered: dict[str, Any] = {}

    def numpy_dtype(dtype: Any) -> Any:
        scalar = dtype.scalar
        name = "pointer" if isinstance(scalar, tl.pointer_type) else scalar.name
        if name not in remembered:
            remembered[name] = original(dtype)
        return remembered[name]

    return numpy_dtype


def _hasten_tensors() -> None:
    """Let tensors and their types of one shape share its size and its constants."""
    from triton.language import core

    original = core.block_type.__init__

    @functools.cache
    def constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(shape)), core.tuple([core.constexpr(size) for size in shape])

    @functools.cache
    def sizes(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        block = object.__new__(core.block_type)
        original(block, core.float32, shape)
        return block.shape, block.numel

    def make_block(self: Any, element_ty: Any, shape: Any) -> None:
        if type(shape) is not tuple or not all(type(size) is int for size in shape):
            original(self, element_ty, shape)
            return
        self.element_ty = element_ty
        self.shape, self.numel = sizes(shape)
        self.name = f"<{self.shape}, {element_ty}>"

    def make_tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = constants(type.shape if type.is_block() else ())

    core.block_type.__init__ = make_block
    core.tensor.__init__ = make_tensor


def _check_overflow_if_read() -> None:
    """Leave out the 64-bit copy of each sum of integers whose check `device_assert` would drop."""
    from triton.language.semantic import TritonSemantic

    original = TritonSemantic.binary_op_sanitize_overflow_impl

    def check(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            original(self, lhs, rhs, binary_op)

    TritonSemantic.binary_op_sanitize_overflow_impl = check
