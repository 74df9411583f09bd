"""Texts as callers hold them: lists, generators, NumPy arrays, and columns of pandas, polars and Arrow.

None of these packages is imported: what is here was made by one that is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol, TypeVar

from fastbert.errors import UserError
from fastbert.io.text import has_surrogates

SHOWN = 40  # characters of an item in an error


class Series(Protocol):
    """A column of pandas or polars."""

    def to_list(self) -> list[Any]:
        """Return the items, None or NaN for missing ones."""
        ...


SeriesT = TypeVar("SeriesT", bound=Series)


def items_of(values: object, name: str = "texts") -> Iterable[Any]:
    """Return the items of a column or an array as a list, and any other iterable as it is.

    Raises UserError, under the `name` of the argument, for a text, bytes, a table, an array of several dimensions, and
    what has no order.
    """
    kind = type(values)
    if hasattr(kind, "columns") or hasattr(kind, "column_names"):
        raise UserError(f"{name} is a table ({kind.__name__}): give one of its columns, frame['text'] for example")
    dimensions = getattr(values, "ndim", 1)
    if dimensions != 1:
        shape = tuple(getattr(values, "shape", ()))
        example = f"a column {name}[:, 0]" if dimensions else f"[{name}.item()]"
        raise UserError(f"{name} has the shape {shape}: give one dimension, {example} for example")
    for method in ("to_pylist", "to_list", "tolist"):  # of Arrow, of pandas and polars, of NumPy
        if callable(getattr(kind, method, None)):
            items: list[Any] = getattr(values, method)()
            return items
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        cure = "decode it first" if isinstance(values, bytes) else "make it a list"
        raise UserError(f"{name} must be a list of strings or another iterable, not {kind.__name__}; {cure}")
    return values


def texts_of(values: object, name: str = "texts") -> Iterable[str]:
    """Return texts: a list if their number is known, else a generator that checks them as they come.

    Raises UserError for a missing value and an item that is not a text, by its index, and where `items_of` does.
    """
    items = items_of(values, name)
    if not isinstance(items, Sequence):
        return _checked(items, name)
    texts = items if isinstance(items, list) else list(items)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise wrong_item(text, position(values, index, name), texts)
    return texts


def position(values: object, index: int, name: str = "texts") -> str:
    """Return the position of an item in words, with its label in the index of a pandas Series if that differs."""
    label = values.index[index] if _is_pandas(values) else index  # type: ignore[attr-defined]
    return f"{name}[{index}]" if label == index else f"{name}[{index}] (index label {label!r})"


def _checked(items: Iterable[Any], name: str) -> Iterator[str]:
    for index, text in enumerate(items):
        if not isinstance(text, str):
            raise wrong_item(text, f"{name}[{index}]")
        yield text


def wrong_item(item: object, where: str, items: Sequence[object] = (), expected: str = "a string") -> UserError:
    """Return the error for an item that is not a text: a missing value, of which there may be more among the `items`,
    or something else."""
    if is_missing(item):
        more = sum(map(is_missing, items)) - 1
        others = f", and so {'is 1 other' if more == 1 else f'are {more} others'}" if more > 0 else ""
        return UserError(
            f"{where} is missing ({item}){others}: drop such rows first (.dropna(), .drop_nulls()) or fill them with ''"
        )
    if isinstance(item, bytes):
        return UserError(f"{where} is bytes: decode it first, with .decode('utf-8') for example")
    shown = repr(item)
    shown = shown if len(shown) <= SHOWN else f"{shown[: SHOWN - 3]}..."
    return UserError(f"{where} must be {expected}, not {type(item).__name__} ({shown})")


def is_missing(item: object) -> bool:
    """Return whether an item stands for a missing value: None, NaN, or pandas' NA and NaT."""
    return item is None or (isinstance(item, float) and item != item) or type(item).__name__ in ("NAType", "NaTType")


def refuse_surrogates(texts: Iterable[str], name: str = "texts", first: int = 0) -> None:
    """Raise UserError for a text with a lone surrogate; `first` is the index of the first text."""
    for index, text in enumerate(texts, first):
        if has_surrogates(text):
            raise UserError(
                f"{name}[{index}] holds a lone surrogate (half of a character): clean it first, with"
                ' text.encode("utf-8", "replace").decode() for example'
            )


def is_series(values: object) -> bool:
    """Return whether values are a Series of pandas or polars."""
    polars = sys.modules.get("polars")
    return _is_pandas(values) or (polars is not None and isinstance(values, polars.Series))


def _is_pandas(values: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(values, pandas.Series)


def series_like(column: Any, values: Any, name: str) -> Any:
    """Return values, a list or an array, as a Series of the same package as a column's, with its index if it has
    one."""
    if _is_pandas(column):
        return sys.modules["pandas"].Series(values, index=column.index, name=name)
    return sys.modules["polars"].Series(name, values)
