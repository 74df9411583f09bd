"""Static word vectors as features, one per word, for the taggers that are trained on hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fastbert.errors import UserError
from fastbert.features.extract import Features
from fastbert.features.tagging import FeatureTraining, Scorer, Table7Row, train_rows
from fastbert.tasks.examples import Dataset, TaggedExample
from fastbert.vectors.word_vectors import Fallback, WordVectors

ROW = "Static Vectors"


@dataclass(frozen=True, kw_only=True)
class StaticRow:
    """The row of a table for static vectors, and the shares of words without one, from 0 to 1."""

    row: Table7Row
    unknown_train: float
    unknown_dev: float


def static_features(
    vectors: WordVectors, sentences: Sequence[Sequence[str]], *, unknown: Fallback = "zero"
) -> tuple[Features, float]:
    """Return the vector of each word of some sentences, fp32 (words, 1, size), and the share of words without one.

    A word has its own vector, else that of its lower-cased form, else zeros or the mean of all vectors. Raises
    `UserError` for another value of `unknown`.
    """
    words = [word for sentence in sentences for word in sentence]
    lengths = [len(sentence) for sentence in sentences]
    values = torch.from_numpy(vectors.lookup(words, unknown=unknown))[:, None]
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    missing = float((vectors.rows(words) < 0).mean()) if words else 0.0
    return Features(values=values, offsets=offsets, items=tuple(words)), missing


def tag_with_vectors(
    vectors: WordVectors,
    train: Dataset[TaggedExample],
    dev: Dataset[TaggedExample],
    training: FeatureTraining,
    *,
    unknown: Fallback = "zero",
    score: Scorer | None = None,
    progress: Callable[[str, int, float], None] | None = None,
) -> StaticRow:
    """Train a tagger on static vectors and score it on the development set, as `table7` does on hidden states.

    Raises `UserError` for another value of `unknown`, and if no word of the training set has a vector.
    """
    (features, missing), (dev_features, dev_missing) = (
        static_features(vectors, [example.words for example in dataset], unknown=unknown) for dataset in (train, dev)
    )
    if missing == 1.0:
        raise UserError(
            f"no word of the training set has one of the {len(vectors):,} vectors; name vectors of its language"
        )
    rows = train_rows(
        [(ROW, (0,), False)], (features, dev_features), (train, dev), training, score=score, progress=progress
    )
    return StaticRow(row=rows[0], unknown_train=missing, unknown_dev=dev_missing)
