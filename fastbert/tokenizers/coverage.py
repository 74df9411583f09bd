"""Measure how well a vocabulary fits a text: tokens per word, unknown words, and the effect of its size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.unigram import UnigramTokenizer
from fastbert.tokenizers.variants import unknown_id, word_encoder
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
    """None if the special tokens of WordPiece, Unigram's unknown token or BPE's bytes are not among the entries."""
    tokens_per_word: float | None
    """None if 1 % more of the words are unknown than with all entries: an unknown word is only one token."""


@dataclass(frozen=True, kw_only=True)
class CoverageReport:
    """The coverage of a text by a vocabulary.

    Words are counted with repetitions, after normalisation, as the tokenizer splits them: for WordPiece a punctuation
    mark is a word, for BPE a run of them, and for Unigram what is between white space. Shares are from 0 to 1.
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
    unknown_token: str | None
    """None if every text has tokens: byte-level BPE, and Unigram with bytes."""
    unknown_words: int
    unknown_tokens: int
    unknown_word_share: float
    unknown_token_share: float
    unknown_characters: tuple[tuple[str, int], ...]
    """Characters without an entry, with their counts in unknown words; the most frequent first."""
    unknown_examples: tuple[tuple[str, int], ...]
    """The most frequent unknown words."""
    long_words: int
    """Words of more than 100 characters, which are unknown to WordPiece."""
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


def measure_coverage(tokenizer: Tokenizer, text: TextCounts) -> CoverageReport:
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
        unknown_token=tokenizer.unk_token if _can_be_unknown(tokenizer) else None,
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
    def of(cls, tokenizer: Tokenizer, words: Sequence[str]) -> WordPieces:
        """Tokenize words, split as by `words_of(tokenizer)`."""
        encoder = word_encoder(tokenizer)
        assert encoder is not None
        return cls._encoded(encoder, words, unknown_id(tokenizer))

    @classmethod
    def of_first_entries(cls, tokenizer: Tokenizer, size: int, words: Sequence[str]) -> WordPieces | None:
        """Tokenize words with the first `size` entries; None if these lack what every vocabulary needs."""
        encoder = word_encoder(tokenizer, size)
        return None if encoder is None else cls._encoded(encoder, words, unknown_id(tokenizer))

    @classmethod
    def _encoded(cls, encoder: Tokenizer, words: Sequence[str], unknown: int | None) -> WordPieces:
        ids, offsets = encoder.encode_ragged(words)
        unknown_before = np.concatenate(([0], np.cumsum(ids == (-1 if unknown is None else unknown))))
        return cls(ids, offsets, np.diff(offsets), np.diff(unknown_before[offsets]))

    def __getitem__(self, index: int) -> list[int]:
        return self.ids[self.offsets[index] : self.offsets[index + 1]].tolist()


def write_report(file: Path, report: dict[str, Any]) -> None:
    """Write a report as JSON; equal reports give equal bytes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(file, {"format_version": FORMAT_VERSION, **report}, ensure_ascii=False)


def _can_be_unknown(tokenizer: Tokenizer) -> bool:
    if isinstance(tokenizer, UnigramTokenizer):
        return not tokenizer.byte_fallback
    return isinstance(tokenizer, WordPieceTokenizer)


def _has(lengths: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    return lengths >= 4 if length == 4 else lengths == length


def _most(counts: Counter[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_EXAMPLES])


def _missing_characters(tokenizer: Tokenizer, unknown: Counter[str]) -> Counter[str]:
    entries = tokenizer.vocab
    inside = "##" if isinstance(tokenizer, WordPieceTokenizer) else ""
    missing: Counter[str] = Counter()
    for word, count in unknown.items():
        for index, char in enumerate(word):
            if (f"{inside}{char}" if index else char) not in entries:
                missing[char] += count
    return missing


def _curve(
    tokenizer: Tokenizer,
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
    least_unknown = (int(counts[pieces.unknown > 0].sum()) + long_words) / total
    points = []
    for size in [*sizes[1 - _CURVE_POINTS :], tokenizer.vocab_size]:
        tokens_per_word = unknown_words = None
        whole_vocabulary = size == tokenizer.vocab_size
        restricted = pieces if whole_vocabulary else WordPieces.of_first_entries(tokenizer, size, words)
        if restricted is not None:
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
