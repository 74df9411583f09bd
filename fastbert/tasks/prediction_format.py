"""The form of a task's predictions in files."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, Example
from fastbert.tasks.text_files import whole_characters

Prediction = dict[str, Any]
"""The prediction for one example, as JSON can hold it: `id`, the value under the task's key, and details."""


def cell(value: Any) -> str:
    """Return a value as text on one line and in one cell of a table."""
    return repr(value) if isinstance(value, float) else re.sub(r"[\t\r\n]+", " ", str(value))


def check_text(value: Any, where: str, example: Example) -> str:
    """Return a predicted text. Raises UserError, naming the place, for another type."""
    if not isinstance(value, str):
        raise UserError(f"{where}: the predicted text must be a string, not {type(value).__name__}")
    return whole_characters(value)


def no_details(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return no more than the predicted value of a JSON object."""
    return {}


@dataclass(frozen=True)
class PredictionFormat:
    """The form of a task's predictions in files."""

    key: str
    """The key of the predicted value: label, score, tags or text."""
    suffixes: tuple[str, ...]
    """Suffixes of the files that can hold predictions, besides .jsonl."""
    check: Callable[[Any, str, Example], Any] = check_text
    """Return a value of a file, checked against its example. Raises UserError, naming the place, for a wrong one."""
    details: Callable[[Mapping[str, Any], str], dict[str, Any]] = no_details
    """Return the other entries of a JSON object that scoring reads, checked."""
    write_text: Callable[[Dataset[Any], Sequence[Prediction]], str] | None = None
    """Return the content of a text file (default: one predicted value per line)."""
    read_text: Callable[[str, Dataset[Any]], list[Prediction]] | None = None
    """Read such a file."""
