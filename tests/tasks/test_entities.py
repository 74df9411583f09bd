"""Entities of tagged sentences: every sequence of tags as seqeval reads it, which follows conlleval."""

import itertools
import random

import numpy as np
import pytest

from fastbert.tasks.entities import Scheme


def test_every_short_sequence_is_read_as_by_seqeval(seed: int) -> None:
    metrics = pytest.importorskip("seqeval.metrics.sequence_labeling")
    labels = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("X", "Y-Z")), "B", "I"]
    sentences = [list(tags) for size in (1, 2, 3) for tags in itertools.product(labels, repeat=size)]
    rng = random.Random(seed)
    sentences += [[rng.choice(labels) for _ in range(rng.randint(0, 12))] for _ in range(300)]
    rng.shuffle(sentences)
    expected = [[(kind, first, last + 1) for kind, first, last in metrics.get_entities(tags)] for tags in sentences]
    bounds = np.cumsum([0, *map(len, sentences)])
    classes = np.array([labels.index(tag) for tags in sentences for tag in tags])
    found = Scheme(labels).chunks(classes, bounds)
    for tags, begin, mine, theirs in zip(sentences, bounds[:-1].tolist(), found, expected, strict=True):
        assert [(kind, start - begin, end - begin) for kind, start, end in mine] == theirs, tags


@pytest.mark.parametrize(
    ("labels", "chunks"),
    [
        (["B-X", "I-X", "O"], True),
        (["I-X", "O"], True),
        (["S-X"], True),
        (["O"], False),
        (["NOUN", "VERB", "O"], False),
        (["IN", "B-X"], False),
        (["B", "I", "O"], True),
        (["B", "IX", "O"], False),
    ],
)
def test_parts_of_speech_are_no_entities(labels: list[str], chunks: bool) -> None:
    scheme = Scheme(labels)
    assert scheme.is_chunks == chunks
    if not chunks:
        assert scheme.chunks(np.zeros(3, dtype=np.int64), np.array([0, 1, 3])) == [[], []]


def test_no_sentence_and_empty_sentences() -> None:
    scheme = Scheme(["B-X", "I-X", "O"])
    assert scheme.chunks(np.zeros(0, dtype=np.int64), np.array([0])) == []
    assert scheme.chunks(np.array([0, 1]), np.array([0, 0, 2, 2])) == [[], [("X", 0, 2)], []]
    # The end of a sentence ends its entities.
    assert scheme.chunks(np.array([0, 1]), np.array([0, 1, 2])) == [[("X", 0, 1)], [("X", 1, 2)]]
