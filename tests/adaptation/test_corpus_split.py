"""The parts of a corpus: whole documents where possible, no document in both."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from fastbert.adaptation import corpus_split
from fastbert.adaptation.corpus_split import INDEX, CorpusSplit, read_split, split_corpus
from fastbert.data.corpus import Corpus
from fastbert.errors import CorpusError, UserError


def split(tmp_path: Path, documents: list[list[str]], fraction: float = 0.05) -> CorpusSplit:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", encoding="utf-8")
    return split_corpus(Corpus.find(path, text_format="lines"), tmp_path / "text", fraction)


def documents_of(sizes: list[int]) -> list[list[str]]:
    return [[f"Sentence {i} of document {number}." for i in range(size)] for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [
        pytest.param([10] * 20, (1, 10), id="one-of-twenty"),
        pytest.param([1] * 100, (5, 5), id="single-sentences"),
        pytest.param([50, 42, 8], (1, 8), id="the-boundary-nearest"),
        pytest.param([100], (1, 5), id="one-document"),
        pytest.param([30, 170], (1, 10), id="a-long-last-document"),
        pytest.param([199, 1], (2, 10), id="a-short-last-document"),
        pytest.param([1, 1], (1, 1), id="two-sentences"),
    ],
)
def test_the_last_twentieth_is_held_out(sizes: list[int], held_out: tuple[int, int], tmp_path: Path) -> None:
    documents = documents_of(sizes)
    parts = split(tmp_path, documents)
    assert (parts.held_out.documents, parts.held_out.sentences) == held_out
    train, last = list(parts.train_documents()), list(parts.held_out_documents())
    assert [*chain(*train, *last)] == [*chain(*documents)]
    assert (len(train), len(last)) == (parts.train.documents, parts.held_out.documents)
    assert read_split(parts.folder) == parts


def test_a_document_that_repeats_another_is_in_one_part_only(tmp_path: Path) -> None:
    documents = documents_of([10] * 20)
    parts = split(tmp_path, [*documents, documents[3]])
    assert list(parts.held_out_documents()) == [documents[-1]]
    assert parts.train.documents == 19


def test_large_corpora_hold_out_a_bounded_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_split, "MOST_SENTENCES", 20)
    assert split(tmp_path, documents_of([10] * 100)).held_out.sentences == 20


def test_progress_reaches_twice_the_size(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("A sentence.\nThe next one.\n" * 100)
    seen: list[float] = []
    split_corpus(Corpus.find(path, text_format="lines"), tmp_path / "text", 0.1, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 2 * path.stat().st_size


def test_a_single_sentence_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="a single sentence"):
        split(tmp_path, [["One sentence."]])
    assert read_split(tmp_path / "text") is None
    assert not (tmp_path / "text").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "written by a newer fastbert"),
        ({"format": "other"}, "does not describe a split corpus"),
        ({"train": {"documents": 1}}, "is damaged"),
    ],
)
def test_other_files_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    parts = split(tmp_path, documents_of([5, 5]))
    path = parts.folder / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        read_split(parts.folder)
