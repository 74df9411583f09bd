"""Compact tables of records whose rows have no common shape: their scalar fields as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastbert.benchmarks.performance.figures import Record, Row
from fastbert.benchmarks.performance.markdown import number, table

# Of a row itself rather than of what was measured.
_ORIGIN = ("commit", "versions", "commit_per_seed")


def generic_tables(by_class: Mapping[str, Record]) -> list[str]:
    """Return a table per class and set of fields: values that all rows share above it, nested ones left to the
    record."""
    lines = []
    for name, record in by_class.items():
        shapes: dict[tuple[str, ...], list[Row]] = {}
        for row in record["rows"]:
            fields = tuple(key for key, value in row.items() if _is_scalar(value) and key not in _ORIGIN)
            match = next((known for known in shapes if set(fields) <= set(known) or set(known) <= set(fields)), None)
            if match is None:
                shapes[fields] = [row]
            elif len(match) >= len(fields):
                shapes[match].append(row)
            else:
                shapes[fields] = [*shapes.pop(match), row]
        for fields, rows in shapes.items():
            lines += _table(name, fields, rows)
    return lines


def _table(name: str, fields: tuple[str, ...], rows: list[Row]) -> list[str]:
    shared = {
        field: rows[0].get(field)
        for field in fields
        if len(rows) > 1 and field != "workload" and len({_text(row.get(field)) for row in rows}) == 1
    }
    columns = [field for field in fields if field not in shared]
    common = ", ".join(f"{_words(field)} {_text(value)}" for field, value in shared.items() if value is not None)
    heading = f"**{name}**{f': {common}' if common else ''}"
    cells = [[_text(row.get(column)) for column in columns] for row in rows]
    cells = [line for line in cells if any(line[2:] if len(columns) > 2 else line)]  # others hold nested values alone
    return [heading, "", *table([_words(column) for column in columns], cells, drop_empty=True)]


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _words(field: str) -> str:
    return field.replace("_", " ")


def _text(value: Any) -> str:
    if not _is_scalar(value) or value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value)
