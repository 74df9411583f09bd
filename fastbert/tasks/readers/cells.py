"""Check the value of a cell: a class, a number, a choice; and the ids of a table's rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.io.text import whole_characters
from fastbert.tasks.readers.tables import Row, Table

IDS = ("index", "id", "idx", "pairID")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def class_name(value: Any, where: str, name: str) -> str:
    """Return a label that must be the name of a class; JSON may hold an integer or a boolean. Raises UserError."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{where}: {name} is empty; fill it in or leave the row out")
    if not isinstance(value, str):
        raise UserError(f"{where}: {name} must be a string or an integer, not {type(value).__name__}; correct it")
    return whole_characters(value.strip())


def number(value: Any, where: str, name: str) -> float:
    """Return a label that must be a finite number. Raises UserError."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        value = float(value)
    # An integer of JSON may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
        shown = repr(value) if len(repr(value)) < 50 else "it"
        cure = "; use --task classification for classes" if isinstance(value, str) and value.strip() else "; correct it"
        raise UserError(f"{where}: {name} must be a finite number, and {shown} is not{cure}")
    return float(value)


def choice_of(value: Any, where: str, name: str, choices: int) -> int:
    """Return the number of a choice, from 0. Raises UserError."""
    if isinstance(value, str) and value.strip().isdecimal() and value.isascii():
        value = int(value) if len(value) < 10 else choices
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < choices:
        raise UserError(
            f"{where}: {name} must be a number from 0 to {choices - 1}, not {str(value)[:40]!r}; correct it"
        )
    return value


def row_ids(table: Table, rows: Sequence[tuple[int, Row]], column: str | None) -> list[str]:
    """Return the ids of numbered rows: those of the user's column, else of a column with a usual name if they are
    unique, else the numbers."""
    numbers = [str(i) for i, _ in rows]
    index = table.first(IDS) if column is None else table.named(column, "--id-column")
    if index is None:
        return numbers
    lines: dict[str, int] = {}
    for _, row in rows:
        value = row.cells[index]
        if column is None and (not isinstance(value, str | int) or value == ""):
            return numbers
        name = class_name(value, table.where(row), table.column(index))
        if name in lines:
            message = f"{table.where(row)}: {table.column(index)} {name!r} is also that of {table.unit} {lines[name]}"
            if column is not None:
                raise UserError(f"{message}; name a column of unique ids with --id-column")
            logger.warning("%s; the examples are numbered instead", message)
            return numbers
        lines[name] = row.line
    return list(lines)
