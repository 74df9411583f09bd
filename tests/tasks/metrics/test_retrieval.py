"""Metrics of rankings: a brute-force oracle, trec_eval's order, and sentence-transformers' evaluator."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.tasks.metrics.retrieval import (
    default_metrics,
    ranked,
    ranking_scores,
    retrieval_scores,
    score_run,
)

METRICS = (
    *("ndcg@1", "ndcg@3", "ndcg@10", "mrr@3", "mrr@10", "recall@1", "recall@10", "precision@1", "precision@10"),
    *("map@1", "map@5", "map@100", "map", "accuracy@1", "accuracy@7"),
)


def oracle(name: str, ranking: Sequence[str], judged: Mapping[str, int]) -> float:
    """A metric of one query, as its definition reads."""
    kind, _, cut = name.partition("@")
    k = int(cut) if cut else len(ranking)
    relevant = {document for document, gain in judged.items() if gain >= 1}
    top = ranking[:k]
    hits = [rank for rank, document in enumerate(top, 1) if document in relevant]
    match kind:
        case "ndcg":
            dcg = sum(max(judged.get(d, 0), 0) / math.log2(rank + 1) for rank, d in enumerate(top, 1))
            best = sorted((max(gain, 0) for gain in judged.values()), reverse=True)[:k]
            return dcg / sum(gain / math.log2(rank + 1) for rank, gain in enumerate(best, 1))
        case "mrr":
            return 1 / hits[0] if hits else 0.0
        case "recall":
            return len(hits) / len(relevant)
        case "precision":
            return len(hits) / k
        case "accuracy":
            return float(bool(hits))
        case _:
            return sum((i + 1) / rank for i, rank in enumerate(hits)) / len(relevant)


def random_judgements(rng: random.Random, gains: Sequence[int]) -> dict[str, dict[str, int]]:
    return {
        f"q{query}": {f"d{document}": rng.choice(gains) for document in rng.sample(range(40), rng.randint(1, 20))}
        for query in range(60)
    }


@pytest.mark.parametrize("gains", [(0, 1), (-1, 0, 1, 2, 3)], ids=["binary", "graded"])
def test_equal_to_the_definitions(seed: int, gains: tuple[int, ...]) -> None:
    rng = random.Random(seed)
    judgements = random_judgements(rng, gains)
    run = {
        # Few different scores, so that many are equal.
        query: {f"d{d}": rng.choice([rng.random(), 0.5, -1.0]) for d in rng.sample(range(45), rng.randint(1, 30))}
        for query in [*judgements, "unjudged"]
        if query != "q3"
    }
    scores = score_run(run, judgements, METRICS)
    relevant = {query: judged for query, judged in judgements.items() if max(judged.values()) > 0}
    assert scores.queries == tuple(relevant)
    assert scores.without_relevant == len(judgements) - len(relevant)
    assert (scores.unjudged, scores.without_hits) == (1, int("q3" in relevant))
    for row, (query, judged) in enumerate(relevant.items()):
        hits = run.get(query, {})
        ranking = sorted(sorted(hits, reverse=True), key=lambda document: -np.float32(hits[document]))
        assert ranked(hits) == ranking
        for name in METRICS:
            expected = 100 * oracle(name, ranking, judged)
            assert scores.per_query[name][row] == pytest.approx(expected, abs=1e-9), (query, name)
    assert scores.means["map"] == pytest.approx(scores.per_query["map"].mean())


def test_equal_scores_are_ordered_as_trec_eval_orders_them() -> None:
    """By id, descending; scores that are equal in fp32 are equal."""
    assert ranked({"a": 1.0, "c": 1.0, "b": 2.0}) == ["b", "c", "a"]
    assert ranked({"a": 1 + 1e-12, "b": 1.0}) == ["b", "a"]
    assert ranked({}) == []


def test_cut_offs_beyond_the_ranking_take_no_memory() -> None:
    judgements = {"q": {"a": 2, "b": 1, "c": 0}}
    run = {"q": {"a": 1.0, "c": 0.5}}
    names = ("ndcg@999999999", "recall@999999999", "precision@999999999", "map@999999999", "mrr@999999999")
    ndcg, recall, precision, average, reciprocal = score_run(run, judgements, names).means.values()
    assert ndcg == pytest.approx(100 * 2 / (2 + 1 / math.log2(3)))
    assert (recall, average, reciprocal) == (50, 50, 100)
    assert precision == pytest.approx(100 / 999_999_999)


@pytest.mark.filterwarnings("error")
def test_scores_beyond_fp32_are_equal() -> None:
    assert ranked({"a": 1e300, "b": 2e300, "c": 1.0}) == ["b", "a", "c"]


class Vectors:
    """A model of sentence-transformers' evaluator, whose texts are numbers of vectors."""

    similarity_fn_name = "cosine"
    model_card_data = None

    def __init__(self, queries: Tensor, documents: Tensor) -> None:
        self.vectors = {"query": queries, "document": documents}

    def encode_query(self, texts: Sequence[str], **options: object) -> Tensor:
        return self.vectors["query"][[int(text) for text in texts]]

    def encode_document(self, texts: Sequence[str], **options: object) -> Tensor:
        return self.vectors["document"][[int(text) for text in texts]]

    def similarity(self, queries: Tensor, documents: Tensor) -> Tensor:
        return queries @ documents.T


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_equal_to_the_evaluator_of_sentence_transformers(seed: int) -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.evaluation")
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (torch.randn(rows, 16, generator=generator) for rows in (50, 300))
    queries, documents = (torch.nn.functional.normalize(vectors) for vectors in (queries, documents))
    rng = random.Random(seed)
    relevant = [rng.sample(range(300), rng.randint(0, 8)) for _ in range(50)]
    evaluator = library.InformationRetrievalEvaluator(
        {str(query): str(query) for query in range(50)},
        {str(document): str(document) for document in range(300)},
        {str(query): set(map(str, documents)) for query, documents in enumerate(relevant)},
        corpus_chunk_size=64,
        mrr_at_k=[10],
        ndcg_at_k=[10],
        map_at_k=[100],
        accuracy_at_k=[1, 10],
        precision_recall_at_k=[1, 10],
        score_functions={"dot": lambda a, b: a @ b.T},
    )
    expected = evaluator.compute_all_metrics(Vectors(queries, documents))["dot"]
    names = [f"{name.removesuffix('k')}{k}" for name, values in expected.items() for k in values]
    scores = retrieval_scores(queries, documents, relevant, metrics=names)
    assert len(names) == 9
    for name, value in scores.items():
        kind, _, cut = name.partition("@")
        assert value == pytest.approx(100 * expected[f"{kind}@k"][int(cut)], abs=1e-9), name


