"""Which products are ours and which torch's library's, by a table: never by a timing at run time.

A choice is a function of the CPU, the level, the element, the shape of the weight and a class of row numbers, so it is
the same on every run. The shipped rule follows measurements (docs/performance-cpu.md): ours but for floats in plain
C++. `fastbert doctor --tune` on a machine without a GPU measures this CPU's, and what it saves goes before the shipped
rule. Where a text meets the library in one batch and ours in another, its bits differ between the two; the library
itself may sum few rows otherwise than many. `same_in_every_batch` rules both out.
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
from fastbert.ops import dispatch

FORMAT = 1
ROWS = (16, 64, 256, 1024)  # the upper ends of the classes of row numbers; the last class has none
OWN, LIBRARY = "own", "library"
# By level. Plain C++ is no match for a library that knows the processor; integers are multiplied by nobody else.
SHIPPED = {
    "portable": {"bf16": LIBRARY, "int8": OWN, "fp32": LIBRARY},
    "avx2": {"bf16": OWN, "int8": OWN, "fp32": OWN},
    "avx512": {"bf16": OWN, "int8": OWN, "fp32": OWN},
    "amx": {"bf16": OWN, "int8": OWN, "fp32": OWN},
}
Table = dict[str, dict[str, str]]
# For code that torch.compile traces, which cannot ask the extension.
_LEVEL_AT_IMPORT = _C.cpu_level()
_steady: ContextVar[bool] = ContextVar("fastbert_same_in_every_batch", default=False)


@contextlib.contextmanager
def same_in_every_batch() -> Iterator[None]:
    """Within it, and on this thread, products of ours are preferred whatever the tables say, so that a text has the
    same bits in every batch. Floats in plain C++ are the exception: there the library is several times as fast, and
    `use_backend("native")` is for whoever wants the bits."""
    token = _steady.set(True)
    try:
        yield
    finally:
        _steady.reset(token)


def _must_be_own(element: str) -> bool:
    if dispatch.forced() == "native":
        return True
    return _steady.get() and (element == "int8" or cpu_capability.level() != "portable")


def prefers_own(element: str, rows: int, columns: int, depth: int) -> bool:
    """Whether x (rows, depth) weight^T, of a weight (columns, depth), is a product of ours.

    All are where the native backend is forced, so that fp32 too has the same bits in every batch.
    """
    if _must_be_own(element):
        return True
    return _prefers_own(element, row_class(rows), columns, depth, cpu_capability.level())


def prefers_own_layer(element: str, rows: int, width: int, inner: int) -> bool:
    """Whether all products of an encoder layer are ours.

    Code that torch.compile traces serves all numbers of rows alike: there the shipped rule holds.
    """
    if dispatch.forced() == "native":
        return True
    if torch.compiler.is_compiling():
        return SHIPPED[_LEVEL_AT_IMPORT][element] == OWN
    if _must_be_own(element):
        return True
    return _prefers_own_layer(element, row_class(rows), width, inner, cpu_capability.level())


def row_class(rows: int) -> str:
    """The class of a number of rows: `rows<=64`, or `rows>1024`."""
    return next((f"rows<={most}" for most in ROWS if rows <= most), f"rows>{ROWS[-1]}")


def entry(element: str, kind: str, columns: int, depth: int) -> str:
    """What a choice is called in a table."""
    return f"{element} {columns}x{depth} {kind}"


@functools.cache
def _prefers_own(element: str, kind: str, columns: int, depth: int, level: str) -> bool:
    measured = saved().get(processor(level), {})
    return measured.get(entry(element, kind, columns, depth), SHIPPED[level][element]) == OWN


@functools.cache
def _prefers_own_layer(element: str, kind: str, width: int, inner: int, level: str) -> bool:
    return all(_prefers_own(element, kind, *shape, level) for shape in layer_shapes(width, inner))


def layer_shapes(width: int, inner: int) -> tuple[tuple[int, int], ...]:
    """(columns, depth) of an encoder layer's products: joined projections, their output, the feed-forward pair."""
    return ((3 * width, width), (width, width), (inner, width), (width, inner))


def forget() -> None:
    """Read the saved table again: it, or its place, has changed."""
    _prefers_own.cache_clear()
    _prefers_own_layer.cache_clear()
    saved.cache_clear()


def processor(level: str) -> str:
    """What a measured table is good for: this model of CPU at this level."""
    return f"{tuning_tables.cpu_model()} at {level}"


def saved_path() -> Path:
    """Where a measured table is kept: $FASTBERT_PRODUCTS, or products.json in the user's cache folder."""
    return tuning_tables.place("FASTBERT_PRODUCTS", "products.json")


@functools.cache
def saved() -> Table:
    """The saved table, read once a process; one that cannot be used is named in the log and passed over."""
    return tuning_tables.read_or_empty(saved_path(), load, "the shipped choice of products is used")


def load(path: Path) -> Table:
    """Read a table: choices by processor and entry. Raises UserError if it cannot be used."""
    table = tuning_tables.read(path, "table of products", FORMAT, _parse)
    for of in table.values():
        for name, choice in of.items():
            if choice not in (OWN, LIBRARY):
                raise UserError(
                    f"{path} chooses {choice!r} for {name}, which is neither own nor library: {tuning_tables.CURE}"
                )
    return table


def _parse(document: dict[str, Any]) -> Table:
    return {
        str(cpu): {str(name): choice for name, choice in choices.items()}
        for cpu, choices in document["entries"].items()
    }


def save(path: Path, cpu: str, choices: dict[str, str]) -> None:
    """Write a table whole or not at all; what the file holds of other processors and entries stays in it."""
    merged: Table = tuning_tables.read_or_empty(path, load, "it is replaced")
    merged.setdefault(cpu, {}).update(choices)
    tuning_tables.write(path, {"format": FORMAT, "entries": merged})
    forget()
