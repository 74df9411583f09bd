"""Metrics of rankings against judgements of relevance, as trec_eval defines them; in percent.

A document is relevant if its judged relevance is at least 1; one that was not judged is not relevant. With R relevant
documents of a query, k the cut-off, and rel_i the relevance at rank i:

- `ndcg@k`: DCG, the sum over ranks of rel_i / log2(i + 1), divided by that of the best possible ranking of all judged
  documents (Järvelin and Kekäläinen 2002). Gains are linear in the relevance, not 2^rel - 1.
- `mrr@k`: 1 / the rank of the first relevant document, 0 if it is not among the first k.
- `recall@k`: the relevant documents among the first k, divided by R.
- `precision@k`: the same divided by k, however many documents were retrieved.
- `map@k`: the sum of precision@i over the ranks i up to k of relevant documents, divided by R; `map` has no cut-off.
- `accuracy@k`: 1 if a relevant document is among the first k.

sentence-transformers' InformationRetrievalEvaluator has gains of 0 and 1 only in its nDCG, and divides `map@k` by
min(k, R); the other metrics are equal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert.errors import UserError, require_whole

if TYPE_CHECKING:
    from torch import Tensor

KINDS = ("ndcg", "mrr", "recall", "precision", "map", "accuracy")
_METRIC = re.compile(rf"({'|'.join(KINDS)})@([1-9][0-9]{{0,8}})")

Judgements = Mapping[str, Mapping[str, int]]
"""Relevance by the ids of query and document."""
Run = Mapping[str, Mapping[str, float]]
"""Scores by the ids of query and document."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunScores:
    """Metrics of a run, in percent."""

    queries: tuple[str, ...]
    """The ids of the scored queries: those with a relevant document."""
    per_query: Mapping[str, np.ndarray]
    """float64 (queries,), by metric."""
    without_relevant: int
    """Judged queries without a relevant document, which are left out."""
    without_hits: int
    """Scored queries without a hit, which count as 0."""
    unjudged: int
    """Queries of the run without a judgement, which are left out."""

    @property
    def means(self) -> dict[str, float]:
        """The mean of each metric over the scored queries."""
        return {name: float(np.mean(values)) for name, values in self.per_query.items()}


def default_metrics(k: int = 100) -> tuple[str, ...]:
    """Return the usual metrics of rankings of k documents."""
    first = min(10, k)
    names = [f"ndcg@{first}", f"mrr@{first}", f"map@{k}", *(f"recall@{cut}" for cut in (1, first, k))]
    return tuple(dict.fromkeys(names))


def check_metrics(names: Sequence[str]) -> None:
    """Raise UserError for a name that is not a metric."""
    for name in names:
        if name != "map" and _METRIC.fullmatch(name) is None:
            raise UserError(f"{name!r} is not a metric: give map, or {', '.join(KINDS)} with a rank, such as ndcg@10")


def deepest(names: Sequence[str]) -> int:
    """Return the largest cut-off of some metrics, 0 for `map` alone. Raises UserError for unknown names."""
    check_metrics(names)
    return max((_parsed(name)[1] or 0 for name in names), default=0)


