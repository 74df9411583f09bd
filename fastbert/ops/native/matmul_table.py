"""Choose between native matmuls and PyTorch's by a table, never by a timing at run time.

A choice is a function of the CPU, its capability level, the element, the shape of the weight and a class of row counts,
so it is the same on every run. The default rule follows measurements (docs/performance-cpu.md): native except for
floats in portable C++. `fastbert doctor --tune` on a machine without a GPU measures its CPU and saves a table, which
overrides the default rule. Where a text is multiplied by PyTorch in one batch and natively in another, its bits differ
between the two, and PyTorch itself may sum few rows in another order than many; `same_in_every_batch` avoids both.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from fastbert import _C, cpu_capability, tuning_tables
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.ops import dispatch

FORMAT = 1
ROWS = (16, 64, 256, 1024)  # the upper ends of the classes of row counts; the last class is unbounded
# Choices as they are stored in files.
NATIVE, TORCH = "own", "library"
# By level. Portable C++ is slower than a library tuned for the processor; PyTorch has no int8 matmul like ours.
DEFAULTS = {
    "portable": {"bf16": TORCH, "int8": NATIVE, "fp32": TORCH},
    "avx2": {"bf16": NATIVE, "int8": NATIVE, "fp32": NATIVE},
    "avx512": {"bf16": NATIVE, "int8": NATIVE, "fp32": NATIVE},
    "amx": {"bf16": NATIVE, "int8": NATIVE, "fp32": NATIVE},
}
Table = dict[str, dict[str, str]]
# For code that torch.compile traces, which cannot call the extension.
_CAPABILITY_AT_IMPORT = _C.cpu_capability()
_same_bits: ContextVar[bool] = ContextVar("fastbert_same_in_every_batch", default=False)


@contextlib.contextmanager
def same_in_every_batch() -> Iterator[None]:
    """Prefer native matmuls to the table's choices, within the block and on this thread: the same bits in every batch.

    Except for floats at the portable level, where PyTorch is several times as fast; there `use_backend("native")`
    gives the same bits.
    """
    token = _same_bits.set(True)
    try:
        yield
    finally:
        _same_bits.reset(token)


def _is_forced(element: str) -> bool:
    if dispatch.forced() == "native":
        return True
    return _same_bits.get() and (element == "int8" or cpu_capability.current() != "portable")


def prefers_native(element: str, rows: int, columns: int, depth: int) -> bool:
    """Return whether x (rows, depth) weight^T, with a weight (columns, depth), is multiplied natively.

    It always is where the native backend is forced, so that fp32 too has the same bits in every batch.
    """
    if _is_forced(element):
        return True
    return _prefers_native(element, row_class(rows), columns, depth, cpu_capability.current())


def prefers_native_layer(element: str, rows: int, width: int, inner: int) -> bool:
    """Return whether all matmuls of an encoder layer are native.

    Compiled code is the same for all row counts: there the default rule holds.
    """
    if dispatch.forced() == "native":
        return True
    if torch.compiler.is_compiling():
        return DEFAULTS[_CAPABILITY_AT_IMPORT][element] == NATIVE
    if _is_forced(element):
        return True
    return _prefers_native_layer(element, row_class(rows), width, inner, cpu_capability.current())


def row_class(rows: int) -> str:
    """Return the class of a row count, such as `rows<=64` or `rows>1024`."""
    return next((f"rows<={most}" for most in ROWS if rows <= most), f"rows>{ROWS[-1]}")


def entry_name(element: str, kind: str, columns: int, depth: int) -> str:
    """Return the name of a choice in a table."""
    return f"{element} {columns}x{depth} {kind}"


@functools.cache
def _prefers_native(element: str, kind: str, columns: int, depth: int, level: str) -> bool:
    measured = saved().get(cpu_key(level), {})
    return measured.get(entry_name(element, kind, columns, depth), DEFAULTS[level][element]) == NATIVE


@functools.cache
def _prefers_native_layer(element: str, kind: str, width: int, inner: int, level: str) -> bool:
    return all(_prefers_native(element, kind, *shape, level) for shape in layer_shapes(width, inner))


def layer_shapes(width: int, inner: int) -> tuple[tuple[int, int], ...]:
    """Return (columns, depth) of an encoder layer's matmuls: joined projections, their output, feed-forward."""
    return ((3 * width, width), (width, width), (inner, width), (width, inner))


def clear_cache() -> None:
    """Read the saved table again, after it or its path has changed."""
    _prefers_native.cache_clear()
    _prefers_native_layer.cache_clear()
    saved.cache_clear()


def cpu_key(level: str) -> str:
    """Return the key of this CPU model at a capability level, for which a measured table holds."""
    return f"{tuning_tables.cpu_model()} at {level}"


def saved_path() -> Path:
    """Return the path of the measured table: $FASTBERT_PRODUCTS, or products.json in the user's cache folder."""
    return tuning_tables.path_of("FASTBERT_PRODUCTS", "products.json")


@functools.cache
def saved() -> Table:
    """Return the saved table, read once per process; a table that cannot be used is logged and ignored."""
    return tuning_tables.read_or_empty(saved_path(), load, "the default choice of matmuls is used")


def load(path: Path) -> Table:
    """Read a table of choices by CPU and entry. Raises UserError if it cannot be used."""
    table = tuning_tables.read(path, "table of matmuls", FORMAT, _parse)
    for choices in table.values():
        for name, choice in choices.items():
            if choice not in (NATIVE, TORCH):
                raise UserError(
                    f"{path} chooses {shown(choice)} for {shown(name)}, which is neither 'own' nor 'library':"
                    f" {tuning_tables.CURE}"
                )
    return table


def _parse(document: dict[str, Any]) -> Table:
    return {
        str(cpu): {str(name): choice for name, choice in choices.items()}
        for cpu, choices in document["entries"].items()
    }


def save(path: Path, cpu: str, choices: dict[str, str]) -> None:
    """Write a table atomically; choices of other CPUs and entries stay in the file."""
    merged: Table = tuning_tables.read_or_empty(path, load, "it is replaced")
    merged.setdefault(cpu, {}).update(choices)
    tuning_tables.write(path, {"format": FORMAT, "entries": merged})
    clear_cache()
