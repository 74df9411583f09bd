"""Judgements and runs in TREC's and BEIR's files, queries and documents, and what is refused."""

from __future__ import annotations

import gzip
import json
import logging
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from fastbert.errors import UserError
from fastbert.tasks.readers.documents import find_beir, read_texts, write_beir_from_squad
from fastbert.tasks.readers.judgements import read_judgements, read_run, write_run

JUDGED = {"q1": {"d1": 1, "d2": 0}, "q2": {"d 3": 2}}


def written(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
    return path


def refuses(read: Callable[[Path], object], path: Path, problem: str) -> None:
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}{problem}")


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_layouts_of_judgements(tmp_path: Path, ending: str) -> None:
    header = "query-id\tcorpus-id\tscore\n"
    beir = "q1\td1\t1\nq1\td2\t0\n\nq2\td 3\t2\n"
    assert read_judgements(written(tmp_path / f"a.tsv{ending}", header + beir)) == JUDGED
    assert read_judgements(written(tmp_path / f"b.tsv{ending}", beir)) == JUDGED
    trec = "q1 0 d1 1.0\nq1\t0\td2\t0\r\n  q2 Q0 d3  -2 \n"
    expected = {"q1": {"d1": 1, "d2": 0}, "q2": {"d3": -2}}
    assert read_judgements(written(tmp_path / f"c.qrels{ending}", trec)) == expected


def test_repeated_judgements_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "fastbert"):
        assert read_judgements(written(tmp_path / "a", "q 0 d 1\nq 0 d 1\n")) == {"q": {"d": 1}}
    assert "1 judgements are repeated" in caplog.text


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("", "line 1: holds no judgement", id="empty"),
        pytest.param("query-id\tcorpus-id\tscore\n", "line 1: holds no judgement", id="header-alone"),
        pytest.param("q 0 d 1\nq 0 d\n", "line 2: has 3 cells; give 'query 0 document relevance'", id="cells"),
        pytest.param("q 0 d 1\nq 0 e 1.5\n", "line 2: relevance '1.5' is not a whole number", id="fraction"),
        pytest.param(f"q 0 d {10**400}\n", f"line 1: relevance '1{'0' * 39}' is not", id="huge"),
        pytest.param("q 0 d inf\n", "line 1: relevance 'inf' is not", id="infinite"),
        pytest.param("q 0 d 1\nq 0 d 2\n", "line 2: judges document 'd' of query 'q' again, as 2 after 1", id="again"),
        pytest.param("q\td\t1\n\td\t1\n", "line 2: an id is empty", id="no-id"),
        pytest.param("q\td\t1\nquery-id\td\tscore\n", "line 2: relevance 'score' is not", id="late-header"),
    ],
)
def test_wrong_judgements(tmp_path: Path, content: str, problem: str) -> None:
    refuses(read_judgements, written(tmp_path / "qrels.tsv", content), f", {problem}")


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    run = {"q1": {"b": 0.1 + 2**-24, "a": -3.5e-9}, "q2": {"a": 1e30}}
    path = tmp_path / "run.txt"
    write_run(path, run)
    assert path.read_text().splitlines()[0] == "q1 Q0 b 1 0.10000006 fastbert"
    assert read_run(path) == {query: pytest.approx(scores, rel=1e-8) for query, scores in run.items()}
    before = path.read_bytes()
    for wrong in ({"q 1": {"a": 1.0}}, {"q": {"": 1.0}}):
        with pytest.raises(UserError, match="white space, which a run cannot hold"):
            write_run(path, wrong)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param("", "line 1: holds no ranking", id="empty"),
        pytest.param("q Q0 d 1 0.5\n", "line 1: has 5 cells, not 6", id="cells"),
        pytest.param("q Q0 d 1 nan x\n", "line 1: score 'nan' is not a finite number", id="nan"),
        pytest.param("q Q0 d 1 high x\n", "line 1: score 'high' is not a finite number", id="word"),
        pytest.param("q Q0 d 1 1 x\n\nq Q0 d 2 0 x\n", "line 3: query 'q' has document 'd' twice", id="twice"),
    ],
)
def test_wrong_runs(tmp_path: Path, content: str, problem: str) -> None:
    refuses(read_run, written(tmp_path / "run.txt", content), f", {problem}")


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_layouts_of_texts(tmp_path: Path, ending: str, caplog: pytest.LogCaptureFixture) -> None:
    records = [{"_id": "a", "title": "T", "text": "x "}, {"id": 7, "text": "y"}, {"_id": "c", "title": "", "text": ""}]
    lines = "\n".join(map(json.dumps, records))
    with caplog.at_level(logging.WARNING, "fastbert"):
        texts = read_texts(written(tmp_path / f"a.jsonl{ending}", lines))
    assert (texts.ids, texts.texts) == (("a", "7", "c"), ("T x", "y", ""))
    assert "1 of 3 texts are empty" in caplog.text
    assert texts.of(["7", "a"]) == ["y", "T x"]
    for content in ("a\tx\nb\ty z\n", "id\ttext\na\tx\n\nb\ty z\n"):
        texts = read_texts(written(tmp_path / f"a.tsv{ending}", content))
        assert dict(zip(texts.ids, texts.texts, strict=True)) == {"a": "x", "b": "y z"}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        pytest.param("a.jsonl", "", ", line 1: holds no text", id="empty"),
        pytest.param("a.jsonl", "[]", ", line 1: must be a JSON object", id="list"),
        pytest.param("a.jsonl", "{", ", line 1: not JSON", id="json"),
        pytest.param("a.jsonl", '{"text": "x"}', ", line 1: has no string under '_id' ('text')", id="no-id"),
        pytest.param("a.jsonl", '{"_id": "a"}', ", line 1: 'text' must be a string, not NoneType", id="no-text"),
        pytest.param("a.jsonl", '{"_id": " ", "text": ""}', ", line 1: the id is empty", id="blank-id"),
        pytest.param("a.tsv", "a\tx\nb\ny\tz", ", line 2: has 1 cells, not 2", id="cells"),
        pytest.param("a.tsv", "a\tx\n\na\ty", ", line 3: the id 'a' is also that of line 1", id="twice"),
        pytest.param("a.tsv", "id\ttext\n", ", line 1: holds no text", id="header-alone"),
        pytest.param("a.docx", "a", ": must be a .jsonl, .tsv, .txt file", id="kind"),
    ],
)
def test_wrong_texts(tmp_path: Path, name: str, content: str, problem: str) -> None:
    refuses(read_texts, written(tmp_path / name, content), problem)