def ranking_scores(
    gains: np.ndarray, judged: Sequence[Sequence[float] | np.ndarray], metrics: Sequence[str]
) -> dict[str, np.ndarray]:
    """Compute metrics of each query, in percent, float64 (queries,).

    `gains` are the relevances at each rank, any dtype (queries, ranks), 0 for documents that are not relevant and
    behind the last hit; `judged` has the relevances of all judged documents of each query, one at least above 0. See
    the module for formulas. Raises UserError for unknown metrics.
    """
    check_metrics(metrics)
    gains = np.maximum(gains.astype(np.float64), 0)
    if not gains.shape[1]:
        gains = np.zeros((len(gains), 1))
    ranks = np.arange(1, gains.shape[1] + 1)
    relevant = gains > 0
    hits = relevant.cumsum(1)
    longest = max(map(len, judged), default=0)
    totals = np.array([np.count_nonzero(np.asarray(each) > 0) for each in judged], dtype=np.float64)
    if len(totals) != len(gains) or not totals.all():
        raise ValueError("each query must have a relevant document")
    scores = {}
    for name in metrics:
        kind, cut = _parsed(name)
        # Behind the last hit there are no gains: memory does not grow with the cut-off.
        k = len(ranks) if cut is None else min(cut, len(ranks))
        match kind:
            case "ndcg":
                assert cut is not None
                scores[name] = _dcg(gains[:, :k]) / _dcg(_ideal(judged, min(cut, longest)))
            case "mrr":
                first = relevant[:, :k].argmax(1)
                scores[name] = relevant[:, :k].any(1) / (first + 1)
            case "recall":
                scores[name] = hits[:, k - 1] / totals
            case "precision":
                assert cut is not None
                scores[name] = hits[:, k - 1] / cut
            case "accuracy":
                scores[name] = (hits[:, k - 1] > 0).astype(np.float64)
            case _:
                scores[name] = (relevant * hits / ranks)[:, :k].sum(1) / totals
    return {name: 100 * values for name, values in scores.items()}


def score_run(run: Run, judgements: Judgements, metrics: Sequence[str] = default_metrics()) -> RunScores:
    """Compute metrics of a run's judged queries.

    Documents are ranked as trec_eval ranks them: by score in fp32, equal ones by id in descending order. Queries
    without a relevant document are left out; a judged query that the run lacks counts as 0, as with trec_eval's `-c`.
    Raises UserError if no query of the judgements has a relevant document, or the run holds none of them.
    """
    queries = [query for query, judged in judgements.items() if any(gain > 0 for gain in judged.values())]
    if not queries:
        raise UserError("no query has a relevant document: judge some with a relevance of at least 1")
    if not any(run.get(query) for query in queries):
        raise UserError("no query of the run has a relevant document; are its ids those of the judgements?")
    longest = max(len(run.get(query, ())) for query in queries)
    depth = longest if "map" in metrics else min(longest, deepest(metrics))
    gains = np.zeros((len(queries), depth))
    for row, query in enumerate(queries):
        judged = judgements[query]
        values = [judged.get(document, 0) for document in ranked(run.get(query, {}))[:depth]]
        gains[row, : len(values)] = values
    per_query = ranking_scores(gains, [list(judgements[query].values()) for query in queries], metrics)
    return RunScores(
        queries=tuple(queries),
        per_query=per_query,
        without_relevant=len(judgements) - len(queries),
        without_hits=sum(not run.get(query) for query in queries),
        unjudged=sum(query not in judgements for query in run),
    )


def ranked(scores: Mapping[str, float]) -> list[str]:
    """Return documents by their score in fp32, best first; of equal scores, the larger id is first."""
    documents = list(scores)
    with np.errstate(over="ignore"):
        values = np.array(list(scores.values()), dtype=np.float32)
        if len(np.unique(values)) < len(values):
            documents.sort(reverse=True)
            values = np.array([scores[document] for document in documents], dtype=np.float32)
    return [documents[index] for index in np.argsort(-values, kind="stable").tolist()]


