"""The layouts of text files: how lines become documents of sentences, and how to tell which layout a text has.

`documents_of_lines` is the reference of csrc/corpus, which reads corpora and which the tests compare with it:

lines       one sentence per line, a blank line between documents
paragraphs  one paragraph per line, which is split into sentences, a blank line between documents
prose       hard-wrapped text, which is joined and split; a blank line ends a paragraph, two or more end a document
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from fastbert.data.sentences import CLOSERS, split_sentences

TextFormat = Literal["auto", "lines", "paragraphs", "prose"]

# A longer document becomes several.
MAX_DOCUMENT_CHARS = 1 << 24
# A longer paragraph of wrapped lines becomes several.
MAX_PARAGRAPH_CHARS = 1 << 20

CJK = re.compile(r"[　-ヿ㐀-䶿一-鿿豈-﫿＀-￯]")
_STOPS = ".!?…。！？｡．؟۔।॥።"


def documents_of_lines(
    lines: Iterable[str],
    layout: TextFormat,
    *,
    one_document: bool,
    max_document_chars: int = MAX_DOCUMENT_CHARS,
    max_paragraph_chars: int = MAX_PARAGRAPH_CHARS,
) -> Iterator[list[str]]:
    """Group lines into documents by layout; with `one_document`, blank lines only separate paragraphs."""
    document = _Document()
    wrapped: list[str] = []  # the lines of the paragraph being read, for prose
    wrapped_chars = 0
    blank_lines = 0
    for line in lines:
        line = line.strip()
        if not line:
            blank_lines += 1
            if layout == "prose":
                document.add(split_sentences(_unwrap(wrapped)))
                wrapped, wrapped_chars = [], 0
            if not one_document and blank_lines == (2 if layout == "prose" else 1):
                yield from document.take()
            continue
        blank_lines = 0
        if layout == "lines":
            document.add([line])
        elif layout == "paragraphs":
            document.add(split_sentences(line))
        else:
            wrapped.append(line)
            wrapped_chars += len(line)
            if wrapped_chars > max_paragraph_chars:
                document.add(split_sentences(_unwrap(wrapped)))
                wrapped, wrapped_chars = [], 0
        if document.chars > max_document_chars:
            yield from document.take()
    document.add(split_sentences(_unwrap(wrapped)))
    yield from document.take()


class _Document:
    """Collect the sentences of one document."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.chars = 0

    def add(self, sentences: Sequence[str]) -> None:
        self.sentences += sentences
        self.chars += sum(map(len, sentences))

    def take(self) -> Iterator[list[str]]:
        if self.sentences:
            yield self.sentences
        self.sentences, self.chars = [], 0


def _unwrap(lines: list[str]) -> str:
    """Join hard-wrapped lines to one paragraph: with spaces, except between two CJK characters."""
    if not lines:
        return ""
    parts = [lines[0]]
    for before, line in pairwise(lines):
        if not (CJK.match(before[-1]) and CJK.match(line[0])):
            parts.append(" ")
        parts.append(line)
    return "".join(parts)


def detect_layout(sample: Sequence[str]) -> TextFormat:
    """Return the layout of a text whose first lines are `sample`.

    prose: more than 30 % of the line ends between two lines are inside a sentence because the line was full (the next
    word would not have fitted into the 95th percentile of line lengths). Otherwise, if `split_sentences` finds several
    sentences in more than 30 % of the lines, each line is a paragraph: prose if blank lines separate most of them, else
    paragraphs. Otherwise lines.
    """
    lines = [line.strip() for line in sample]
    filled = [line for line in lines if line]
    if not filled:
        return "lines"
    width = sorted(map(len, filled))[(len(filled) - 1) * 19 // 20]
    pairs = [(line, follower) for line, follower in pairwise(lines) if line and follower]
    wrapped = sum(
        not _ends_sentence(line) and len(line) + 1 + _first_word_length(follower) > width for line, follower in pairs
    )
    if wrapped > 0.3 * max(len(pairs), 1):
        return "prose"
    several = sum(len(split_sentences(line[:4096])) > 1 for line in filled)
    if several <= 0.3 * len(filled):
        return "lines"
    return "prose" if len(filled) > 2 and len(pairs) < 0.2 * len(filled) else "paragraphs"


def _ends_sentence(line: str) -> bool:
    return line.rstrip(CLOSERS + " ")[-1:] in tuple(_STOPS)


def _first_word_length(line: str) -> int:
    return 1 if CJK.match(line) else min(len(line.split(maxsplit=1)[0]), 20)
