"""The words of a corpus as numbers: counted and split by the C++ code that tokenizes, kept in a file while one trains.

The vocabulary holds the words that occur often enough, the most frequent first. Rarer words are left out of sentences
before windows are formed, as word2vec and GloVe do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastbert.data.corpus import Corpus
from fastbert.errors import CorpusError
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.tokenizers.word_counts import Normalization, count_words

Progress = Callable[[str, int, int, str], None]
"""Called with a stage, what is done of it, its total, and their unit."""
LEAST_WORDS = 10
"""Words of the smallest vocabulary with which one can train."""
_SENTENCES = 4096  # encoded at once
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MANY, _FEW_OCCURRENCES, _OCCURRENCES = 1_000_000, 2, 5


@dataclass(frozen=True, kw_only=True, eq=False)
class WordCorpus:
    """Sentences of word numbers: sentence i is `ids[offsets[i] : offsets[i + 1]]`.

    `ids` int32 (tokens,) are rows of `words`, sorted by `counts` int64 (words,), highest first; `offsets` int64
    (sentences + 1,). The two long arrays are memory-mapped files.
    """

    words: tuple[str, ...]
    counts: NDArray[np.int64]
    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    total_words: int
    """Words of the corpus, those outside the vocabulary included."""
    distinct_words: int
    min_count: int

    def chunks(self, tokens: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Yield consecutive sentences, about `tokens` tokens at a time: ids int32 (tokens,), and their own offsets
        int64 (sentences + 1,)."""
        first = 0
        while first < len(self.offsets) - 1:
            end = int(np.searchsorted(self.offsets, self.offsets[first] + tokens, side="right")) - 1
            end = max(end, first + 1)  # a sentence of more tokens
            offsets = np.asarray(self.offsets[first : end + 1])
            yield np.asarray(self.ids[offsets[0] : offsets[-1]]), offsets - offsets[0]
            first = end


def read_words(
    corpus: Corpus,
    folder: Path,
    *,
    lower_case: bool = False,
    min_count: int | None = None,
    progress: Progress | None = None,
) -> WordCorpus:
    """Count the words of a corpus, choose the vocabulary, and write the numbers of its words to files in `folder`.

    Words are BERT's: split at white space and punctuation, which are words too; accents stay. By default a word must
    occur 5 times, in a corpus of less than a million words twice. Raises `CorpusError` for a corpus that cannot be
    read, and for one with too few words of that kind.
    """
    normalization = Normalization(lower_case=lower_case, strip_accents=False)
    total = corpus.total_bytes

    def sentences(stage: str) -> Iterator[str]:
        report = None if progress is None else lambda done: progress(stage, done, total, "bytes")
        for document in corpus.documents(report):
            yield from document

    occurrences = count_words(sentences("counting words"), normalization=normalization)
    total_words = sum(occurrences.values())
    if min_count is None:
        min_count = _OCCURRENCES if total_words >= _MANY else _FEW_OCCURRENCES
    frequent = [(word, count) for word, count in occurrences.items() if count >= min_count]
    frequent.sort(key=lambda item: -item[1])  # equal counts stay in the order of the words
    if len(frequent) < LEAST_WORDS:
        raise CorpusError(
            f"the corpus is too small: of its {len(occurrences):,} different words {len(frequent):,} occur at least"
            f" min_count={min_count} times, and {LEAST_WORDS} must; give more text or a lower min_count"
        )
    words = tuple(word for word, _ in frequent)
    ids, offsets = _write_ids(sentences("reading words"), words, normalization, folder)
    return WordCorpus(
        words=words,
        counts=np.array([count for _, count in frequent], dtype=np.int64),
        ids=ids,
        offsets=offsets,
        total_words=total_words,
        distinct_words=len(occurrences),
        min_count=min_count,
    )


def _write_ids(
    sentences: Iterator[str], words: Sequence[str], normalization: Normalization, folder: Path
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Write the numbers of the sentences' words to files, and return them memory-mapped, with their offsets."""
    # Without pieces (##...) in the vocabulary, a word is one token: itself, or [UNK].
    tokenizer = WordPieceTokenizer(
        (*_SPECIAL, *words),
        do_lower_case=normalization.lower_case,
        strip_accents=normalization.strip_accents,
        tokenize_chinese_chars=normalization.chinese_chars,
        split_special_tokens=True,
        model_max_length=None,
    )
    ids_path, offsets_path, end = folder / "ids", folder / "offsets", 0
    with ids_path.open("wb") as ids_file, offsets_path.open("wb") as offsets_file:
        offsets_file.write(np.zeros(1, dtype=np.int64).tobytes())
        while batch := [sentence for _, sentence in zip(range(_SENTENCES), sentences, strict=False)]:
            tokens, bounds = tokenizer.encode_ragged(batch)
            in_vocabulary = tokens >= len(_SPECIAL)
            before = np.concatenate(([0], np.cumsum(in_vocabulary, dtype=np.int64)))
            offsets = before[bounds]
            lengths = np.diff(offsets)
            ends = end + np.cumsum(lengths[lengths > 0])
            ids_file.write((tokens[in_vocabulary] - len(_SPECIAL)).astype(np.int32).tobytes())
            offsets_file.write(ends.astype(np.int64).tobytes())
            end += int(offsets[-1])
    return np.memmap(ids_path, np.int32, "r"), np.memmap(offsets_path, np.int64, "r")
