"""Triton's interpreter without the look-ups that it repeats within each kernel, which take half of its time.

For each call of a `@triton.jit` function inside a kernel it searches all of `triton.language` for what to replace,
though the launch has replaced it, and for each array it builds a table of all dtypes. What kernels compute stays.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any


def hasten() -> None:
    """Let the interpreter remember what it looks up again and again; versions built differently are left alone."""
    from triton.runtime import interpreter

    if hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_builtin = _patch_builtin()
        interpreter._patch_lang = _patch_lang(interpreter._patch_lang)
        interpreter._get_np_dtype = _numpy_dtype(interpreter._get_np_dtype)


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
