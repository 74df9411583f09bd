"""Select negatives by vectors: the nearest texts within a window of ranks, filtered by score, and by a reranker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastbert.errors import UserError
from fastbert.mining.options import MiningOptions
from fastbert.mining.pairs import MiningPairs
from fastbert.search.exact import top_k

QUERIES = 8192
"""Queries that are searched for at a time."""
Rerank = Callable[[Sequence[tuple[str, str]]], Tensor]
"""(pairs of a query and a text) -> their scores, fp32 (pairs,)."""


@dataclass(frozen=True)
class Negatives:
    """The negatives of a pair: indices of texts, best first, with their scores."""

    positive_score: float
    indices: tuple[int, ...]
    scores: tuple[float, ...]
    reranked: tuple[float, ...] | None = None
    """The reranker's scores of the positive and of each negative."""


@dataclass
class Removed:
    """The number of candidates that each filter removed, of those that the filters before it left."""

    candidates: int = 0
    """Candidates in the window of ranks, of all pairs."""
    margin: int = 0
    relative_margin: int = 0
    max_score: int = 0
    min_score: int = 0
    reranker: int = 0
    """Of the candidates that were scored: no more than are needed."""


@dataclass
class _Candidates:
    """The candidates of a pair in the order in which they are taken, and those that the reranker accepted."""

    indices: NDArray[np.int64]
    scores: NDArray[np.float32]
    at: int = 0
    accepted: list[int] = field(default_factory=list)
    reranked: list[float] = field(default_factory=list)


