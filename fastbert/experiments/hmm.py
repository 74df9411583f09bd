"""A hidden Markov model as a tagger: nltk's, with Lidstone smoothing; an optional package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastbert.errors import require_package

MISSING = "the HMM tagger needs the package nltk: `pip install nltk`"
GAMMA = 0.1
"""The count that Lidstone's estimate adds to each word and each tag."""
UNKNOWN = "<unknown>"
"""The word that stands for all words that the training set does not have."""

Tagged = tuple[Sequence[str], Sequence[str]]


def check_nltk() -> None:
    """Raise `UserError` without nltk."""
    require_package("nltk.tag.hmm", MISSING)


def tag_with_hmm(train: Iterable[Tagged], sentences: Iterable[Sequence[str]], gamma: float = GAMMA) -> list[list[str]]:
    """Return the most probable tags of sentences under a bigram HMM of a training set's words and tags.

    Emissions, transitions and first tags have `gamma` added to each count. Words that the training set does not have
    are one word, of which only `gamma` has been counted with each tag. Raises `UserError` without nltk.
    """
    hmm = require_package("nltk.tag.hmm", MISSING)
    lidstone = require_package("nltk.probability", MISSING).LidstoneProbDist

    def estimate(counts: Any, bins: int) -> Any:
        return lidstone(counts, gamma, bins)

    tagged = [list(zip(words, tags, strict=True)) for words, tags in train]
    words = dict.fromkeys(word for sentence in tagged for word, _ in sentence)
    trainer = hmm.HiddenMarkovModelTrainer(symbols=[UNKNOWN, *words])
    tagger = trainer.train_supervised(tagged, estimator=estimate)
    return [_best_tags(tagger, [word if word in words else UNKNOWN for word in sentence]) for sentence in sentences]


def _best_tags(tagger: Any, words: list[str]) -> list[str]:
    return list(tagger.best_path(words)) if words else []
