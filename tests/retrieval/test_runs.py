"""Retrieval and the scoring of candidates by each kind of vectors, beside the products of all pairs at once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding import random_texts
from reranking_models import cross_encoder, model_folder
from torch import Tensor

from fastbert import CrossEncoder, SparseEncoder, TokenEncoder, maxsim
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.settings import EmbedSettings
from fastbert.errors import UserError
from fastbert.retrieval import scorers
from fastbert.retrieval.runs import rank_candidates, retrieve, score_candidates, to_run, truncated_views
from fastbert.retrieval.scorers import SCORERS, DenseScorer, SparseScorer, TokenScorer
from fastbert.search.exact import largest
from fastbert.tasks.readers.documents import Texts

PROMPTS = {"query": "q ", "passage": "p "}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return model_folder(folder, "BertForMaskedLM", 0)


@pytest.fixture(scope="module")
def texts() -> tuple[list[str], list[str]]:
    documents = random_texts(1, 90, most=9)
    return [text for text in random_texts(2, 12, most=4) if text], [*documents, documents[3]]


def all_scores(kind: str, model: Path, queries: list[str], documents: list[str]) -> Tensor:
    """The scores of all pairs, as the public encoders give them."""
    if kind == "tokens":
        encoder = TokenEncoder(model, dtype="fp32")
        return maxsim(encoder.encode(queries, role="query"), encoder.encode(documents))
    if kind == "sparse":
        sparse = SparseEncoder(model, dtype="fp32")
        return sparse.encode(queries, role="query").to_torch().to_dense() @ (
            sparse.encode(documents).to_torch().to_dense().T
        )
    embedder, tokenizer, _ = load_embedder(model)
    vectors = [embedder.embed(side, tokenizer, normalize=True) for side in (queries, documents)]
    return vectors[0] @ vectors[1].T


@pytest.mark.parametrize("kind", SCORERS)
def test_the_best_of_all_pairs(
    kind: str, model: Path, texts: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, documents = texts
    monkeypatch.setattr(scorers._RaggedScorer, "chunk", 7)
    monkeypatch.setattr(scorers.TokenScorer, "chunk", 7)
    monkeypatch.setattr(scorers, "SPARSE_QUERIES", 5)
    scorer = SCORERS[kind](model, device="cpu")
    done: list[int] = []
    [(scores, indices)] = retrieve(scorer, queries, documents, 20, progress=done.append)
    expected = largest(all_scores(kind, model, queries, documents), 20)[0]
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    gathered = all_scores(kind, model, queries, documents).gather(1, indices)
    torch.testing.assert_close(gathered, expected, rtol=1e-5, atol=1e-5)
    assert done == sorted(done)
    assert done[-1] == len(queries) + len(documents)
    assert scorer.counts["document"].texts == len(documents)
    assert scorer.counts["query"].texts == len(queries)
    # Equal documents have equal scores, in their order.
    first, last = 3, len(documents) - 1
    for row in indices.tolist():
        if last in row:
            assert row.index(first) + 1 == row.index(last)


@pytest.mark.parametrize("kind", SCORERS)
def test_candidates_have_the_scores_of_their_pairs(
    kind: str, model: Path, texts: tuple[list[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries, documents = texts
    monkeypatch.setattr(scorers._RaggedScorer, "chunk", 7)
    monkeypatch.setattr(scorers.TokenScorer, "chunk", 7)
    monkeypatch.setattr(scorers, "SPARSE_QUERIES", 2)
    rng = random.Random(3)
    sides = [Texts(name, tuple(f"{name}{i}" for i in range(len(side))), tuple(side)) for name, side in zip("qd", texts)]
    candidates = {
        f"q{query}": [f"d{d}" for d in rng.sample(range(len(documents)), rng.randint(1, 15))]
        for query in range(0, len(queries), 2)
    }
    run = score_candidates(SCORERS[kind](model, device="cpu"), *sides, candidates)
    expected = all_scores(kind, model, queries, documents)
    assert list(run) == list(candidates)
    for query, scores in run.items():
        assert set(scores) == set(candidates[query])
        assert list(scores.values()) == sorted(scores.values(), reverse=True)
        row = expected[int(query[1:])]
        np.testing.assert_allclose(list(scores.values()), [row[int(name[1:])] for name in scores], rtol=1e-5, atol=1e-5)


def test_a_cross_encoder_ranks_candidates(tmp_path: Path, texts: tuple[list[str], list[str]]) -> None:
    ranker = CrossEncoder(cross_encoder(tmp_path, "Bert", 0), device="cpu", dtype="fp32")
    sides = [Texts(name, tuple(f"{name}{i}" for i in range(len(side))), tuple(side)) for name, side in zip("qd", texts)]
    candidates = {"q1": ["d5", "d3", "d90"], "q0": ["d2"]}
    run = rank_candidates(ranker, *sides, candidates, batch_tokens=9)
    for query, scores in run.items():
        ranked = ranker.rank(texts[0][int(query[1])], [texts[1][int(name[1:])] for name in candidates[query]])
        assert list(scores) == [candidates[query][one.index] for one in ranked]
        assert list(scores.values()) == [one.score for one in ranked]


def test_views_of_the_first_numbers(model: Path, texts: tuple[list[str], list[str]]) -> None:
    queries, documents = texts
    scorer = DenseScorer(model, device="cpu")
    embedder, tokenizer, _ = load_embedder(model)
    whole = [embedder.embed(side, tokenizer) for side in texts]
    widths = (whole[0].shape[1], 8, 3)
    rankings = retrieve(scorer, queries, documents, 5, views=truncated_views(widths))
    for width, (scores, _) in zip(widths, rankings, strict=True):
        cut = [torch.nn.functional.normalize(vectors[:, :width]) for vectors in whole]
        torch.testing.assert_close(scores, largest(cut[0] @ cut[1].T, 5)[0], rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match=f"width 1000 is more than the {widths[0]} numbers"):
        retrieve(scorer, queries, documents, 5, views=truncated_views([1000]))


def test_prompts_and_similarity_of_the_folder(tmp_path: Path, texts: tuple[list[str], list[str]]) -> None:
    queries, documents = texts
    folder = model_folder(tmp_path, "BertModel", 0)
    settings = EmbedSettings(prompts=PROMPTS, similarity="dot", default_prompt="query")
    settings.save(folder, load_embedder(folder)[0].config.hidden_size)
    embedder, tokenizer, _ = load_embedder(folder)
    embedder.embed_settings = replace(settings, default_prompt=None)

    def products(query: str, document: str) -> Tensor:
        sides = [[prompt + text for text in side] for prompt, side in zip((query, document), texts, strict=True)]
        vectors = [embedder.embed(side, tokenizer) for side in sides]
        return largest(vectors[0] @ vectors[1].T, 4)[0]

    def best(**options: Any) -> Tensor:
        return retrieve(DenseScorer(folder, device="cpu", **options), queries, documents, 4)[0][0]

    torch.testing.assert_close(best(), products("q ", "p "), rtol=1e-5, atol=1e-5)
    other = best(query_prompt="passage", document_prompt="query")
    torch.testing.assert_close(other, products("p ", "q "), rtol=1e-5, atol=1e-5)
    assert float(best(similarity="cosine").max()) < 1.001
    with pytest.raises(UserError, match="query_prompt='x' is unknown: the model has 'query', 'passage'"):
        best(query_prompt="x")
    # The default prompt is the queries', and documents have none of their own.
    replace(settings, prompts={"query": "q "}).save(folder, embedder.config.hidden_size)
    torch.testing.assert_close(best(), products("q ", ""), rtol=1e-5, atol=1e-5)
    replace(settings, similarity="manhattan").save(folder, embedder.config.hidden_size)
    with pytest.raises(UserError, match=r"similarity_fn_name .*manhattan.* is not"):
        best()


def test_documents_without_a_shared_token_are_not_retrieved(model: Path) -> None:
    scorer = SparseScorer(model, device="cpu", top_k=1)
    queries, documents = ["a b", "c"], ["x y z", "a b", "d e"]
    run = to_run(retrieve(scorer, queries, documents, 3)[0], ["p", "q"], ["x", "y", "z"])
    weights = [scorer.encoder.encode(side, top_k=1) for side in (queries, documents)]
    for row, scores in enumerate(run.values()):
        shared = [name for column, name in enumerate("xyz") if weights[0][row].keys() & weights[1][column].keys()]
        assert sorted(scores) == shared


@pytest.mark.parametrize("kind", SCORERS)
def test_no_query_has_no_hit(kind: str, model: Path) -> None:
    scorer = SCORERS[kind](model, device="cpu")
    [(scores, indices)] = retrieve(scorer, [], ["a b", "c"], 2)
    assert scores.shape == indices.shape == (0, 2)


def test_candidates_without_a_vector_are_left_out(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a score of -inf, which a run cannot hold."""
    monkeypatch.setattr(scorers, "maxsim", lambda queries, documents: torch.tensor([[0.5, float("-inf")]]))
    sides = Texts("q", ("q",), ("a",)), Texts("d", ("x", "y"), ("b", "c"))
    run = score_candidates(TokenScorer(model, device="cpu"), *sides, {"q": ["x", "y"]})
    assert run == {"q": {"x": 0.5}}


def test_a_document_with_the_id_of_the_query_may_be_left_out() -> None:
    hits = (torch.tensor([[3.0, 2.0, float("-inf")]]), torch.tensor([[1, 0, 2]]))
    assert to_run(hits, ["a"], ["b", "a", "c"]) == {"a": {"a": 3.0, "b": 2.0}}
    assert to_run(hits, ["a"], ["b", "a", "c"], same_id=False) == {"a": {"b": 2.0}}
