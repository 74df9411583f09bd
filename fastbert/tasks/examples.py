"""Examples of every kind of task, which readers return and tasks turn into rows of tokens; and predictions for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastbert.errors import UserError
from fastbert.io.text import whole_characters

E = TypeVar("E", bound="Example")
Prediction = dict[str, Any]
"""The prediction for one example, as JSON can hold it: `id`, the value under the task's key, and details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example of a file."""

    id: str
    """The id in the file, else the number in the file, from 0."""
    location: str
    """The position in the file, for error messages: `line 12`, or `question 56be4db0acb8001400a502ec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample(Example):
    """A text or a pair of texts; the label is a class as spelled in the file, a number (regression), a set of classes
    (multilabel), or None if unknown."""

    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedExample(Example):
    """A sentence as words, with one tag per word or None if unknown; `document` is the number of its document."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    document: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A span of the context: its text, and the character at which it begins."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionExample(Example):
    """A question about a context; `answers` is `()` if the context has none, None if they are unknown."""

    question: str
    context: str
    answers: tuple[Answer, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample(Example):
    """A prompt and its possible endings. `start` is the beginning of every ending (SWAG's `sent2`); `label` is the
    number of the correct ending, from 0."""

    prompt: str
    endings: tuple[str, ...]
    start: str = ""
    label: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceExample(Example):
    """A text, and the text to write for it, None if unknown."""

    source: str
    target: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGroup(Example):
    """A query (anchor) with texts: its positive first, then negatives; or with candidates and their labels; or a pair
    with a score."""

    texts: tuple[str, ...]
    """The anchor; then the positive and any negatives, or the candidates, or the second text of a pair."""
    labels: tuple[float, ...] | None = None
    """One per text after the first: relevance, or the pair's score; None where the first is the positive and the others
    are negatives, and where they are unknown."""
    teacher: tuple[float, ...] | None = None
    """Scores of a teacher, one per text after the first."""
    keys: tuple[str, ...] | None = None
    """Ids of the texts, one per text, the anchor's first; "" for a text without one."""


@dataclass(frozen=True)
class Dataset(Generic[E]):
    """The examples of a file, in the order of the file."""

    path: str
    examples: tuple[E, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[E]:
        return iter(self.examples)

    def __getitem__(self, index: int) -> E:
        return self.examples[index]

    def where(self, index: int) -> str:
        """Return the file and position of an example, for error messages."""
        return f"{self.path}, {self.examples[index].location}"


def cell(value: Any) -> str:
    """Return a value as text on one line and in one cell of a table."""
    return repr(value) if isinstance(value, float) else re.sub(r"[\t\r\n]+", " ", str(value))


def check_text(value: Any, where: str, example: Example) -> str:
    """Return a predicted text. Raises UserError, naming the place, for another type."""
    if not isinstance(value, str):
        raise UserError(f"{where}: the predicted text must be a string, not {type(value).__name__}")
    return whole_characters(value)


def confidences(*names: str) -> Callable[[Mapping[str, Any], str], dict[str, Any]]:
    """Return a function that reads how sure a prediction is from a JSON object: those of its entries `names` that are
    numbers, or lists or objects of numbers. Others are left out: scores do not depend on them."""

    def read(record: Mapping[str, Any], where: str) -> dict[str, Any]:
        return {name: record[name] for name in names if name in record and _is_numeric(record[name])}

    return read


def _is_numeric(value: Any) -> bool:
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return all(isinstance(item, int | float) and not isinstance(item, bool) for item in values)


@dataclass(frozen=True)
class PredictionFormat:
    """The format of a task's predictions in files."""

    key: str
    """The key of the predicted value: label, score, tags or text."""
    suffixes: tuple[str, ...]
    """Suffixes of the files that can hold predictions, besides .jsonl."""
    check: Callable[[Any, str, Example], Any] = check_text
    """Return a value of a file, checked against its example. Raises UserError, naming the place, for a wrong one."""
    details: Callable[[Mapping[str, Any], str], dict[str, Any]] | None = None
    """Return the other entries of a JSON object that scores and reports read, checked; None if they read no others."""
    write_cell: Callable[[Any], str] = cell
    """Return a predicted value as text on one line and in one cell of a table, which `check` reads."""
    write_text: Callable[[Dataset[Any], Sequence[Prediction]], str] | None = None
    """Return the content of a text file (default: one predicted value per line)."""
    read_text: Callable[[str, Dataset[Any]], list[Prediction]] | None = None
    """Read such a file."""