def test_beir_folders(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name in ("queries.jsonl", "corpus.jsonl.gz", "qrels/dev.tsv"):
        with pytest.raises(UserError, match="no such file"):
            find_beir(tmp_path, "dev")
        (tmp_path / name).touch()
    files = find_beir(tmp_path, "dev")
    assert [files.queries.name, files.documents.name, files.judgements.name] == [
        "queries.jsonl",
        "corpus.jsonl.gz",
        "dev.tsv",
    ]
    with pytest.raises(UserError, match=r"test.tsv: no such file \(splits: dev\)"):
        find_beir(tmp_path)


def test_questions_of_squad_become_a_folder(tmp_path: Path) -> None:
    def paragraph(context: str, *questions: str) -> dict[str, object]:
        return {"context": context, "qas": [{"id": f"id{q}", "question": q} for q in questions]}

    articles = [{"paragraphs": [paragraph("one\n", "a?", "b?"), paragraph("two", "c?"), paragraph("one\n", "d?")]}]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": articles}))
    assert write_beir_from_squad(path, tmp_path / "beir") == (4, 2)
    files = find_beir(tmp_path / "beir")
    assert read_texts(files.queries).texts == ("a?", "b?", "c?", "d?")
    assert read_texts(files.documents).texts == ("one", "two")
    assert read_judgements(files.judgements) == {
        name: {document: 1} for name, document in (("ida?", "0"), ("idb?", "0"), ("idc?", "1"), ("idd?", "0"))
    }
