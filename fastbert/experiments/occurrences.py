"""Find occurrences of words in a corpus, with a few words of context, and other sentences beside them."""

from __future__ import annotations

import random
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
_WORD = re.compile(r"\w+|[^\w\s]")
FEWEST_WORDS, MOST_WORDS = 6, 40  # of a sentence
LETTERS = 0.75  # share of the words of a sentence that consist of letters, at least
LABEL_WORDS, LABEL_CHARACTERS = 3, 22  # on each side of the word


@dataclass(frozen=True)
class Occurrence:
    """A word of a sentence: its words, and the index of the one."""

    words: tuple[str, ...]
    index: int

    @property
    def label(self) -> str:
        """Return the word in capitals with a few words around it."""
        before, after = self.words[: self.index], self.words[self.index + 1 :]
        left = " ".join(before[-LABEL_WORDS:])
        right = " ".join(after[:LABEL_WORDS])
        left = left if len(left) <= LABEL_CHARACTERS else "…" + left[1 - LABEL_CHARACTERS :]
        right = right if len(right) <= LABEL_CHARACTERS else right[: LABEL_CHARACTERS - 1] + "…"
        return f"{left} {self.words[self.index].upper()} {right}".strip()


@dataclass(frozen=True)
class Sentences:
    """Occurrences of each word, and sentences that were drawn from all of the corpus."""

    occurrences: dict[str, list[Occurrence]]
    others: list[tuple[str, ...]]


def find_sentences(
    documents: Iterable[Sequence[str]],
    words: Sequence[str],
    *,
    most: int,
    others: int,
) -> Sentences:
    """Return at most `most` occurrences per word, in lower case or capitals, and `others` sentences, each drawn at
    random from the documents; the same ones for the same text.

    Sentences of 6 to 40 words, most of them of letters, are read, and one occurrence of a word per sentence.
    Occurrences with the same label, as set phrases have, count once.
    """
    reservoirs: dict[str, _Reservoir[Occurrence]] = {word: _Reservoir(word, most) for word in words}
    background: _Reservoir[tuple[str, ...]] = _Reservoir("other sentences", others)
    for document in documents:
        for sentence in document:
            tokens = tuple(_WORD.findall(sentence))
            letters = sum(token.isalpha() for token in tokens)
            if not FEWEST_WORDS <= len(tokens) <= MOST_WORDS or letters < LETTERS * len(tokens):
                continue
            background.add(tokens, tokens)
            lowered = [token.lower() for token in tokens]
            for word, reservoir in reservoirs.items():
                if word in lowered:
                    occurrence = Occurrence(tokens, lowered.index(word))
                    reservoir.add(occurrence, occurrence.label.lower())
    return Sentences({word: reservoir.items for word, reservoir in reservoirs.items()}, background.items)


class _Reservoir(Generic[Item]):
    """A random sample of a stream, as large as may be up to a limit, with one item per key."""

    def __init__(self, seed: str, limit: int) -> None:
        self.draw, self.limit, self.count = random.Random(seed), limit, 0
        self.chosen: dict[Hashable, Item] = {}
        self.keys: list[Hashable] = []

    @property
    def items(self) -> list[Item]:
        """Return the sample."""
        return [self.chosen[key] for key in self.keys]

    def add(self, item: Item, key: Hashable) -> None:
        """Take an item, or leave it."""
        if key in self.chosen:
            return
        self.count += 1
        if len(self.keys) < self.limit:
            self.keys.append(key)
            self.chosen[key] = item
            return
        index = self.draw.randrange(self.count)
        if index < self.limit:
            del self.chosen[self.keys[index]]
            self.keys[index] = key
            self.chosen[key] = item
