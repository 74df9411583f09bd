"""Count the normalised words of a corpus, and hold out a part of the text.

Words are split by the C++ code that tokenizes, so the counted words are the input of WordPiece, BPE or Unigram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from fastbert import _C
from fastbert.errors import UserError
from fastbert.tokenizers.pipeline import Pipeline
from fastbert.tokenizers.pipeline_tokenizer import PipelineTokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.wordpiece import WordPieceTokenizer

_SENTENCES_PER_BATCH = 4096


@dataclass(frozen=True, kw_only=True)
class Normalization:
    """The normalisation of text before words are counted, as in the tokenizer's options."""

    lower_case: bool = True
    strip_accents: bool | None = None
    chinese_chars: bool = True

    @classmethod
    def of(cls, tokenizer: WordPieceTokenizer) -> Normalization:
        """Return the normalisation of a tokenizer."""
        return cls(
            lower_case=tokenizer.do_lower_case,
            strip_accents=tokenizer.strip_accents,
            chinese_chars=tokenizer.tokenize_chinese_chars,
        )

    def counter(self) -> _C.WordCounter:
        """Return a C++ counter of words."""
        strip = self.lower_case if self.strip_accents is None else self.strip_accents
        return _C.WordCounter(_C.NormalizerOptions(self.lower_case, strip, self.chinese_chars))


@dataclass(frozen=True)
class PipelineWords:
    """The words of a tokenizer other than WordPiece: the chunks of byte-level BPE, in which a space before a word
    belongs to it, or the words of Unigram's pre-tokenizer, in which a visible character stands for the space."""

    pipeline: Pipeline

    def counter(self) -> _C.ByteLevelCounter | _C.UnigramCounter:
        """Return a C++ counter of words."""
        normalizer = self.pipeline.compiled_normalizer()
        prefix_space = self.pipeline.byte_level()
        if prefix_space is not None:
            return _C.ByteLevelCounter(normalizer, prefix_space)
        return _C.UnigramCounter(normalizer, self.pipeline.compiled_pre_tokenizer())


Words = Normalization | PipelineWords
"""The rules by which text is cut into words."""


def words_of(tokenizer: Tokenizer) -> Words:
    """Return how a tokenizer normalises and splits text into words. Special tokens in text are not searched."""
    if isinstance(tokenizer, PipelineTokenizer):
        return PipelineWords(tokenizer.pipeline)
    assert isinstance(tokenizer, WordPieceTokenizer)
    return Normalization.of(tokenizer)


def count_words(
    sentences: Iterable[str],
    *,
    lower_case: bool = True,
    normalization: Words | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, int]:
    """Count each normalised word (and each punctuation mark), in sorted order.

    Words of more than 100 characters are omitted: they are unknown to WordPiece. `normalization` replaces
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
    """The size of a text, and the count of each normalised word."""

    documents: int
    sentences: int
    bytes: int
    """The size of the sentences in UTF-8, without line ends."""
    words: Mapping[str, int]
    long_words: int
    """Number of words of more than 100 characters, which are not in `words`: they are unknown to WordPiece."""

    @property
    def total_words(self) -> int:
        """Return the number of all words, including long ones."""
        return sum(self.words.values()) + self.long_words

    def without(self, other: TextCounts) -> TextCounts:
        """Subtract the counts of a part of the text."""
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
    """A corpus in two parts, for learning and for measuring."""

    learn: TextCounts
    held_out: TextCounts
    unit: Literal["documents", "sentences", "none"]
    """The unit of the held-out part: documents; the last sentences of documents, if there are too few documents; or
    nothing, if there is only one sentence or `holdout` is 0: `held_out` is then the same text as `learn`."""


def count_documents(
    documents: Iterable[Sequence[str]], normalization: Words | None = None, *, holdout: float = 0.0
) -> Split:
    """Count the words of documents, lists of sentences, in one pass, and hold out a share of the documents.

    The choice depends only on the order of the documents: every 20th for `holdout=0.05`. Of a corpus with fewer, the
    last sentences of each document are held out, at least one per document of two; else the very last sentence.
    """
    if not 0 <= holdout < 1:
        raise UserError(f"holdout={holdout} must be a fraction of at least 0 and below 1, such as 0.05")
    normalization = normalization or Normalization()
    learn, held_out, ends, last = (_Counter(normalization) for _ in range(4))
    final: list[str] = []
    for index, document in enumerate(documents):
        # The small term prevents 20 * 0.05 from being below 1.
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
        sentences = (ends if ends.documents else last).counts()
        rest = everything.without(sentences)
        if rest.words and sentences.total_words:
            return Split(learn=rest, held_out=sentences, unit="sentences")
    return Split(learn=everything, held_out=everything, unit="none")


class _Counter:
    """Count the words of documents, one document at a time."""

    def __init__(self, normalization: Words) -> None:
        self.documents = self.sentences = self.bytes = self.all_words = 0
        self._counter = normalization.counter()
        self._all_unknown: WordPieceTokenizer | None = None
        self._pending: list[str] = []
        if isinstance(normalization, PipelineWords):
            return  # no word is too long
        # With a vocabulary without words, every word is one [UNK], including words too long for the counter.
        self._all_unknown = WordPieceTokenizer(
            ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
            do_lower_case=normalization.lower_case,
            strip_accents=normalization.strip_accents,
            tokenize_chinese_chars=normalization.chinese_chars,
            split_special_tokens=True,
        )

    def add(self, document: Sequence[str]) -> None:
        self.documents += 1
        self._pending += document
        if len(self._pending) >= _SENTENCES_PER_BATCH:
            self._count()

    def _count(self) -> None:
        self.sentences += len(self._pending)
        self.bytes += sum(len(sentence.encode()) for sentence in self._pending)
        self._counter.add(self._pending)
        if self._all_unknown is not None:
            self.all_words += len(self._all_unknown.encode_ragged(self._pending)[0])
        self._pending = []

    def counts(self) -> TextCounts:
        if self._pending:
            self._count()
        words = dict(sorted(self._counter.counts().items()))
        return TextCounts(
            documents=self.documents,
            sentences=self.sentences,
            bytes=self.bytes,
            words=words,
            long_words=0 if self._all_unknown is None else self.all_words - sum(words.values()),
        )
