"""Predictions and metrics of groups of texts: ranks, ties, and queries that stand in several rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.retrieval.groups import expanded
from fastbert.tasks.retrieval.scores import predictions_of, scores_of


def dataset(*rows: tuple[tuple[str, ...], tuple[float, ...] | None]) -> Dataset[TextGroup]:
    groups = (TextGroup(id=str(i), location=f"line {i + 1}", texts=row[0], labels=row[1]) for i, row in enumerate(rows))
    return Dataset("dev.jsonl", tuple(groups))


def predicted(groups: Dataset[TextGroup], similarity: dict[tuple[int, int], float]) -> list[dict[str, object]]:
    """Predictions from the similarities of distinct texts by number; others have none."""
    return predictions_of(
        groups,
        lambda a, b: torch.tensor([[similarity.get((i, j), 0.0) for j in b] for i in a]),
        lambda a, b: torch.tensor([similarity.get(pair, 0.0) for pair in zip(a, b, strict=True)]),
    )


def test_ranks_are_those_among_all_documents() -> None:
    groups = dataset((("q", "p", "n"), None), (("q", "r"), None))
    predictions = predicted(groups, {(0, 1): 0.5, (0, 2): 0.9, (0, 3): 0.7})
    assert [each["rank"] for each in predictions] == [3, 2]
    assert predictions[0]["scores"] == pytest.approx([0.5, 0.9])
    assert predictions[0]["negative_score"] == pytest.approx(0.9)
    scores = scores_of(groups, predictions)
    ideal = 1 / np.log2(2) + 1 / np.log2(3)
    assert scores["ndcg@10"] == pytest.approx(100 * (1 / np.log2(4) + 1 / np.log2(3)) / ideal)
    assert scores["mrr@10"] == pytest.approx(50)
    assert scores["map"] == pytest.approx(100 * (1 / 2 + 2 / 3) / 2)


def test_rows_of_one_query_are_lists_of_their_own_where_rows_are_ranked() -> None:
    groups = dataset((("q", "p", "n"), None), (("q", "r", "m"), None))
    predictions = [{"score": 1.0, "rank": 1}, {"score": 0.0, "rank": 2}]
    assert scores_of(groups, predictions, all_documents=False)["mrr@10"] == pytest.approx(75)
    assert scores_of(groups, predictions)["mrr@10"] == pytest.approx(100)


@pytest.mark.parametrize("order", [(2.0, 0.0, 1.0, 0.0), (0.0, 1.0, 0.0, 2.0)])
def test_a_constant_score_is_not_a_perfect_one(order: tuple[float, ...]) -> None:
    """Of lists with the relevant text first, as files have them, and last."""
    groups = dataset((("q", "a", "b", "c", "d"), order))
    scores = scores_of(groups, [{"score": 0.5, "scores": [0.5] * 4}])
    assert scores["mrr@10"] == pytest.approx(100 / 3)
    worst = 1 / np.log2(4) + 2 / np.log2(5)
    assert scores["ndcg@10"] == pytest.approx(100 * worst / (2 / np.log2(2) + 1 / np.log2(3)))
    assert scores_of(groups, [{"score": 0.0, "scores": list(order)}])["ndcg@10"] == pytest.approx(100)


def test_groups_know_their_examples() -> None:
    groups = dataset((("q", "a", "b"), (0.0, 0.0)), (("r", "c", "d", "e"), (1.0, 0.0, 2.0)), (("s", "f"), None))
    assert [(number, group.texts) for number, group in expanded(groups)] == [
        (1, ("r", "c", "d")),
        (1, ("r", "e", "d")),
        (2, ("s", "f")),
    ]
