"""Skip-gram and CBOW with negative sampling (Mikolov et al. 2013), trained by gensim, an optional package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import require_package
from fastbert.vectors.corpus_words import WordCorpus

MISSING = "skip-gram and CBOW need the package gensim: `pip install gensim`; --kind glove does without"
_LONGEST = 10_000  # gensim ignores what follows in a sentence
_TOKENS = 1 << 20  # read at once
_JOBS = 50  # per thread and epoch, at least: the learning rate falls from job to job
_JOB_WORDS = (100, 10_000)  # at least, and gensim's default


class _Sentences:
    """The sentences of a corpus as lists of words, once per epoch."""

    def __init__(self, corpus: WordCorpus, progress: Callable[[int], None] | None) -> None:
        self.corpus, self.progress, self.done = corpus, progress, 0

    def __iter__(self) -> Iterator[list[str]]:
        words = np.array(self.corpus.words, dtype=object)
        for ids, offsets in self.corpus.chunks(_TOKENS):
            for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
                for first in range(begin, end, _LONGEST):
                    last = min(end, first + _LONGEST)
                    yield words[ids[first:last]].tolist()
                    self.done += last - first
                if self.progress is not None:
                    self.progress(self.done)


def train_word2vec(
    corpus: WordCorpus,
    kind: Literal["skipgram", "cbow"],
    *,
    size: int,
    window: int,
    epochs: int,
    negative: int = 5,
    seed: int = 0,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
) -> NDArray[np.float32]:
    """Return the vectors of the corpus's words, fp32 (words, size).

    The result is a function of the seed with one thread only: several update the same vectors without locks. `progress`
    is called with the number of tokens handed to gensim, over all epochs. Raises `UserError` without gensim.
    """
    gensim = require_package("gensim.models", MISSING)
    tokens = int(corpus.counts.sum())
    model = gensim.Word2Vec(
        vector_size=size,
        window=window,
        sg=int(kind == "skipgram"),
        negative=negative,
        min_count=1,
        seed=seed,
        workers=threads,
        batch_words=min(max(tokens // (_JOBS * threads), _JOB_WORDS[0]), _JOB_WORDS[1]),
    )
    counts = dict(zip(corpus.words, corpus.counts.tolist(), strict=True))
    model.build_vocab_from_freq(counts, corpus_count=len(corpus.offsets) - 1)
    model.train(_Sentences(corpus, progress), total_words=tokens, epochs=epochs)
    vectors: NDArray[np.float32] = model.wv.vectors[[model.wv.key_to_index[word] for word in corpus.words]]
    return vectors
