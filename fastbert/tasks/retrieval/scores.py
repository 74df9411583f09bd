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

    `similarities` compares all of some texts with all others, `pairs` those of equal index; both take numbers of
    `DistinctTexts`.
    """
    distinct = DistinctTexts.of(dataset)
    if form_of(dataset) == "groups":
        return _ranks(distinct, similarities)
    flat = [(query, document) for query, *documents in distinct.members for document in documents]
    scores = pairs([query for query, _ in flat], [document for _, document in flat]).tolist()
    predictions, position = [], 0
    for _, *documents in distinct.members:
        of_example = scores[position : position + len(documents)]
        position += len(documents)
        predictions.append({"score": of_example[0], **({"scores": of_example} if len(of_example) > 1 else {})})
    return predictions


def _ranks(distinct: DistinctTexts, similarities: Similarities) -> list[dict[str, Any]]:
    """Return the similarity of each example's positive and its rank among the file's distinct documents; with more
    texts their similarities too, and the largest one of the negatives."""
    pool = np.flatnonzero(~distinct.is_query)
    column = np.zeros(len(distinct.is_query), dtype=np.int64)
    column[pool] = np.arange(len(pool))
    by_query: dict[int, list[int]] = {}
    for number, (query, *_) in enumerate(distinct.members):
        by_query.setdefault(query, []).append(number)
    queries, predictions = list(by_query), list[dict[str, Any]]([{}] * len(distinct.members))
    rows = max(1, _BLOCK // max(len(pool), 1))
    for begin in range(0, len(queries), rows):
        block = queries[begin : begin + rows]
        scores = similarities(block, pool.tolist()).cpu().numpy()
        if not np.isfinite(scores).all():  # NaN would rank first
            raise UserError("the model's vectors are not finite: its training has diverged; lower --lr")
        for row, query in zip(scores, block, strict=True):
            for number in by_query[query]:
                texts = column[distinct.members[number][1:]]
                score = row[texts[0]]
                better = int((row > score).sum()) + int((row[: texts[0]] == score).sum())
                predictions[number] = {"score": float(score), "rank": better + 1}
                if len(texts) > 1:
                    predictions[number]["scores"] = row[texts].tolist()
                    predictions[number]["negative_score"] = float(row[texts[1:]].max())
    return predictions


def scores_of(
    dataset: Dataset[TextGroup], predictions: Sequence[Mapping[str, Any]], *, all_documents: bool = True
) -> dict[str, float]:
    """Return the metrics of predictions, in percent. Ranks are those among all documents of the file, so that examples
    of one query have ranks in the same list; without `all_documents`, those in a list of each example's own."""
    form = form_of(dataset)
    if form == "scored":
        gold = [example.labels[0] for example in dataset if example.labels is not None]
        names = regression_scores(gold, [float(each["score"]) for each in predictions], where=dataset.path)
        return {name: value for name, value in names.items() if name in SCORED_METRICS}
    if form == "lists":
        return _list_scores(dataset, predictions)
    ranks: dict[str | int, list[int]] = {}
    for number, (example, prediction) in enumerate(zip(dataset, predictions, strict=True)):
        if "rank" not in prediction:
            raise UserError(f"{dataset.path}: a prediction of {example.id} has no rank; write predictions as .jsonl")
        ranks.setdefault(example.texts[0] if all_documents else number, []).append(int(prediction["rank"]))
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
    """Return the metrics of queries whose texts are ranked by themselves; those without a relevant text are left out.
    Of equal scores that of the least relevant text ranks first, so that a constant score is not a perfect one."""
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
            ordered = labels[np.lexsort((labels, -scores))]
            discounts = 1 / np.log2(np.arange(2, len(labels) + 2))
            ideal = (np.sort(labels)[::-1] * discounts)[:DEPTH].sum()
            ranks = np.flatnonzero(ordered > 0) + 1
            graded = float((ordered * discounts)[:DEPTH].sum() / ideal)
            per_query.append({**_of_ranks(ranks), "ndcg@10": graded})
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
