"""Rankings of documents for queries, by vectors or by a cross-encoder, as runs: scores by the ids of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.reranking.cross_encoder import CrossEncoder
from fastbert.retrieval.scorers import Progress, Scorer
from fastbert.search.exact import merged
from fastbert.tasks.readers.documents import Texts

Run = dict[str, dict[str, float]]
View = Callable[[Any], Any]
"""Takes the vectors of queries or documents, and returns those that are compared."""


def retrieve(
    scorer: Scorer[Any],
    queries: Sequence[str],
    documents: Sequence[str],
    k: int,
    *,
    views: Sequence[View] = (lambda vectors: vectors,),
    progress: Progress = lambda done: None,
) -> list[tuple[Tensor, Tensor]]:
    """Return, for each view of the vectors, the k best scores per query, fp32 (queries, k), and the indices of their
    documents, int64, best first; equal scores are ordered by index.

    Documents are encoded once for all views, some at a time, and only the best ones are kept. `progress` gets the
    number of texts done, queries first. A score of -inf stands for no document. Raises UserError where the scorer does.
    """
    vectors = scorer.queries(queries, progress)
    compared = [view(vectors) for view in views]
    best = [(torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)) for _ in views]
    first = 0
    for chunk in scorer.documents(documents, lambda done: progress(len(queries) + done)):
        for index, view in enumerate(views):
            scores, columns = scorer.best(compared[index], view(chunk), k)
            best[index] = merged(*best[index], scores.cpu(), columns.cpu() + first, k)
        first += len(chunk)
    return best


def truncated_views(widths: Sequence[int]) -> list[View]:
    """Return views of the first numbers of dense vectors, fp32 (rows, width), for Matryoshka models; they raise
    UserError for vectors that are narrower."""

    def view(width: int) -> View:
        def truncated(vectors: Tensor) -> Tensor:
            if vectors.shape[1] < width:
                raise UserError(
                    f"width {width} is more than the {vectors.shape[1]} numbers of the model's vectors; leave it out"
                )
            return vectors[:, :width]

        return truncated

    return [view(width) for width in widths]


def to_run(
    hits: tuple[Tensor, Tensor], query_ids: Sequence[str], document_ids: Sequence[str], *, same_id: bool = True
) -> Run:
    """Return hits, scores fp32 and indices int64 (queries, k), as scores by ids; without `same_id`, those whose ids are
    equal are left out."""
    run: Run = {}
    rows = zip(query_ids, hits[0].tolist(), hits[1].tolist(), strict=True)
    for query, scores, indices in rows:
        run[query] = {
            document_ids[index]: score
            for score, index in zip(scores, indices, strict=True)
            if score != float("-inf") and (same_id or document_ids[index] != query)
        }
    return run


def score_candidates(
    scorer: Scorer[Any],
    queries: Texts,
    documents: Texts,
    candidates: Mapping[str, Sequence[str]],
    progress: Progress = lambda done: None,
) -> Run:
    """Score the candidates of each query, documents by their ids, with vectors; see `rank_candidates`.

    Documents are encoded once each, in the order in which queries have them, some at a time. `progress` gets the
    number of texts done, queries first. Candidates with a score of -inf, such as documents without a vector for MaxSim,
    are left out.
    """
    query_ids = list(candidates)
    document_ids = list(dict.fromkeys(document for ids in candidates.values() for document in ids))
    position = {document: index for index, document in enumerate(document_ids)}
    # The pairs in the order of the documents, so that a chunk meets only the queries that have one of its documents.
    pairs = [(position[document], row) for row, query in enumerate(query_ids) for document in candidates[query]]
    columns, rows = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    order = np.argsort(columns, kind="stable")
    values = np.empty(len(pairs), dtype=np.float32)
    vectors = scorer.queries(queries.of(query_ids), progress)
    first = 0
    sorted_columns = columns[order]
    for chunk in scorer.documents(documents.of(document_ids), lambda done: progress(len(query_ids) + done)):
        begin, end = np.searchsorted(sorted_columns, [first, first + len(chunk)])
        of_chunk = order[begin:end]
        chunk_queries, score_rows = np.unique(rows[of_chunk], return_inverse=True)
        scores = scorer.scores(vectors, chunk_queries.tolist(), chunk)
        values[of_chunk] = scores.cpu().numpy()[score_rows, columns[of_chunk] - first]
        first += len(chunk)
    return _best_first(candidates, values.tolist())


def rank_candidates(
    ranker: CrossEncoder,
    queries: Texts,
    documents: Texts,
    candidates: Mapping[str, Sequence[str]],
    progress: Progress = lambda done: None,
    **options: Any,
) -> Run:
    """Score the candidates of each query, documents by their ids, with a cross-encoder; return scores by ids, the best
    first; equal scores keep the order of the candidates.

    `options` are those of `RankOptions`; `progress` gets the number of pairs done. Raises UserError where
    `CrossEncoder.predict` does.
    """
    pairs = [
        (queries.texts[queries.index[query]], text) for query, ids in candidates.items() for text in documents.of(ids)
    ]
    return _best_first(candidates, ranker.predict(pairs, progress=progress, **options).tolist())


def _best_first(candidates: Mapping[str, Sequence[str]], values: Sequence[float]) -> Run:
    run: Run = {}
    first = 0
    for query, ids in candidates.items():
        scores = zip(ids, values[first : first + len(ids)], strict=True)
        first += len(ids)
        run[query] = dict(sorted((pair for pair in scores if pair[1] != float("-inf")), key=lambda pair: -pair[1]))
    return run
