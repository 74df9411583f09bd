"""Passages of documents, and pairs of them for contrastive training without labels.

A passage is a few consecutive sentences. A pair is a passage with itself, whose two vectors differ by their dropout
masks (SimCSE, Gao et al. 2021, section 3), or with the next passage of its document.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write

MOST_SENTENCES, MOST_WORDS = 5, 100  # of a passage
SHORTEST, LONGEST = 20, 4_000  # characters of a passage that is used

Pairs = Literal["dropout", "neighbours", "both"]


def passages(document: Sequence[str]) -> Iterator[str]:
    """Yield the passages of a document, a list of sentences: up to `MOST_SENTENCES` sentences of together at most
    `MOST_WORDS` words, or one longer sentence."""
    chosen: list[str] = []
    words = 0
    for sentence in document:
        size = len(sentence.split())
        if chosen and (len(chosen) == MOST_SENTENCES or words + size > MOST_WORDS):
            yield " ".join(chosen)
            chosen, words = [], 0
        chosen.append(sentence)
        words += size
    if chosen:
        yield " ".join(chosen)


def usable_passages(document: Sequence[str]) -> list[str | None]:
    """Return the passages of a document, with None in place of those shorter than `SHORTEST` or longer than `LONGEST`
    characters."""
    return [text if SHORTEST <= len(text) <= LONGEST else None for text in passages(document)]


@dataclass(frozen=True, order=True)
class _Sampled:
    """A passage of a sample, and the next one of its document; the smallest `rank`, a negative, is dropped first."""

    rank: int
    text: str
    following: str | None


def sample_pairs(documents: Iterable[Sequence[str]], count: int, pairs: Pairs, seed: int) -> list[tuple[str, str]]:
    """Return up to `count` pairs of texts with distinct first texts, in a random order.

    Passages are ranked by a hash of the seed and their text, and those of the lowest ranks are taken: a uniform sample
    of the distinct passages in memory for `count` of them, which does not depend on the order of the documents. Of a
    passage that occurs in several places, the first one decides which passage is next. With "both", every other passage
    is paired with the next one.
    """
    if pairs not in get_args(Pairs):
        raise UserError(f"pairs={pairs!r} must be one of {', '.join(get_args(Pairs))}")
    heap: list[_Sampled] = []  # the largest rank first, as its negative
    ranks: set[int] = set()
    key = str(seed).encode()
    for document in documents:
        texts = usable_passages(document)
        for text, following in zip(texts, [*texts[1:], None], strict=True):
            if text is None or (pairs == "neighbours" and (following is None or following == text)):
                continue
            digest = hashlib.blake2b(text.strip().encode(), digest_size=8, key=key).digest()
            rank = int.from_bytes(digest)
            if rank in ranks or (len(heap) == count and rank >= -heap[0].rank):
                continue
            ranks.add(rank)
            entry = _Sampled(-rank, text, following)
            if len(heap) < count:
                heapq.heappush(heap, entry)
            else:
                ranks.discard(-heapq.heapreplace(heap, entry).rank)
    chosen = sorted(heap, reverse=True)
    return [(each.text, _positive(each, pairs, number)) for number, each in enumerate(chosen)]


def _positive(passage: _Sampled, pairs: Pairs, number: int) -> str:
    if pairs == "dropout" or passage.following is None or (pairs == "both" and number % 2 == 0):
        return passage.text
    return passage.following


def write_pairs(path: Path, pairs: Sequence[tuple[str, str]]) -> None:
    """Write pairs as .jsonl with the keys `anchor` and `positive`, atomically. Raises OSError."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
        for anchor, positive in pairs:
            file.write(json.dumps({"anchor": anchor, "positive": positive}, ensure_ascii=False) + "\n")
        file.flush()


def following_pairs(documents: Iterable[Sequence[str]], count: int) -> list[tuple[str, str]]:
    """Return pairs of a query and the next passage: passages 1, 3, 5, ... of each document with passages 2, 4, 6, ...,
    so that no query is among the candidates. Of more than `count` pairs, `count` are taken, evenly spread."""
    pairs: list[tuple[str, str]] = []
    for document in documents:
        texts = usable_passages(document)
        pairs += [
            (query, positive)
            for query, positive in zip(texts[::2], texts[1::2], strict=False)
            if query is not None and positive is not None and query != positive
        ]
    if len(pairs) <= count:
        return pairs
    return [pairs[number * len(pairs) // count] for number in range(count)]