def select_negatives(
    pairs: MiningPairs,
    query_vectors: Tensor,
    text_vectors: Tensor,
    options: MiningOptions,
    rerank: Rerank | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> tuple[list[Negatives], Removed]:
    """Return the negatives of each pair, in the order of the pairs, and what the filters removed.

    `query_vectors` fp32 (queries, width) and `text_vectors` fp32 (texts, width) are those of `pairs`, of unit length,
    on one device; scores are their dot products. Ranks count the texts that are candidates for a query, from 0. The
    filters of `options` compare a candidate with the pair's own positive. `rerank` scores candidates in the order in
    which they would be taken, until a pair has enough. `progress(stage, done, total)` is called at times.

    Raises UserError for vectors of other numbers, for reranker scores that are not finite, and if no pair has a
    candidate.
    """
    for name, vectors, count in (
        ("query", query_vectors, len(pairs.queries)),
        ("text", text_vectors, len(pairs.texts)),
    ):
        if vectors.dim() != 2 or len(vectors) != count:
            raise UserError(f"{name}_vectors {tuple(vectors.shape)} must have {count} rows, one per {name}")
    scores, indices = _nearest(pairs, query_vectors, text_vectors, options, rerank is not None, progress)
    removed = Removed()
    positive_scores = _positive_scores(pairs, query_vectors, text_vectors)
    candidates = []
    for number, pair in enumerate(pairs.pairs):
        keep = _filtered(scores[pair.query], indices[pair.query], positive_scores[number], options, removed)
        if options.sampling == "random":
            generator = np.random.Generator(np.random.Philox(key=[options.seed, number]))
            keep = generator.permutation(keep)
        candidates.append(_Candidates(indices[pair.query][keep], scores[pair.query][keep]))
    if not removed.candidates:
        searched = f"from rank {options.range_min} on" if options.range_min else "beside the positives"
        cure = ", or begin at a smaller rank" if options.range_min else ""
        raise UserError(f"there is no candidate for a negative {searched}; add texts, for example a corpus{cure}")
    if rerank is None:
        positive_reranked = None
        for one in candidates:
            one.accepted = list(range(min(options.negatives, len(one.indices))))
    else:
        positive_reranked = _rerank(pairs, candidates, options, rerank, removed, progress)
    return [
        _taken(one, positive_scores[number], None if positive_reranked is None else positive_reranked[number])
        for number, one in enumerate(candidates)
    ], removed


def _nearest(
    pairs: MiningPairs,
    query_vectors: Tensor,
    text_vectors: Tensor,
    options: MiningOptions,
    reranked: bool,
    progress: Callable[[str, int, int], None],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the scores and indices of the candidates of each query in the window of ranks, (queries, window)."""
    last, count = options.last_rank(reranked=reranked), len(pairs.queries)
    found: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for first in range(0, count, QUERIES):
            excluded = [query.excluded for query in pairs.queries[first : first + QUERIES]]
            scores, indices = top_k(query_vectors[first : first + QUERIES], text_vectors, last, excluded=excluded)
            found.append((scores[:, options.range_min :].cpu(), indices[:, options.range_min :].cpu()))
            progress("searching", min(first + QUERIES, count), count)
    return torch.cat([scores for scores, _ in found]).numpy(), torch.cat([indices for _, indices in found]).numpy()


def _positive_scores(pairs: MiningPairs, query_vectors: Tensor, text_vectors: Tensor) -> NDArray[np.float32]:
    scores = []
    for first in range(0, len(pairs.pairs), QUERIES):
        chunk = pairs.pairs[first : first + QUERIES]
        queries = query_vectors[[pair.query for pair in chunk]]
        scores.append((queries * text_vectors[[pair.positive for pair in chunk]]).sum(1))
    result: NDArray[np.float32] = torch.cat(scores).cpu().numpy()
    return result


def _filtered(
    scores: NDArray[np.float32],
    indices: NDArray[np.int64],
    positive: np.float32,
    options: MiningOptions,
    removed: Removed,
) -> NDArray[np.int64]:
    """Return the positions of a query's candidates that pass all filters, and count the others."""
    keep = np.flatnonzero(indices >= 0)
    removed.candidates += len(keep)
    bounds = {
        "margin": None if options.margin is None else positive - options.margin,
        "relative_margin": None
        if options.relative_margin is None
        else positive - abs(positive) * options.relative_margin,
        "max_score": options.max_score,
    }
    for name, bound in bounds.items():
        if bound is not None:
            passing = keep[scores[keep] <= bound]
            setattr(removed, name, getattr(removed, name) + len(keep) - len(passing))
            keep = passing
    if options.min_score is not None:
        passing = keep[scores[keep] >= options.min_score]
        removed.min_score += len(keep) - len(passing)
        keep = passing
    return keep


def _rerank(
    pairs: MiningPairs,
    candidates: Sequence[_Candidates],
    options: MiningOptions,
    rerank: Rerank,
    removed: Removed,
    progress: Callable[[str, int, int], None],
) -> NDArray[np.float64]:
    """Accept candidates in rounds, in each of which a pair has as many scored as it lacks. Returns the scores of the
    positives."""

    def score(chosen: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
        texts = [(pairs.queries[pairs.pairs[number].query].anchor, pairs.texts[index]) for number, index in chosen]
        scores = np.asarray(rerank(texts), dtype=np.float64)
        if scores.shape != (len(texts),) or not np.isfinite(scores).all():
            raise UserError("the reranker's scores are not finite numbers, one per pair; restore its files")
        return scores

    positives = score([(number, pair.positive) for number, pair in enumerate(pairs.pairs)])
    limits = positives - options.reranker_margin
    total = len(candidates)
    while True:
        chosen: list[tuple[int, int]] = []
        for number, one in enumerate(candidates):
            lacking = options.negatives - len(one.accepted)
            chosen.extend((number, int(index)) for index in one.indices[one.at : one.at + lacking])
        if not chosen:
            return positives
        for (number, _), value in zip(chosen, score(chosen).tolist(), strict=True):
            one = candidates[number]
            if value <= limits[number]:
                one.accepted.append(one.at)
                one.reranked.append(value)
            else:
                removed.reranker += 1
            one.at += 1
        done = sum(len(one.accepted) == options.negatives or one.at == len(one.indices) for one in candidates)
        progress("reranking", done, total)


def _taken(one: _Candidates, positive: np.float32, reranked: np.float64 | None) -> Negatives:
    """Return the negatives, best first by the embedder's score."""
    order = np.argsort(-one.scores[one.accepted], kind="stable")
    taken = [one.accepted[position] for position in order]
    return Negatives(
        float(positive),
        tuple(int(index) for index in one.indices[taken]),
        tuple(float(score) for score in one.scores[taken]),
        None if reranked is None else (float(reranked), *(one.reranked[position] for position in order)),
    )