def test_scores_of_vectors_are_those_of_their_run(seed: int) -> None:
    """Also with gains, and with fewer documents than k."""
    generator = torch.Generator().manual_seed(seed)
    queries, documents = (torch.randn(rows, 8, generator=generator) for rows in (30, 70))
    rng = random.Random(seed)
    relevant = [[(d, rng.choice([-1.0, 0.0, 1.0, 2.0])) for d in rng.sample(range(70), 6)] for _ in range(30)]
    relevant[4] = []
    products = (queries @ documents.T).tolist()
    run = {str(query): {f"{d:02}": score for d, score in enumerate(row)} for query, row in enumerate(products)}
    judgements = {str(query): {f"{d:02}": int(gain) for d, gain in pairs} for query, pairs in enumerate(relevant)}
    expected = score_run(run, judgements, default_metrics()).means
    scores = retrieval_scores(queries, documents, [np.array(pairs) for pairs in relevant])
    assert scores == pytest.approx(expected)
    assert list(scores) == ["ndcg@10", "mrr@10", "map@100", "recall@1", "recall@10", "recall@100"]
    few = retrieval_scores(queries, documents, relevant, k=3)
    assert list(few) == ["ndcg@3", "mrr@3", "map@3", "recall@1", "recall@3"]
    assert few["recall@1"] == scores["recall@1"]


@pytest.mark.parametrize(
    ("relevant", "problem"),
    [
        pytest.param([[9], [0]], r"relevant\[0\] holds 9, and there are 4 documents", id="index"),
        pytest.param([[0], [-1]], r"relevant\[1\] holds -1, and there are 4 documents", id="negative"),
        pytest.param([[0.5], [1]], r"relevant\[0\] holds 0.5", id="fraction"),
        pytest.param([[0, 0], [1]], r"relevant\[0\] holds a document twice", id="twice"),
        pytest.param([[(0, math.nan)], [1]], r"relevant\[0\] holds a gain that is not finite", id="gain"),
        pytest.param([[(0, 1, 2)], [1]], r"relevant\[0\] has shape \(1, 3\)", id="shape"),
        pytest.param([[], [(1, 0.0)]], "no query has a relevant document", id="none"),
        pytest.param([[1]], "relevant has 1 sequences for 2 queries", id="number"),
    ],
)
def test_wrong_judgements_of_vectors(relevant: list[list[object]], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        retrieval_scores(torch.eye(4)[:2], torch.eye(4), relevant)  # type: ignore[arg-type]


def test_mistakes() -> None:
    vectors = torch.eye(2)
    for name in ("ndcg", "ndcg@0", "ndcg@-1", "f1@3", "map@x", ""):
        with pytest.raises(UserError, match="is not a metric: give map, or ndcg"):
            retrieval_scores(vectors, vectors, [[0], [1]], metrics=[name])
    with pytest.raises(UserError, match="k=5 documents are too few for ndcg@10"):
        retrieval_scores(vectors, vectors, [[0], [1]], k=5, metrics=["ndcg@10"])
    with pytest.raises(UserError, match="encode both with one model"):
        retrieval_scores(vectors, torch.eye(3), [[0], [1]])
    with pytest.raises(UserError, match="NaN or an infinity"):
        retrieval_scores(vectors, vectors * math.nan, [[0], [1]])
    with pytest.raises(UserError, match="no query has a relevant document"):
        score_run({"q": {"d": 1.0}}, {"q": {"d": 0}})
    with pytest.raises(UserError, match="no query of the run has a relevant document"):
        score_run({"other": {"d": 1.0}}, {"q": {"d": 1}})
    with pytest.raises(ValueError, match="each query must have a relevant document"):
        ranking_scores(np.zeros((1, 3)), [[0]], ["map"])
