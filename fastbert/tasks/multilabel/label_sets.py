"""Sets of labels in cells: lists of JSON, or text with a separator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from fastbert.errors import UserError
from fastbert.tasks.examples import cell
from fastbert.tasks.readers.cells import class_name

SEPARATORS = ("|", ";", ",")
"""The separators that are looked for, in this order; predictions are written with the first."""


def read_cell(value: Any, where: str, name: str) -> str | tuple[str, ...]:
    """Return the labels of a list, in JSON or as text in its form; any other text as it is, to be split. Raises
    UserError."""
    if value is None:
        raise UserError(f"{where}: {name} is missing; write [], or an empty cell, for no label, or leave the row out")
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith("["):
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            raise UserError(
                f'{where}: {name} begins like a list and is not JSON; write it as ["a", "b"], or with a separator'
            ) from None
    if isinstance(value, list):
        return unique(class_name(label, where, name) for label in value)
    return (class_name(value, where, name),)


def unique(labels: Iterable[str]) -> tuple[str, ...]:
    """Return labels in their order, each once."""
    return tuple(dict.fromkeys(labels))


def split(text: str, separator: str | None) -> tuple[str, ...]:
    """Return the labels of a cell's text; None: the whole text is one label, if it is not empty."""
    pieces = [text] if separator is None else text.split(separator)
    return unique(piece.strip() for piece in pieces if piece.strip())


def find_separator(texts: Iterable[str]) -> str | None:
    """Return the first of `SEPARATORS` that one of the texts holds."""
    present = set().union(*texts)
    return next((separator for separator in SEPARATORS if separator in present), None)


def read_prediction(value: Any, where: str, name: str) -> tuple[str, ...]:
    """Return the labels of a predicted value, text with any of the separators included. Raises UserError."""
    labels = read_cell(value, where, name)
    return split(labels, find_separator([labels])) if isinstance(labels, str) else labels


def write_cell(labels: Sequence[str]) -> str:
    """Return labels as text that `read_prediction` reads: with `|` between them, or as a JSON list if a label holds a
    separator itself, or a line break or TAB, which `cell` would replace."""
    is_plain = not any(character in label for label in labels for character in (*SEPARATORS, *"[\t\r\n"))
    return cell(SEPARATORS[0].join(labels) if is_plain else json.dumps(list(labels), ensure_ascii=False))
