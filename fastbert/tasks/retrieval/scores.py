"""Predictions and metrics of groups of texts: correlations of scored pairs, and ranks of positives.

Predictions of pairs are similarities. A query with positives is searched for among all distinct documents of the file,
its prediction the rank of the positive. A list of labelled texts is ranked by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, Prediction, TextGroup
from fastbert.tasks.metrics.classification import regression_scores
from fastbert.tasks.retrieval.groups import DistinctTexts, form_of

if TYPE_CHECKING:
    from torch import Tensor

SCORED_METRICS = ("spearman", "pearson")
RANK_METRICS = ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "map", "accuracy")
METRICS = (*RANK_METRICS, *SCORED_METRICS)
DEPTH = 10
_BLOCK = 1 << 24  # similarities in memory at a time
Similarities = Callable[[list[int], list[int]], "Tensor"]
"""(queries, documents), numbers of distinct texts -> similarities fp32 (queries, documents)."""


def predictions_of(
    dataset: Dataset[TextGroup], similarities: Similarities, pairs: Callable[[list[int], list[int]], Tensor]
) -> list[dict[str, Any]]:
    """Return the prediction of each example without its id.

    `similarities` compares all of some texts with all others, `pairs` those in the same place; both take numbers of
    `DistinctTexts`.
    """
    distinct = DistinctTexts.of(dataset)
    firsts = [own[0] for own in distinct.members]
    if form_of(dataset) == "groups":
        return _ranks(distinct, similarities)
    flat = [(first, other) for first, own in zip(firsts, distinct.members) for other in own[1:]]
    scores = pairs([first for first, _ in flat], [other for _, other in flat]).tolist()
    predictions, position = [], 0
    for own in distinct.members:
        of_example = scores[position : position + len(own) - 1]
        position += len(of_example)
        predictions.append({"score": of_example[0], **({"scores": of_example} if len(of_example) > 1 else {})})
    return predictions


def _ranks(distinct: DistinctTexts, similarities: Similarities) -> list[dict[str, Any]]:
    """Return the similarity of each example's positive, its rank among the file's distinct documents, and the largest
    similarity of its negatives."""
    pool = np.flatnonzero(~distinct.is_query)
    place = np.zeros(len(distinct.is_query), dtype=np.int64)
    place[pool] = np.arange(len(pool))
    by_query: dict[int, list[int]] = {}
    for number, own in enumerate(distinct.members):
        by_query.setdefault(own[0], []).append(number)
    queries, found = list(by_query), list[dict[str, Any]]([{}] * len(distinct.members))
    rows = max(1, _BLOCK // max(len(pool), 1))
    for begin in range(0, len(queries), rows):
        block = queries[begin : begin + rows]
        scores = similarities(block, pool.tolist()).cpu().numpy()
        for row, query in zip(scores, block, strict=True):
            for number in by_query[query]:
                texts = place[distinct.members[number][1:]]
                score = row[texts[0]]
                better = int((row > score).sum()) + int((row[: texts[0]] == score).sum())
                found[number] = {"score": float(score), "rank": better + 1}
                if len(texts) > 1:
                    found[number]["negative_score"] = float(row[texts[1:]].max())
    return found


def scores_of(dataset: Dataset[TextGroup], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of predictions, in percent."""
    form = form_of(dataset)
    if form == "scored":
        gold = [example.labels[0] for example in dataset if example.labels is not None]
        names = regression_scores(gold, [float(each["score"]) for each in predictions], where=dataset.path)
        return {name: value for name, value in names.items() if name in SCORED_METRICS}
    if form == "lists":
        return _list_scores(dataset, predictions)
    ranks: dict[str, list[int]] = {}
    for example, prediction in zip(dataset, predictions, strict=True):
        if "rank" not in prediction:
            raise UserError(f"{dataset.path}: a prediction of {example.id} has no rank; write predictions as .jsonl")
        ranks.setdefault(example.texts[0], []).append(int(prediction["rank"]))
    per_query = [_of_ranks(np.unique(each)) for each in ranks.values()]
    scores = {name: 100 * float(np.mean([each[name] for each in per_query])) for name in RANK_METRICS[:-1]}
    pairs = [(each["score"], each["negative_score"]) for each in predictions if "negative_score" in each]
    if pairs:
        scores["accuracy"] = 100 * float(np.mean([positive > negative for positive, negative in pairs]))
    return scores


def _of_ranks(ranks: np.ndarray) -> dict[str, float]:
    """Return the metrics of a query whose relevant documents have these ranks, ascending, from 1."""
    count = len(ranks)
    ideal = (1 / np.log2(np.arange(2, min(count, DEPTH) + 2))).sum()
    within = ranks[ranks <= DEPTH]
    return {
        "ndcg@10": float((1 / np.log2(within + 1)).sum() / ideal),
        "mrr@10": float(1 / ranks[0]) if ranks[0] <= DEPTH else 0.0,
        **{f"recall@{cut}": float((ranks <= cut).sum() / count) for cut in (1, 10, 100)},
        "map": float((np.arange(1, count + 1) / ranks).mean()),
    }


def _list_scores(dataset: Dataset[TextGroup], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of queries whose texts are ranked by themselves; those without a relevant text are left
    out."""
    per_query = []
    for example, prediction in zip(dataset, predictions, strict=True):
        scores = np.array(prediction.get("scores", [prediction["score"]]), dtype=np.float64)
        labels = np.array(example.labels, dtype=np.float64)
        if len(scores) != len(labels):
            raise UserError(
                f"{dataset.path}: {len(scores)} scores for the {len(labels)} texts of {example.id}; write predictions"
                " as .jsonl"
            )
        if (labels > 0).any():
            ordered = labels[np.argsort(-scores, kind="stable")]
            discounts = 1 / np.log2(np.arange(2, len(labels) + 2))
            ideal = (np.sort(labels)[::-1] * discounts)[:DEPTH].sum()
            ranks = np.flatnonzero(ordered > 0) + 1
            own = _of_ranks(ranks)
            own["ndcg@10"] = float((ordered * discounts)[:DEPTH].sum() / ideal)
            per_query.append(own)
    if not per_query:
        return {}
    return {name: 100 * float(np.mean([each[name] for each in per_query])) for name in ("ndcg@10", "mrr@10", "map")}


def gold_of(example: TextGroup) -> Prediction:
    """Return the correct prediction for an example."""
    if example.labels is None:
        negative = {"negative_score": 0.0} if len(example.texts) > 2 else {}
        return {"id": example.id, "score": 1.0, "rank": 1, **negative}
    scores = {"scores": list(example.labels)} if len(example.labels) > 1 else {}
    return {"id": example.id, "score": example.labels[0], **scores}
