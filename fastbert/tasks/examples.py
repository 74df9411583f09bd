"""Examples of every kind of task, which readers return and tasks turn into rows of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E", bound="Example")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example of a file."""

    id: str
    """The id in the file, else the number in the file, from 0."""
    location: str
    """The position in the file, for error messages: `line 12`, or `question 56be4db0acb8001400a502ec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample(Example):
    """A text or a pair of texts; the label is a class as spelled in the file, a number (regression), or None if
    unknown."""

    text: str
    pair: str | None = None
    label: str | float | None = None


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
