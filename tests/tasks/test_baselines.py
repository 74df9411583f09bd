"""Baselines of tasks, and the losses of constant predictions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from report_data import tagged, texts

pytest.importorskip("sklearn", reason="metrics need scikit-learn")
pytest.importorskip("seqeval", reason="metrics need seqeval")

from fastbert.tasks.base import Task
from fastbert.tasks.registry import make_task
from fastbert.tasks.reports.report import by_key
from fastbert.tasks.rows import Rows, bounds
from fastbert.tasks.tagging.task import TagRows


@pytest.mark.parametrize(
    ("task", "dataset", "train", "expected"),
    [
        (
            make_task("classification"),
            texts(["a", "a", "a", "b"]),
            None,
            {"majority": {"accuracy": 75, "matthews": 0}, "chance": {"accuracy": 50, "matthews": 0}},
        ),
        (make_task("classification", labels=tuple("abcd")), texts(["a", "b"]), None, {"chance": {"accuracy": 25}}),
        (make_task("regression"), texts([1.0, 3.0]), None, {"majority": {"mse": 1}, "chance": {"pearson": 0}}),
        (
            make_task("tagging"),
            tagged("Ann/B-P met/O Bo/B-P"),
            tagged("Ann/B-P Bo/O"),
            {"majority": {"f1": 0, "accuracy": 100 / 3}, "lookup": {"f1": 200 / 3, "precision": 100, "recall": 50}},
        ),
        (
            make_task("tagging"),
            tagged("a/DET cat/NOUN dog/NOUN"),
            tagged("a/DET a/DET cat/NOUN"),
            {"majority": {"accuracy": 200 / 3}, "chance": {"accuracy": 50}, "lookup": {"accuracy": 200 / 3}},
        ),
    ],
    ids=["two-classes", "four-classes", "numbers", "entities", "words"],
)
def test_baselines_by_the_scorer_of_the_task(
    task: Task[Any], dataset: Any, train: Any, expected: dict[str, dict[str, float]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fastbert"):
        stored = by_key(task.baselines(dataset, train))
    assert not caplog.records  # such as that a constant has no correlation
    for key, scores in expected.items():
        assert {name: stored[key][name] for name in scores} == pytest.approx(scores, abs=1e-4)


def rows(kind: type[Rows] = Rows, lengths: Sequence[int] = (2, 3, 4, 3, 2, 2), **arrays: Any) -> Rows:
    """Return rows of zeros with these lengths."""
    ids = np.zeros(sum(lengths), dtype=np.int32)
    examples = np.arange(len(lengths))
    return kind(input_ids=ids, token_type_ids=ids, offsets=bounds(np.array(lengths)), examples=examples, **arrays)


@pytest.mark.parametrize("weighted", [False, True])
def test_constant_losses_are_those_of_the_best_constant_logits(weighted: bool) -> None:
    """The losses of the tasks, minimised over logits that are the same for all rows."""
    functional = torch.nn.functional
    labels = np.array([0, 2, 2, 0, 2, 2])
    weights = np.where(labels == 0, 3, 0.5).astype(np.float32) if weighted else None
    targets = {"labels": labels} | ({} if weights is None else {"weights": weights})
    sums = np.bincount(labels, weights, minlength=3)
    logits = torch.from_numpy(np.log(sums + 1e-300)).expand(6, 3)
    losses = functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none").numpy()
    expected = np.average(losses, weights=weights)
    classification, words = make_task("classification"), bounds(np.ones(6, dtype=np.int64))
    assert classification.constant_loss(rows(unit_targets=targets)) == pytest.approx(expected)
    tags = rows(TagRows, word_offsets=words, words=labels, positions=labels, labels=labels, weights=weights)
    assert make_task("tagging").constant_loss(tags) == pytest.approx(expected)

    sets = np.array([[1, 0, 1], [0, 0, 1], [1, 0, 1]], dtype=np.float32)
    set_weights = np.where(sets > 0, np.float32(4), np.float32(1)) if weighted else np.ones_like(sets)
    positive, negative = (set_weights * sets).sum(0), (set_weights * (1 - sets)).sum(0)
    best = torch.from_numpy(np.log((positive + 1e-30) / (negative + 1e-30))).expand(3, 3)
    tensors = torch.from_numpy(sets), torch.from_numpy(set_weights)
    expected = float(functional.binary_cross_entropy_with_logits(best, *tensors))
    targets = {"labels": sets} | ({"weights": set_weights} if weighted else {})
    assert make_task("multilabel").constant_loss(rows(unit_targets=targets)) == pytest.approx(expected)


def test_constant_losses_without_frequencies() -> None:
    numbers = rows(unit_targets={"labels": np.array([[1.0], [4.0], [1.0]], dtype=np.float32)})
    assert make_task("regression").constant_loss(numbers) == pytest.approx(2)
    assert make_task("choice").constant_loss(rows(per_unit=3)) == pytest.approx(np.log(3))
    assert make_task("span").constant_loss(rows(lengths=(4, 9))) == pytest.approx(np.log(6))
    ids = np.array([101, 7, 8, 102, 101, 7, 102], dtype=np.int32)
    decoder = replace(rows(lengths=(4, 3)), input_ids=ids)
    entropy = 2 * 0.4 * np.log(1 / 0.4) + 0.2 * np.log(1 / 0.2)
    assert make_task("seq2seq").constant_loss(rows(lengths=(2, 2), decoder=decoder)) == pytest.approx(entropy)
    one = rows(unit_targets={"labels": np.zeros(3, dtype=np.int64)})
    assert make_task("classification").constant_loss(one) == 0
