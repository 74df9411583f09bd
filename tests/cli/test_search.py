"""`fastbert search` from flags to lines."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path

import pytest
from embedding import random_texts, saved
from reranking_models import cross_encoder

from fastbert import cli
from fastbert.cli import search as command
from fastbert.cli.flags import parse
from fastbert.search import Index

TEXTS = [text for text in random_texts(5, 60, most=12) if text]
QUERY = "a b c"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"), seed=0)


def search(what: str, *flags: object) -> int:
    return cli.main(["search", what, *map(str, flags), "--device", "cpu", "--dtype", "fp32", "--quiet"])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("texts") / "texts.jsonl.gz"
    lines = [json.dumps({"_id": f"doc{number}", "body": text}) for number, text in enumerate(TEXTS)]
    with gzip.open(file, "wt", encoding="utf-8") as opened:
        opened.write("\n".join([*lines, '{"_id": "none", "body": " "}']) + "\n")
    return file


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory, model: Path, texts: Path) -> Path:
    out = tmp_path_factory.mktemp("index") / "index"
    assert search("index", "--model", model, "--text", texts, "--column", "body", "--out", out, "--store", "int8") == 0
    return out


def test_prints_the_columns_and_the_size(
    texts: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "index"
    assert search("index", "--model", model, "--text", texts, "--column", "body", "--out", out, "--store", "int8") == 0
    printed = capsys.readouterr().out
    assert f"{len(TEXTS)} texts (texts from column 'body', ids from '_id', 1 empty text left out)" in printed
    assert "32 numbers per vector in int8" in printed


def test_prints_rank_score_id_and_text(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search("query", "--index", index, "--top", 4, QUERY) == 0
    lines = capsys.readouterr().out.splitlines()
    with Index.open(index, device="cpu", dtype="fp32") as opened:
        hits = opened.query(QUERY, top=4)
    expected = [[str(hit.rank), f"{hit.score:.5f}", hit.id, *hit.text.split()] for hit in hits]
    assert [line.split() for line in lines] == expected
    assert [hit.id for hit in hits] == [f"doc{hit.index}" for hit in hits]


def test_json_of_a_file_of_queries(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "queries.tsv").write_text(f"id\ttext\n1\t{QUERY}\n2\t \n3\tx y\n")
    assert search("query", "--index", index, "--top", 3, "--json", "--queries", tmp_path / "queries.tsv") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["query"], record["rank"]) for record in records] == [(1, 1), (1, 2), (1, 3), (3, 1), (3, 2), (3, 3)]
    with Index.open(index, device="cpu", dtype="fp32") as opened:
        hits = [hit for hits in opened.query([QUERY, "x y"], top=3) for hit in hits]
    assert [(record["score"], record["id"], record["text"]) for record in records] == [
        (pytest.approx(hit.score, rel=1e-8), hit.id, hit.text) for hit in hits
    ]


def test_several_queries_are_titles(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search("query", QUERY, "x y", "--index", index, "--top", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[3], len(lines)) == (QUERY, "x y", 6)


def test_a_reranker_ranks_the_candidates(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranker = cross_encoder(tmp_path / "ranker", "Bert", 3)
    flags = ("--index", index, "--rerank", ranker, "--candidates", 15, "--top", 2, "--json", QUERY)
    assert search("query", *flags) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["rank"] for record in records] == [1, 2]
    assert records[0]["score"] >= records[1]["score"]


def test_another_model_is_one_line(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = saved(tmp_path / "other", seed=1)
    assert search("query", "--index", index, "--model", other, QUERY) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"fastbert: error: {index}: was made by another model (SHA-256 " in error


def test_ids_are_line_numbers_of_plain_text(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a b\n\nc d\n")
    assert search("index", "--model", model, "--text", file, "--out", tmp_path / "index") == 0
    assert "(texts from lines, ids from line numbers, 1 empty text left out)" in capsys.readouterr().out
    assert search("query", "--index", tmp_path / "index", "--json", "c d") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["id"], record["text"]) for record in records] == [("3", "c d"), ("1", "a b")]


def test_an_id_must_be_a_string_or_a_number(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"id": 7, "text": "a"}\n{"id": null, "text": "b"}\n')
    assert search("index", "--model", model, "--text", file, "--out", tmp_path / "index") == 2
    assert "line 2: the id in 'id' is None" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
def test_texts_of_parquet_and_arrow(
    tmp_path: Path, model: Path, ending: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"body": ["a b", None, " ", "c d"], "doi": [7, 8, 9, 10]})
    file, out = tmp_path / f"texts{ending}", tmp_path / "index"
    if ending == ".parquet":
        parquet.write_table(table, file, row_group_size=3)
    else:
        with pyarrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
    flags = ("--model", model, "--text", file, "--column", "body", "--out", out)
    assert search("index", *flags, "--id-column", "doi") == 0
    assert "(texts from column 'body', ids from 'doi', 2 empty texts left out)" in capsys.readouterr().out
    assert search("query", "--index", out, "--json", "c d") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["id"], record["text"]) for record in records] == [("10", "c d"), ("7", "a b")]
    assert search("index", *flags, "--overwrite") == 0
    assert "ids from row numbers" in capsys.readouterr().out
    assert search("index", *flags, "--overwrite", "--id-column", "x") == 2
    assert "no column 'x' (columns: body, doi); name the column that holds the ids" in capsys.readouterr().err
    file.write_bytes(file.read_bytes()[:-20])
    assert search("index", *flags, "--overwrite") == 2
    assert f"not an intact {ending} file" in capsys.readouterr().err


def test_mistakes_are_one_line(index: Path, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranker = cross_encoder(tmp_path / "ranker", "Bert", 3)
    blank, folder = tmp_path / "blank.jsonl", tmp_path / "folder"
    blank.write_text('{"id": " ", "text": "a"}\n')
    folder.mkdir()
    texts = folder / "texts.jsonl"
    texts.write_text('{"text": "a"}\n')
    new = ("--text", blank, "--out", tmp_path / "new")
    for flags, problem in (
        (("index", "--model", ranker, *new), "is a cross-encoder, which has no vectors; name an embedder"),
        (("index", "--model", model, *new), "line 1: the id in 'id' is ' '"),
        (("index", "--model", model, "--text", texts, "--out", folder), "holds texts.jsonl, which an index would"),
        (("index", "--model", model, *new, "--store", "faiss", "--no-rescore"), "a flat FAISS index has no copy"),
        (("query", "--index", index, "--probes", 8, QUERY), "--probes 8 changes nothing for an index without FAISS"),
    ):
        assert search(str(flags[0]), *flags[1:]) == 2, flags
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("fastbert: error: ")
        assert problem in error
    assert texts.read_text() == '{"text": "a"}\n'


@pytest.mark.parametrize("what", command.SUBCOMMANDS)
def test_help_and_examples(what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["search", what, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Data:" in printed
    assert max(map(len, printed.splitlines())) <= 80
    for example in command.EXAMPLES[what]:
        words = shlex.split(example)
        assert words[:3] == ["fastbert", "search", what]
        parse(command.subcommand(what), f"search {what}", words[3:])
    assert cli.main(["search"]) == 2
    assert f"  {what} " in capsys.readouterr().err
