"""Examples of every kind of task: what readers make of a file and tasks turn into rows of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

E = TypeVar("E", bound="Example")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One example of a file."""

    id: str
    """The file's own name for it, else its number in the file, from 0."""
    place: str
    """Where in the file it is, for whoever has to mend it: `line 12`, or `question 56be4db0acb8001400a502ec`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample(Example):
    """A text or a pair of texts; the label is a class as the file spells it, or a number (regression), or unknown."""

    text: str
    pair: str | None = None
    label: str | float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedExample(Example):
    """A sentence as words, with a tag each where they are known; `document` numbers the document it belongs to."""

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
    """A question about a context; no answers (`()`) mean that the context has none, None that they are unknown."""

    question: str
    context: str
    answers: tuple[Answer, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample(Example):
    """A prompt and its possible endings. `start` is what every ending begins with (SWAG's `sent2`); `label` counts the
    endings from 0."""

    prompt: str
    endings: tuple[str, ...]
    start: str = ""
    label: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceExample(Example):
    """A text and the text that is to be written for it, where it is known."""

    source: str
    target: str | None = None


@dataclass(frozen=True)
class Dataset(Generic[E]):
    """The examples of a file, in its order."""

    path: str
    examples: tuple[E, ...]

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[E]:
        return iter(self.examples)

    def __getitem__(self, index: int) -> E:
        return self.examples[index]

    def where(self, index: int) -> str:
        """The place of an example, as errors name it: file and line."""
        return f"{self.path}, {self.examples[index].place}"
