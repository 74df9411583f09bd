"""Counting the words of a corpus as a tokenizer sees them, and holding a part of the text out.

The words are split by the C++ code that tokenizes, so what is counted here is what WordPiece gets to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal

from fastbert import _C
from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.tokenizers.wordpiece import WordPieceTokenizer

_SENTENCES_PER_BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """What happens to text before words are counted; the meaning is that of the tokenizer's options."""

    lower_case: bool = True
    strip_accents: bool | None = None
    chinese_chars: bool = True

    @classmethod
    def of(cls, tokenizer: WordPieceTokenizer) -> Normalization:
        """That of a tokenizer."""
        return cls(
            lower_case=tokenizer.do_lower_case,
            strip_accents=tokenizer.strip_accents,
            chinese_chars=tokenizer.tokenize_chinese_chars,
        )

    def counter(self) -> _C.WordCounter:
        """A counter of words in C++."""
        strip = self.lower_case if self.strip_accents is None else self.strip_accents
        return _C.WordCounter(_C.NormalizerOptions(self.lower_case, strip, self.chinese_chars))


def count_words(
    sentences: Iterable[str],
    *,
    lower_case: bool = True,
    normalization: Normalization | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """How often each normalised word (and each punctuation mark) occurs, in sorted order.

    Words of more than 100 characters are left out: a tokenizer calls them unknown. `normalization` replaces
    `lower_case`; `progress` is called with the number of sentences read since the last call.
    """
    counter = (normalization or Normalization(lower_case=lower_case)).counter()
    iterator = iter(sentences)
    while batch := list(islice(iterator, _SENTENCES_PER_BATCH)):
        counter.add(batch)
        if progress is not None:
            progress(len(batch))
    return dict(sorted(counter.counts().items()))


@dataclass(frozen=True, kw_only=True)
class TextCounts:
    """How much text there is, and how often each normalised word occurs in it."""

    documents: int
    sentences: int
    bytes: int
    """Of the sentences in UTF-8, without line ends."""
    words: Mapping[str, int]
    long_words: int
    """Words of more than 100 characters, which are not among `words`: every tokenizer calls them unknown."""

    @property
    def total_words(self) -> int:
        """All words, the long ones included."""
        return sum(self.words.values()) + self.long_words

    def without(self, other: TextCounts) -> TextCounts:
        """These counts less those of a part of the text."""
        words = {word: count - other.words.get(word, 0) for word, count in self.words.items()}
        return TextCounts(
            documents=self.documents,
            sentences=self.sentences - other.sentences,
            bytes=self.bytes - other.bytes,
            words={word: count for word, count in words.items() if count},
            long_words=self.long_words - other.long_words,
        )


@dataclass(frozen=True, kw_only=True)
class Split:
    """A corpus in two parts: one to learn from, one to measure on."""

    learn: TextCounts
    held_out: TextCounts
    unit: Literal["documents", "sentences", "none"]
    """What was held out: every so-many-th document; the ends of documents where there are too few of them; nothing
    where there is but one sentence or it was not wanted. Then `held_out` is the same text as `learn`."""


def count_documents(
    documents: Iterable[Sequence[str]], normalization: Normalization | None = None, *, holdout: float = 0.0
) -> Split:
    """Count the words of documents, given as lists of sentences, in one pass; hold out a share of the documents.

    Which documents those are depends on their order alone: every 20th for `holdout=0.05`. A corpus with fewer gives the
    last sentences of each, at least one where a document has two; the last sentence of all if none has.
    """
    if not 0 <= holdout < 1:
        raise UserError(f"holdout={holdout} must be a share from 0 up to, not including, 1; 0.05 is a twentieth")
    normalization = normalization or Normalization()
    learn, held_out, ends, last = (_Counter(normalization) for _ in range(4))
    final: list[str] = []
    for index, document in enumerate(documents):
        # The small term keeps 20 * 0.05 from ending below 1.
        if int((index + 1) * holdout + 1e-9) > int(index * holdout + 1e-9):
            held_out.add(document)
            continue
        learn.add(document)
        if holdout and not held_out.documents and document:
            final = [document[-1]]
            if len(document) > 1:
                ends.add(document[-max(1, int(len(document) * holdout)) :])
    everything = learn.counts()
    if held_out.documents and everything.words and held_out.counts().total_words:
        return Split(learn=everything, held_out=held_out.counts(), unit="documents")
    if not held_out.documents and holdout and everything.sentences > 1:
        if not ends.documents:
            last.add(final)
        part = (ends if ends.documents else last).counts()
        rest = everything.without(part)
        if rest.words and part.total_words:
            return Split(learn=rest, held_out=part, unit="sentences")
    return Split(learn=everything, held_out=everything, unit="none")


class _Counter:
    """Counts text that comes document by document."""

    def __init__(self, normalization: Normalization) -> None:
        from fastbert.tokenizers.wordpiece import WordPieceTokenizer

        self.documents = self.sentences = self.bytes = self.all_words = 0
        self._counter = normalization.counter()
        # To a vocabulary without entries each word is one [UNK], also those that are too long for the counter.
        self._all_unknown = WordPieceTokenizer(
            ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
            do_lower_case=normalization.lower_case,
            strip_accents=normalization.strip_accents,
            tokenize_chinese_chars=normalization.chinese_chars,
            split_special_tokens=True,
        )
        self._waiting: list[str] = []

    def add(self, document: Sequence[str]) -> None:
        self.documents += 1
        self._waiting += document
        if len(self._waiting) >= _SENTENCES_PER_BATCH:
            self._count()

    def _count(self) -> None:
        self.sentences += len(self._waiting)
        self.bytes += sum(len(sentence.encode()) for sentence in self._waiting)
        self._counter.add(self._waiting)
        self.all_words += len(self._all_unknown.encode_ragged(self._waiting)[0])
        self._waiting = []

    def counts(self) -> TextCounts:
        if self._waiting:
            self._count()
        words = dict(sorted(self._counter.counts().items()))
        return TextCounts(
            documents=self.documents,
            sentences=self.sentences,
            bytes=self.bytes,
            words=words,
            long_words=self.all_words - sum(words.values()),
        )
