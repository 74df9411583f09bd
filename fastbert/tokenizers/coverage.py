"""Measure how well a vocabulary fits a text: tokens per word, unknown words, and the effect of its size."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.tokenizers.word_counts import TextCounts
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

FORMAT_VERSION = 1
_EXAMPLES = 20
_CURVE_POINTS = 6
_MORE_UNKNOWN = 0.01


@dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """The coverage of the first `entries` entries of a vocabulary. Shares are of all words."""

    entries: int
    whole_words: float
    """Share of words that are an entry."""
    unknown_words: float | None
    """None if the special tokens are not among the entries."""
    tokens_per_word: float | None
    """None if 1 % more of the words are unknown than with all entries: an unknown word is only one token."""


@dataclass(frozen=True, kw_only=True)
class CoverageReport:
    """The coverage of a text by a vocabulary.

    Words are counted with repetitions, after normalisation; a punctuation mark is a word. Shares are from 0 to 1.
    Special tokens in the text count as the words that they consist of.
    """

    entries: int
    entries_used: int
    """Entries that occur in the text."""
    documents: int
    sentences: int
    words: int
    distinct_words: int
    bytes: int
    tokens: int
    tokens_per_word: float
    bytes_per_token: float
    pieces_per_word: dict[str, float]
    """Share of words of 1, 2, 3 and 4+ tokens, and `unknown`: words with an [UNK]. The five shares add up to 1."""
    unknown_words: int
    unknown_tokens: int
    unknown_word_share: float
    unknown_token_share: float
    unknown_characters: tuple[tuple[str, int], ...]
    """Characters without an entry, with their counts in unknown words; the most frequent first."""
    unknown_examples: tuple[tuple[str, int], ...]
    """The most frequent unknown words."""
    long_words: int
    """Words of more than 100 characters, which are unknown to every vocabulary."""
    curve: tuple[CurvePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values = asdict(self)
        values["unknown_characters"] = [
            {"character": char, "code_point": f"U+{ord(char):04X}", "count": count}
            for char, count in self.unknown_characters
        ]
        values["unknown_examples"] = [{"word": word, "count": count} for word, count in self.unknown_examples]
        values["curve"] = [asdict(point) for point in self.curve]
        return values


def measure_coverage(tokenizer: WordPieceTokenizer, text: TextCounts) -> CoverageReport:
    """Tokenize each distinct word of a text once, and weight it by its count.

    Raises:
        UserError: the text has no words.
    """
    if not text.total_words:
        raise UserError("the text has no words to measure a vocabulary on; provide some text")
    words, counts = list(text.words), np.fromiter(text.words.values(), np.int64, len(text.words))
    pieces = WordPieces.of(tokenizer, words)
    known = pieces.unknown == 0
    total = text.total_words
    tokens = int(counts @ pieces.lengths) + text.long_words
    unknown_words = int(counts[~known].sum()) + text.long_words
    unknown_tokens = int(counts @ pieces.unknown) + text.long_words
    shares = {
        str(length) if length < 4 else "4+": int(counts[known & _has(pieces.lengths, length)].sum()) / total
        for length in (1, 2, 3, 4)
    }
    unknown = Counter({words[index]: int(counts[index]) for index in np.flatnonzero(~known)})
    return CoverageReport(
        entries=tokenizer.vocab_size,
        entries_used=len(np.unique(pieces.ids)),
        documents=text.documents,
        sentences=text.sentences,
        words=total,
        distinct_words=len(words),
        bytes=text.bytes,
        tokens=tokens,
        tokens_per_word=tokens / total,
        bytes_per_token=text.bytes / tokens,
        pieces_per_word={**shares, "unknown": unknown_words / total},
        unknown_words=unknown_words,
        unknown_tokens=unknown_tokens,
        unknown_word_share=unknown_words / total,
        unknown_token_share=unknown_tokens / tokens,
        unknown_characters=_most(_missing_characters(tokenizer, unknown)),
        unknown_examples=_most(unknown),
        long_words=text.long_words,
        curve=_curve(tokenizer, words, counts, pieces, total),
    )


@dataclass(frozen=True)
class WordPieces:
    """The tokens of words: concatenated `ids`, and for each word the number of tokens and of [UNK]s."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    unknown: NDArray[np.int64]

    @classmethod
    def of(cls, tokenizer: WordPieceTokenizer, words: Sequence[str]) -> WordPieces:
        """Tokenize words."""
        ids, offsets = tokenizer.encode_ragged(words)
        unknown_before = np.concatenate(([0], np.cumsum(ids == tokenizer.unk_token_id)))
        return cls(ids, offsets, np.diff(offsets), np.diff(unknown_before[offsets]))

    def __getitem__(self, index: int) -> list[int]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]].tolist()


def with_vocabulary(tokenizer: WordPieceTokenizer, tokens: Sequence[str]) -> WordPieceTokenizer:
    """Return a tokenizer with the same options and different entries."""
    # Each option of the constructor is an attribute of the same name.
    options = [name for name in inspect.signature(WordPieceTokenizer.__init__).parameters if hasattr(tokenizer, name)]
    return WordPieceTokenizer(
        tokens, **{name: getattr(tokenizer, name) for name in options if name not in ("self", "vocab")}
    )


def write_report(file: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON; equal reports give equal bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(file, {"format_version": FORMAT_VERSION, **report}, ensure_ascii=False)


def _has(lengths: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    return lengths >= 4 if length == 4 else lengths == length


def _most(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_EXAMPLES])


def _missing_characters(tokenizer: WordPieceTokenizer, unknown: Counter[str]) -> Counter[str]:
    entries = tokenizer.vocab
    missing: Counter[str] = Counter()
    for word, count in unknown.items():
        for index, char in enumerate(word):
            if (f"##{char}" if index else char) not in entries:
                missing[char] += count
    return missing


def _curve(
    tokenizer: WordPieceTokenizer,
    words: Sequence[str],
    counts: NDArray[np.int64],
    pieces: WordPieces,
    total: int,
) -> tuple[CurvePoint, ...]:
    """Return points at 125, 250, 500, 1000, ... entries, and at the whole vocabulary."""
    sizes = [size for size in (125 << power for power in range(30)) if size < tokenizer.vocab_size]
    whole = np.flatnonzero((pieces.lengths == 1) & (pieces.unknown == 0))
    first_ids = pieces.ids[pieces.offsets[whole]]
    long_words = total - int(counts.sum())
    tokens = list(tokenizer.vocab)[: tokenizer.vocab_size]
    special = [index for index in tokenizer.all_special_ids if index < tokenizer.vocab_size]
    least_unknown = (int(counts[pieces.unknown > 0].sum()) + long_words) / total
    points = []
    for size in [*sizes[1 - _CURVE_POINTS :], tokenizer.vocab_size]:
        tokens_per_word = unknown_words = None
        if max(special, default=0) < size:
            restricted = pieces
            if size < tokenizer.vocab_size:
                restricted = WordPieces.of(with_vocabulary(tokenizer, tokens[:size]), words)
            unknown_words = (int(counts[restricted.unknown > 0].sum()) + long_words) / total
            if unknown_words <= least_unknown + _MORE_UNKNOWN:
                tokens_per_word = (int(counts @ restricted.lengths) + long_words) / total
        points.append(
            CurvePoint(
                entries=size,
                whole_words=int(counts[whole[first_ids < size]].sum()) / total,
                tokens_per_word=tokens_per_word,
                unknown_words=unknown_words,
            )
        )
    return tuple(points)
