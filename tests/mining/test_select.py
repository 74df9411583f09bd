"""Selecting negatives by vectors: by hand, against a slow selection, and beside sentence-transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.mining.options import MiningOptions
from fastbert.mining.pairs import MiningPairs, collect_pairs
from fastbert.mining.select import select_negatives
from fastbert.tasks.examples import TextGroup
from fastbert.tasks.readers.text_groups import Form, TextGroups

WIDTH = 16


def file_of(*rows: tuple[str, ...], form: Form = Form.TRIPLETS, **columns: Any) -> TextGroups:
    examples = [
        TextGroup(
            id=str(i),
            location=f"line {i + 1}",
            texts=row,
            labels=columns["labels"][i] if "labels" in columns else None,
            keys=columns["keys"][i] if "keys" in columns else None,
        )
        for i, row in enumerate(rows)
    ]
    return TextGroups("t.jsonl", tuple(examples), form, "")


def many(count: int, positives: int = 1) -> MiningPairs:
    """Anchors a0, a1, ... with `positives` positives each."""
    return collect_pairs([file_of(*((f"a{i // positives}", f"p{i}") for i in range(count)))])


def unit(seed: int, rows: int) -> Tensor:
    vectors = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors + 0.4, dim=1)


def vectors_of(pairs: MiningPairs, seed: int) -> tuple[Tensor, Tensor]:
    return unit(seed, len(pairs.queries)), unit(seed + 1, len(pairs.texts))


def slow(pairs: MiningPairs, queries: Tensor, texts: Tensor, options: MiningOptions) -> list[list[int]]:
    """The negatives, without random sampling and reranker, from the whole matrix of scores."""
    scores = (queries @ texts.T).numpy()
    taken = []
    for pair in pairs.pairs:
        of_query = scores[pair.query]
        excluded = set(pairs.queries[pair.query].excluded)
        ranked = [index for index in np.argsort(-of_query, kind="stable").tolist() if index not in excluded]
        positive = of_query[pair.positive]
        good = [
            index
            for index in ranked[options.range_min : options.last_rank(reranked=False)]
            if (options.margin is None or of_query[index] <= positive - options.margin)
            and (
                options.relative_margin is None or of_query[index] <= positive - abs(positive) * options.relative_margin
            )
            and (options.max_score is None or of_query[index] <= options.max_score)
            and (options.min_score is None or of_query[index] >= options.min_score)
        ]
        taken.append(good[: options.negatives])
    return taken


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="top"),
        pytest.param({"negatives": 3, "range_min": 4, "range_max": 20}, id="window"),
        pytest.param({"negatives": 3, "margin": 0.1}, id="margin"),
        pytest.param({"negatives": 3, "relative_margin": 0.05}, id="relative"),
        pytest.param({"negatives": 3, "max_score": 0.6, "min_score": 0.2, "margin": 0.0}, id="all"),
        pytest.param({"negatives": 50}, id="more-than-there-are"),
    ],
)
@pytest.mark.parametrize("positives", [1, 3])
def test_the_same_as_a_slow_selection(options: dict[str, Any], positives: int) -> None:
    pairs = many(42, positives)
    queries, texts = vectors_of(pairs, 3)
    chosen = MiningOptions(**options)
    selected, removed = select_negatives(pairs, queries, texts, chosen)
    expected = slow(pairs, queries, texts, chosen)
    assert [list(one.indices) for one in selected] == expected
    assert sum(map(len, expected)) > 20
    filtered = removed.margin + removed.relative_margin + removed.max_score + removed.min_score
    assert (filtered > 0) == any(name in options for name in ("margin", "relative_margin", "max_score"))
    for pair, one in zip(pairs.pairs, selected, strict=True):
        scores = texts[list(one.indices)] @ queries[pair.query]
        assert np.allclose(one.scores, scores.numpy(), atol=1e-6)
        assert np.isclose(one.positive_score, float(texts[pair.positive] @ queries[pair.query]), atol=1e-6)


class Vectors:
    """A model of sentence-transformers whose vectors are given."""

    device = torch.device("cpu")

    def __init__(self, queries: dict[str, Tensor], texts: dict[str, Tensor]) -> None:
        self.queries, self.texts = queries, texts

    def encode_query(self, texts: list[str], **options: Any) -> np.ndarray:
        return torch.stack([self.queries[text] for text in texts]).numpy()

    def encode_document(self, texts: list[str], **options: Any) -> np.ndarray:
        return torch.stack([self.texts[text] for text in texts]).numpy()

    def similarity(self, a: Any, b: Any) -> Tensor:
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> Tensor:
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"negatives": 5}, {"num_negatives": 5}),
        ({"negatives": 4, "range_min": 3, "range_max": 20}, {"num_negatives": 4, "range_min": 3, "range_max": 20}),
        ({"negatives": 4, "range_max": 90, "margin": 0.05}, {"num_negatives": 4, "absolute_margin": 0.05}),
        ({"negatives": 4, "range_max": 90, "relative_margin": 0.1}, {"num_negatives": 4, "relative_margin": 0.1}),
        (
            {"negatives": 4, "range_max": 90, "margin": 0.0, "max_score": 0.5, "min_score": 0.1},
            {"num_negatives": 4, "absolute_margin": 0.0, "max_score": 0.5, "min_score": 0.1},
        ),
    ],
    ids=["top", "window", "margin", "relative", "scores"],
)
@pytest.mark.parametrize("positives", [1, 2])
def test_beside_sentence_transformers(ours: dict[str, Any], theirs: dict[str, Any], positives: int) -> None:
    """The same negatives, scores and order. With several positives their margin is that of the worst one, ours that of
    each, so that those of the worst are compared."""
    util = pytest.importorskip("sentence_transformers.util")
    datasets = pytest.importorskip("datasets")
    pairs = many(90, positives)
    queries, texts = vectors_of(pairs, 11)
    selected, _ = select_negatives(pairs, queries, texts, MiningOptions(**ours))
    rows = {
        "anchor": [pairs.queries[pair.query].anchor for pair in pairs.pairs],
        "positive": [pairs.texts[pair.positive] for pair in pairs.pairs],
    }
    vectors = Vectors(
        {query.anchor: queries[i] for i, query in enumerate(pairs.queries)},
        {text: texts[i] for i, text in enumerate(pairs.texts)},
    )
    options = {"range_max": 90, **theirs} if "range_max" in ours else theirs
    mined = util.mine_hard_negatives(
        datasets.Dataset.from_dict(rows), vectors, output_scores=True, verbose=False, **options
    )
    expected: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for row in mined:
        expected.setdefault((row["anchor"], row["positive"]), []).append((row["negative"], row["scores"][1]))
    filtered = "margin" in ours or "relative_margin" in ours
    compared = 0
    for pair, one in zip(pairs.pairs, selected, strict=True):
        others = [selected[i] for i, other in enumerate(pairs.pairs) if other.query == pair.query]
        if filtered and one.positive_score > min(other.positive_score for other in others):
            continue
        theirs_ = expected.get((pairs.queries[pair.query].anchor, pairs.texts[pair.positive]), [])
        assert [pairs.texts[index] for index in one.indices] == [text for text, _ in theirs_]
        assert np.allclose(one.scores, [score for _, score in theirs_], atol=1e-6)
        compared += len(theirs_)
    assert compared > 50


def test_positives_of_the_same_query_are_excluded() -> None:
    """By the anchor's text and id, and by the positive's id."""
    groups = file_of(
        ("a", "p"),
        ("a", "q"),
        ("b", "r"),
        ("A", "s"),
        ("c", "p again"),
        keys=[("1", "x"), ("1", "y"), ("2", "z"), ("1", "w"), ("3", "x")],
    )
    pairs = collect_pairs([groups], ["p", "t", " ", "c"])
    assert pairs.texts == ("p", "q", "r", "s", "p again", "t", "c")
    by_anchor = {query.anchor: {pairs.texts[index] for index in query.excluded} for query in pairs.queries}
    assert by_anchor["a"] == by_anchor["A"] == {"p", "q", "s", "p again"}
    assert by_anchor["b"] == {"r"}
    assert by_anchor["c"] == {"p", "p again", "c"}
    queries, texts = vectors_of(pairs, 0)
    selected, _ = select_negatives(pairs, queries, texts, MiningOptions(negatives=7))
    for pair, one in zip(pairs.pairs, selected, strict=True):
        assert not {pairs.texts[index] for index in one.indices} & by_anchor[pairs.queries[pair.query].anchor]
        assert len(one.indices) == 7 - len(pairs.queries[pair.query].excluded)


def test_white_space_around_texts_does_not_count() -> None:
    """A positive with a trailing space is not a negative of the same query."""
    pairs = collect_pairs([file_of(("a", "p"), ("a ", " q"), ("b", "p "))], ["q", " b"])
    assert pairs.texts == ("p", " q", " b")
    assert [pair.positive for pair in pairs.pairs] == [0, 1, 0]
    assert [query.excluded for query in pairs.queries] == [(0, 1), (0, 1), (0, 2)]


def test_labelled_documents() -> None:
    groups = file_of(("a", "p", "n", "q"), ("b", "m"), form=Form.LISTS, labels=[(1.0, 0.0, 2.0), (0.0,)])
    pairs = collect_pairs([groups])
    assert [(pairs.texts[pair.positive], pair.id) for pair in pairs.pairs] == [("p", "0.0"), ("q", "0.1")]
    assert pairs.texts == ("p", "q", "n", "m")
    for form, labels in ((Form.SCORED, (0.5,)), (Form.LABELLED, (0.0,)), (Form.LISTS, None)):
        with pytest.raises(UserError, match=r"t\.jsonl: (holds pairs with scores|has no positive|holds lists without)"):
            collect_pairs([file_of(("a", "p"), form=form, labels=[labels])])


def test_random_negatives_depend_on_seed_and_number() -> None:
    pairs = many(60)
    queries, texts = vectors_of(pairs, 5)

    def mined(options: MiningOptions, of: MiningPairs = pairs, count: int = 60) -> list[tuple[int, ...]]:
        return [one.indices for one in select_negatives(of, queries[:count], texts, options)[0]]

    options = MiningOptions(negatives=4, range_min=2, range_max=30, sampling="random", seed=7)
    first = mined(options)
    assert first == mined(options)
    assert first != mined(MiningOptions(negatives=4, range_min=2, range_max=30, sampling="random", seed=8))
    window = mined(MiningOptions(negatives=28, range_min=2, range_max=30))
    assert all(set(some) <= set(all_) and len(set(some)) == 4 for some, all_ in zip(first, window, strict=True))
    # Best first, as always; and drawn from the whole window.
    assert all(
        [index for index in all_ if index in some] == list(some) for some, all_ in zip(first, window, strict=True)
    )
    positions = [all_.index(index) for some, all_ in zip(first, window, strict=True) for index in some]
    assert np.bincount(positions, minlength=28).min() >= 1
    half = MiningPairs(pairs.pairs[:30], pairs.queries[:30], pairs.texts, pairs.keys)
    assert mined(options, half, 30) == first[:30]


def test_a_reranker_removes_what_it_finds_relevant() -> None:
    pairs = many(40)
    queries, texts = vectors_of(pairs, 9)
    scores = {
        (query.anchor, text): ((i * 7 + j * 13) % 11) / 10
        for i, query in enumerate(pairs.queries)
        for j, text in enumerate(pairs.texts)
    }
    asked: list[tuple[str, str]] = []

    def rerank(texts: Any) -> Tensor:
        asked.extend(texts)
        return torch.tensor([scores[pair] for pair in texts])

    options = MiningOptions(negatives=3, range_max=39, reranker_margin=0.25)
    selected, removed = select_negatives(pairs, queries, texts, options, rerank)
    plain, _ = select_negatives(pairs, queries, texts, MiningOptions(negatives=39))
    accepted = 0
    for number, (pair, one) in enumerate(zip(pairs.pairs, selected, strict=True)):
        anchor = pairs.queries[pair.query].anchor
        limit = scores[anchor, pairs.texts[pair.positive]] - 0.25
        passing = [index for index in plain[number].indices if scores[anchor, pairs.texts[index]] <= limit + 1e-9]
        assert list(one.indices) == passing[:3]
        assert one.reranked is not None
        expected = [scores[anchor, pairs.texts[index]] for index in (pair.positive, *one.indices)]
        assert np.allclose(one.reranked, expected)
        accepted += len(one.indices)
    # Every pair is scored once, and none after a pair has enough.
    assert len(asked) == len(set(asked)) == 40 + accepted + removed.reranker
    assert removed.reranker > 10
    with pytest.raises(UserError, match="the reranker's scores are not finite"):
        select_negatives(pairs, queries, texts, options, lambda texts: torch.full((len(texts),), float("nan")))


def test_nothing_to_choose_from() -> None:
    pairs = many(1)
    with pytest.raises(UserError, match="there is no candidate for a negative beside the positives; add texts"):
        select_negatives(pairs, *vectors_of(pairs, 0), MiningOptions())
    pairs = many(4)
    queries, texts = vectors_of(pairs, 0)
    with pytest.raises(UserError, match="from rank 3 on; add texts, for example a corpus, or begin at a smaller rank"):
        select_negatives(pairs, queries, texts, MiningOptions(range_min=3))
    with pytest.raises(UserError, match=r"text_vectors \(3, 16\) must have 4 rows"):
        select_negatives(pairs, queries, texts[:3], MiningOptions())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"negatives": 0}, "negatives=0 must be a whole number"),
        ({"range_min": 8, "range_max": 10}, "range_max=10 must be at least range_min=8 plus negatives=5"),
        ({"margin": float("nan")}, "margin=nan must be a finite number"),
        ({"sampling": "best"}, "sampling='best' must be"),
        ({"min_score": 0.5, "max_score": 0.4}, "min_score=0.5 must be at most max_score=0.4"),
    ],
)
def test_wrong_options(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MiningOptions(**values)
