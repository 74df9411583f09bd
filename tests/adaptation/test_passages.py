"""Passages of documents, samples of pairs, and held-out queries."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from fastbert.adaptation.passages import (
    LONGEST,
    MOST_SENTENCES,
    MOST_WORDS,
    following_pairs,
    passages,
    sample_pairs,
    write_pairs,
)
from fastbert.errors import UserError


def numbered(document: int, sentences: int = 23) -> list[str]:
    """A document of sentences that are found nowhere else."""
    return [f"sentence {number} of the document {document}." for number in range(sentences)]


def test_a_passage_is_a_few_sentences_of_bounded_length() -> None:
    short = passages(["a b."] * 7)
    assert list(short) == [" ".join(["a b."] * MOST_SENTENCES), "a b. a b."]
    long = ["word " * 60 + "end.", "word " * 45 + "end.", "word " * (2 * MOST_WORDS) + "end.", "tail."]
    found = list(passages(long))
    assert [len(text.split()) for text in found] == [61, 46, 2 * MOST_WORDS + 1, 1]
    random = Random(0)
    for _ in range(50):
        document = [" ".join(["w"] * random.randint(1, 70)) for _ in range(random.randint(0, 30))]
        found = list(passages(document))
        assert " ".join(found) == " ".join(document)
        assert all(len(text.split()) <= max(MOST_WORDS, max(len(each.split()) for each in document)) for text in found)


def test_dropout_pairs_are_a_passage_twice_and_all_different() -> None:
    documents = [numbered(0), numbered(1), numbered(0)]
    pairs = sample_pairs(documents, 100, "dropout", 0)
    assert all(anchor == positive for anchor, positive in pairs)
    assert {anchor for anchor, _ in pairs} == {text for each in documents for text in passages(each)}
    assert len(pairs) == len({anchor for anchor, _ in pairs}) == 10


def test_neighbours_follow_each_other_in_their_document() -> None:
    documents = [numbered(number) for number in range(4)]
    following = {a: b for each in documents for a, b in zip([*passages(each)], [*passages(each)][1:], strict=False)}
    pairs = sample_pairs(documents, 100, "neighbours", 0)
    assert dict(pairs) == following
    both = sample_pairs(documents, 100, "both", 0)
    assert {anchor for anchor, _ in both} == {text for each in documents for text in passages(each)}
    same = [anchor == positive for anchor, positive in both]
    assert all(anchor == positive or following[anchor] == positive for anchor, positive in both)
    assert all(same[::2])
    assert not all(same[1::2])


def test_a_sample_does_not_depend_on_the_order_of_documents_but_on_the_seed() -> None:
    documents = [numbered(number) for number in range(30)]
    first = sample_pairs(documents, 40, "both", 0)
    assert len(first) == 40
    assert sample_pairs(documents[::-1], 40, "both", 0) == first
    other = sample_pairs(documents, 40, "both", 1)
    assert {anchor for anchor, _ in other} != {anchor for anchor, _ in first}


def test_samples_are_uniform() -> None:
    documents = [numbered(number, 5) for number in range(50)]  # a passage each
    counts = dict.fromkeys((text for each in documents for text in passages(each)), 0)
    for seed in range(400):
        for anchor, _ in sample_pairs(documents, 10, "dropout", seed):
            counts[anchor] += 1
    assert sum(counts.values()) == 4000
    assert 45 < min(counts.values()) <= max(counts.values()) < 120  # 80 expected, with a deviation of 8


def test_passages_without_content_are_left_out() -> None:
    documents = [["Yes."], ["x" * (LONGEST + 1)], numbered(0, 4)]
    assert [anchor for anchor, _ in sample_pairs(documents, 9, "dropout", 0)] == [" ".join(numbered(0, 4))]
    assert sample_pairs([["Yes."], ["Yes.", "No."]], 9, "neighbours", 0) == []


def test_no_query_is_among_the_passages_to_find() -> None:
    documents = [numbered(number, 5 * number) for number in range(1, 6)]
    pairs = following_pairs(documents, 100)
    assert len(pairs) == 0 + 1 + 1 + 2 + 2
    assert {query for query, _ in pairs}.isdisjoint(positive for _, positive in pairs)
    for query, positive in pairs:
        assert any(query + " " + positive in " ".join(each) for each in documents)
    assert following_pairs(documents, 3) == [pairs[0], pairs[2], pairs[4]]
    assert following_pairs([["One sentence alone is here."]], 5) == []


def test_pairs_are_written_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    write_pairs(path, [("Zoë “said”", "so\tit is"), ("a", "b")])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"anchor": "Zoë “said”", "positive": "so\tit is"}, {"anchor": "a", "positive": "b"}]


def test_an_unknown_kind_of_pairs_is_refused() -> None:
    with pytest.raises(UserError, match="pairs='none' must be one of dropout, neighbours, both"):
        sample_pairs([], 1, "none", 0)  # type: ignore[arg-type]
