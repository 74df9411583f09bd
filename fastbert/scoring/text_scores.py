"""Scores of the texts of a file of any size, and what they are together: perplexity and bits per character."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.scoring.scorer import score_with
from fastbert.scoring.tokenized_texts import Scorer

CHUNK_TEXTS, CHUNK_CHARACTERS = 4096, 1 << 20
"""Texts that are read, sorted by length and scored at a time."""


@dataclass(frozen=True, kw_only=True)
class TextScore:
    """The score of a text."""

    index: int
    """Number of the text in its file, from 0; empty ones count."""
    tokens: int
    """Tokens, special ones not counted."""
    characters: int
    log_probability: float
    """In nats: the sum over the tokens."""

    def record(self) -> dict[str, float]:
        """Return the score as an object of a JSON file, with the text's own perplexity."""
        perplexity = _exponential(-self.log_probability / self.tokens)
        return {
            "index": self.index,
            "tokens": self.tokens,
            "log_probability": round(self.log_probability, 6),
            "perplexity": float(f"{perplexity:.8g}"),
        }


@dataclass
class TextTotals:
    """The sums over texts."""

    texts: int = 0
    """Texts with a token."""
    empty: int = 0
    """Texts without, which have no score."""
    tokens: int = 0
    characters: int = 0
    """Code points of the texts with a token."""
    log_probability: float = 0.0

    def add(self, score: TextScore) -> None:
        """Add a text."""
        self.texts += 1
        self.tokens += score.tokens
        self.characters += score.characters
        self.log_probability += score.log_probability

    @property
    def perplexity(self) -> float:
        """The exponential of the negative mean log-probability per token (Salazar et al. 2020, equation 2)."""
        return _exponential(-self.log_probability / self.tokens)

    @property
    def bits_per_character(self) -> float:
        """The negative log-probability in bits per code point, which does not depend on the vocabulary."""
        return -self.log_probability / math.log(2) / self.characters


def score_texts(
    scorer: Scorer,
    texts: Iterable[str],
    totals: TextTotals,
    source: Callable[[int], str] = "text {}".format,
    progress: Callable[[float], None] | None = None,
) -> Iterator[TextScore]:
    """Yield the score of each text that has a token, in order, in bounded memory, and add it to `totals`.

    `progress` is called with the number of texts done, which within a chunk is estimated from its tokens; `source`
    describes a text by its index, for errors. Raises `UserError` for a text that is too long, and if none has a token.
    """
    first = 0
    for chunk in _chunks(texts):

        def update(part: float, first: int = first, count: int = len(chunk)) -> None:
            if progress is not None:
                progress(first + part * count)

        scores = score_with(scorer, chunk, lambda index, first=first: source(first + index), update)  # type: ignore[misc]
        for index, (count, total) in enumerate(zip(scores.counts.tolist(), scores.totals.tolist(), strict=True)):
            if not count:
                totals.empty += 1
                continue
            score = TextScore(index=first + index, tokens=count, characters=len(chunk[index]), log_probability=total)
            totals.add(score)
            yield score
        first += len(chunk)
    if not totals.texts:
        raise UserError("no text has a token; name a file with text")


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    characters = 0
    for text in texts:
        if chunk and (len(chunk) == CHUNK_TEXTS or characters + len(text) > CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(text)
        characters += len(text)
    if chunk:
        yield chunk


def _exponential(value: float) -> float:
    return math.exp(min(value, 700.0))