def retrieval_scores(
    query_vectors: Tensor,
    document_vectors: Tensor,
    relevant: Sequence[Sequence[int] | Sequence[tuple[int, float]] | np.ndarray],
    *,
    k: int = 100,
    metrics: Sequence[str] | None = None,
) -> dict[str, float]:
    """Compute the mean metrics of exact search by dot product, in percent.

    query_vectors fp32 (queries, width) and document_vectors fp32 (documents, width) on one device; normalise them for
    cosines. `relevant` has one sequence per query: indices of its relevant documents, (n,), or pairs of an index and a
    gain, (n, 2). `k` documents are retrieved, equal scores in the order of the documents; `metrics` are by default
    `default_metrics(k)`. Queries without a relevant document are left out. Memory is bounded for any number of
    documents.

    Raises UserError for indices that are not documents or occur twice, for vectors that do not fit together or give
    products that are not finite, for unknown metrics or those beyond k, and if no query has a relevant document.
    """
    from fastbert.search.exact import top_k

    require_whole("k", k, 1)
    names = default_metrics(k) if metrics is None else tuple(metrics)
    if deepest(names) > k:
        raise UserError(f"k={k} documents are too few for {', '.join(names)}; raise k")
    if len(relevant) != len(query_vectors):
        raise UserError(f"relevant has {len(relevant)} sequences for {len(query_vectors)} queries: give one per query")
    documents = len(document_vectors)
    judged = [_gains(each, query, documents) for query, each in enumerate(relevant)]
    rows = [row for row, (_, gains) in enumerate(judged) if (gains > 0).any()]
    if not rows:
        raise UserError("no query has a relevant document: the scores would be of nothing")
    judged = [judged[row] for row in rows]
    indices = top_k(query_vectors[rows], document_vectors, k)[1].cpu().numpy()
    gains = np.zeros(indices.shape)
    # One sorted array of the judged pairs, in which the hits of all queries are looked up at once.
    sizes = [len(each) for each, _ in judged]
    pairs = np.repeat(np.arange(len(rows)), sizes) * documents + np.concatenate([each for each, _ in judged])
    order = np.argsort(pairs)
    pairs = pairs[order]
    retrieved = np.arange(len(rows))[:, None] * documents + indices
    positions = np.minimum(np.searchsorted(pairs, retrieved), len(pairs) - 1)
    matches = pairs[positions] == retrieved
    gains[matches] = np.concatenate([each for _, each in judged])[order][positions[matches]]
    scores = ranking_scores(gains, [each for _, each in judged], names)
    return {name: float(values.mean()) for name, values in scores.items()}


def _gains(relevant: Any, query: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and gains of a query's documents. Raises UserError."""
    pairs = np.asarray(relevant, dtype=np.float64)
    if pairs.size == 0:
        return np.empty(0, dtype=np.int64), np.empty(0)
    if pairs.ndim > 2 or (pairs.ndim == 2 and pairs.shape[1] != 2):
        raise UserError(f"relevant[{query}] has shape {pairs.shape}: it must be (n,) indices or (n, 2) with gains")
    columns = pairs if pairs.ndim == 2 else np.stack([pairs, np.ones_like(pairs)], 1)
    indices = columns[:, 0].astype(np.int64)
    wrong = np.flatnonzero((indices != columns[:, 0]) | (indices < 0) | (indices >= documents))
    if len(wrong):
        raise UserError(f"relevant[{query}] holds {columns[wrong[0], 0]:g}, and there are {documents} documents")
    if len(np.unique(indices)) < len(indices):
        raise UserError(f"relevant[{query}] holds a document twice; leave one out")
    if not np.isfinite(columns[:, 1]).all():
        raise UserError(f"relevant[{query}] holds a gain that is not finite")
    return indices, columns[:, 1]


def _parsed(name: str) -> tuple[str, int | None]:
    kind, _, cut = name.partition("@")
    return kind, int(cut) if cut else None


def _dcg(gains: np.ndarray) -> np.ndarray:
    """Return the discounted sums of gains (queries, ranks)."""
    sums: np.ndarray = gains @ (1 / np.log2(np.arange(2, gains.shape[1] + 2)))
    return sums


def _ideal(judged: Sequence[Sequence[float] | np.ndarray], k: int) -> np.ndarray:
    """Return the k largest gains of each query in descending order, float64 (queries, k)."""
    ideal = np.zeros((len(judged), k))
    for row, gains in enumerate(judged):
        best = np.sort(np.maximum(np.asarray(gains, dtype=np.float64), 0))[::-1][:k]
        ideal[row, : len(best)] = best
    return ideal
