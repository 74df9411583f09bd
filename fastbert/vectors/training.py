"""Train static word vectors on a corpus: settings, their defaults by its size, and the way from text to vectors."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fastbert.data.corpus import Corpus
from fastbert.errors import UserError, require_package, require_whole
from fastbert.vectors.corpus_words import Progress, WordCorpus, read_words
from fastbert.vectors.files import MAX_WIDTH
from fastbert.vectors.word2vec import MISSING
from fastbert.vectors.word_vectors import WordVectors

Kind = Literal["skipgram", "cbow", "glove"]
_WORDS_SEEN = 60_000_000  # over all epochs of word2vec, about
_FEWEST_EPOCHS, _MOST_EPOCHS = 5, 20
_GLOVE_EPOCHS = 25
_X_MAX, _SMALL_X_MAX, _MANY_WORDS = 100.0, 10.0, 100_000_000


@dataclass(frozen=True, kw_only=True)
class VectorTraining:
    """How vectors are trained. Raises `UserError` for values out of range."""

    kind: Kind = "skipgram"
    size: int = 100
    """Width of a vector."""
    window: int = 5
    """Tokens on each side of a word that are its context, within a sentence."""
    min_count: int | None = None
    """Occurrences that a word needs; None: 5, and 2 in a corpus of less than a million words."""
    epochs: int | None = None
    """None: 25 for GloVe; for word2vec 60 million words in all, but at least 5 epochs and at most 20."""
    lower_case: bool = False
    negative: int = 5
    """Words drawn per positive example of word2vec."""
    x_max: float | None = None
    """Count from which GloVe's weight is one. None: 100, as in the paper, and 10 in a corpus of less than 100 million
    words, where few pairs occur that often."""
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UserError(f"kind={self.kind!r} must be {', '.join(get_args(Kind))}")
        for name in ("size", "window", "negative", "threads"):
            require_whole(name, getattr(self, name), 1)
        for name in ("min_count", "epochs"):
            require_whole(name, getattr(self, name), 1, optional=True)
        require_whole("seed", self.seed, 0)
        if self.seed >= 1 << 32:
            raise UserError(f"seed={self.seed} must be below 2**32")
        if self.size > MAX_WIDTH:
            raise UserError(f"size={self.size} must be at most {MAX_WIDTH}")
        if self.x_max is not None and not 0 < self.x_max < float("inf"):
            raise UserError(f"x_max={self.x_max} must be above 0 and finite")

    def check_packages(self) -> None:
        """Raise `UserError` without the package that this kind of vectors needs."""
        if self.kind != "glove":
            require_package("gensim", MISSING)

    def epochs_for(self, words: int) -> int:
        """Return the number of epochs on a corpus of `words` words."""
        if self.epochs is not None:
            return self.epochs
        if self.kind == "glove":
            return _GLOVE_EPOCHS
        return min(max(round(_WORDS_SEEN / max(words, 1)), _FEWEST_EPOCHS), _MOST_EPOCHS)

    def x_max_for(self, words: int) -> float:
        """Return the count from which GloVe's weight is one, on a corpus of `words` words."""
        return self.x_max if self.x_max is not None else _X_MAX if words >= _MANY_WORDS else _SMALL_X_MAX


@dataclass(frozen=True, kw_only=True)
class TrainedVectors:
    """Vectors and what they were trained on."""

    vectors: WordVectors
    total_words: int
    distinct_words: int
    min_count: int
    epochs: int
    records: int | None
    """Co-occurrences that are not zero, of GloVe."""


def train_vectors(
    corpus: Corpus, training: VectorTraining = VectorTraining(), *, progress: Progress | None = None
) -> TrainedVectors:
    """Train the vectors of a corpus's words, the most frequent first.

    The memory does not grow with the corpus, only with its vocabulary: the numbers of its words, and GloVe's counts,
    are in temporary files. Raises `UserError` for a corpus that cannot be read or is too small, and without gensim,
    which skip-gram and CBOW need.
    """
    training.check_packages()
    with tempfile.TemporaryDirectory(prefix="fastbert-vectors-") as name:
        folder = Path(name)
        words = read_words(
            corpus, folder, lower_case=training.lower_case, min_count=training.min_count, progress=progress
        )
        epochs = training.epochs_for(words.total_words)
        train = _train_glove if training.kind == "glove" else _train_word2vec
        vectors, records = train(words, training, epochs, folder, progress)
    return TrainedVectors(
        vectors=vectors,
        total_words=words.total_words,
        distinct_words=words.distinct_words,
        min_count=words.min_count,
        epochs=epochs,
        records=records,
    )


def _train_word2vec(
    words: WordCorpus, training: VectorTraining, epochs: int, folder: Path, progress: Progress | None
) -> tuple[WordVectors, None]:
    from fastbert.vectors.word2vec import train_word2vec

    total = epochs * len(words.ids)
    assert training.kind != "glove"
    array = train_word2vec(
        words,
        training.kind,
        size=training.size,
        window=training.window,
        epochs=epochs,
        negative=training.negative,
        seed=training.seed,
        threads=training.threads,
        progress=None if progress is None else lambda done: progress("training", done, total, "words"),
    )
    return WordVectors(words.words, array), None


def _train_glove(
    words: WordCorpus, training: VectorTraining, epochs: int, folder: Path, progress: Progress | None
) -> tuple[WordVectors, int]:
    from fastbert.vectors.cooccurrences import count_cooccurrences
    from fastbert.vectors.glove import train_glove

    tokens = len(words.ids)
    counts = count_cooccurrences(
        words,
        training.window,
        folder,
        seed=training.seed,
        progress=None if progress is None else lambda done: progress("co-occurrences", done, tokens, "words"),
    )
    total = epochs * counts.records
    with _torch_threads(training.threads):
        array = train_glove(
            counts,
            len(words.words),
            size=training.size,
            epochs=epochs,
            x_max=training.x_max_for(words.total_words),
            seed=training.seed,
            progress=None if progress is None else lambda done, loss: progress("training", done, total, "records"),
        )
    return WordVectors(words.words, array), counts.records


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
