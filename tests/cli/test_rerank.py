"""`fastbert rerank` from flags to lines."""

import io
import json
from pathlib import Path

import pytest
from embedding import random_texts
from reranking_models import cross_encoder

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import CrossEncoder, cli

QUERY = "a b c"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("model"), "Bert", 0)


def rerank(model: Path, *flags: object) -> int:
    return cli.main(["rerank", "--model", str(model), "--query", QUERY, *map(str, flags), "--device", "cpu", "--quiet"])


def test_lines_and_records(
    tmp_path: Path, model: Path, seed: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank, score, line and text; equal texts in the order of the file; line numbers of tables and JSON lines."""
    texts = [*random_texts(seed, 12), "", "x y z", "x y z"]
    file = tmp_path / "t.txt"
    file.write_text("".join(f"{text}\n" for text in texts))
    assert rerank(model, "--texts", file, "--dtype", "fp32", "--batch-tokens", 9) == 0
    expected = CrossEncoder(model, device="cpu", dtype="fp32").rank(QUERY, texts)
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == list(range(1, 16))
    assert [row[1] for row in rows] == [f"{one.score:.5f}" for one in expected]
    assert [int(row[2]) - 1 for row in rows] == [one.index for one in expected]
    assert [" ".join(row[3:]) for row in rows] == [one.text for one in expected]

    lines = [json.dumps({"body": text}) for text in texts]
    table = tmp_path / "t.jsonl"
    table.write_text("\n\n".join(lines))
    assert rerank(model, "--texts", table, "--column", "body", "--json", "--top", 4, "--dtype", "fp32") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["rank"] for record in records] == [1, 2, 3, 4]
    assert [record["line"] for record in records] == [2 * one.index + 1 for one in expected[:4]]
    assert [record["text"] for record in records] == [one.text for one in expected[:4]]
    assert [record["score"] for record in records] == pytest.approx([one.score for one in expected[:4]], abs=1e-9)

    table = tmp_path / "t.csv"
    table.write_text('id,text\n1,"x\ny"\n2,z\n')
    assert rerank(model, "--texts", table, "--dtype", "int8") == 0
    rows = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert sorted((row[2], row[3]) for row in rows) == [("2", "x y"), ("4", "z")]

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert rerank(model, "--texts", "-") == 2
    assert capsys.readouterr().err == "fastbert: error: --texts -: holds no text; name a file that does\n"


def test_a_blank_query_is_refused(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("a\n")
    assert cli.main(["rerank", "--model", str(model), "--query", "  ", "--texts", str(tmp_path / "t.txt")]) == 2
    assert capsys.readouterr().err == "fastbert: error: --query '  ': is empty; give the words to rank texts by\n"


def test_a_model_with_several_labels_is_refused(tmp_path: Path, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("a\n")
    model = cross_encoder(tmp_path / "m", "Bert", seed, num_labels=3)
    assert rerank(model, "--texts", tmp_path / "t.txt") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"fastbert: error: --model {model}: has 3 labels, and ranking needs")
