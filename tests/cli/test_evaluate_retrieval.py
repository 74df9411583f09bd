"""`fastbert evaluate` of retrieval, of reranking and of runs, from flags to figures and files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from embedding import random_texts
from reranking_models import cross_encoder, model_folder
from toys import WIDE

pytest.importorskip("tyro", reason="the command line needs tyro")

from fastbert import CrossEncoder, cli
from fastbert.cli import retrieval_task
from fastbert.tasks.metrics.retrieval import default_metrics, score_run
from fastbert.tasks.readers.documents import read_texts
from fastbert.tasks.readers.judgements import read_judgements, read_run

METRICS = list(default_metrics())
WIDTH = WIDE["hidden_size"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder, the same as TREC's files, two models, and a run of an invented program."""
    folder = tmp_path_factory.mktemp("data")
    rng = random.Random(0)
    queries = {f"q{i}": text for i, text in enumerate(random_texts(1, 9, most=5))}
    documents = {f"d{i}": text for i, text in enumerate(random_texts(2, 60, most=12))}
    judged = [(q, d, rng.randint(0, 2)) for q in queries for d in rng.sample([*documents], 5)]
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": k, "text": v}) + "\n" for k, v in queries.items()))
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": k, "title": "", "text": v}) + "\n" for k, v in documents.items())
    )
    (folder / "qrels").mkdir()
    rows = "".join(f"{q}\t{d}\t{gain}\n" for q, d, gain in judged)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    (folder / "qrels.txt").write_text("".join(f"{q} 0 {d} {gain}\n" for q, d, gain in judged))
    for name, side in (("queries.tsv", queries), ("documents.tsv", documents)):
        (folder / name).write_text("".join(f"{key}\t{text}\n" for key, text in side.items()))
    run = "".join(f"{q} Q0 {d} 1 {rng.random()} x\n" for q in queries for d in rng.sample([*documents], 20))
    (folder / "run.txt").write_text(run)
    model_folder(folder / "model", "BertForMaskedLM", 0)
    cross_encoder(folder / "ranker", "Bert", 1)
    return folder


def evaluate(*flags: object) -> int:
    return cli.main(["evaluate", *map(str, flags)])


def test_ids_for_a_run_are_checked_before_the_ranking(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = tmp_path / "spaced.tsv"
    spaced.write_text("d 1\ta b\n")
    monkeypatch.setattr(retrieval_task, "_scorer", lambda config: pytest.fail("a model was loaded"))
    flags = ("--task", "retrieval", "--model", data / "model", "--data", data, "--documents", spaced)
    assert evaluate(*flags, "--run-out", tmp_path / "run.txt", "--device", "cpu") == 2
    assert "--run-out: the document 'd 1' is empty or holds white space" in capsys.readouterr().err


def table(capsys: pytest.CaptureFixture[str]) -> dict[str, list[float]]:
    """The numbers of a table by the first word of their line."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {
        line[0] if line[0] != "width" else line[1]: [float(value) for value in line[1 + (line[0] == "width") :]]
        for line in lines
        if line and ("@" in line[0] or line[0] in ("map", "width")) and line[-1].replace(".", "").isdigit()
    }


def test_a_run_of_any_program(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figures = tmp_path / "queries.jsonl", tmp_path / "figures.json"
    flags = ("--run", data / "run.txt", "--qrels", data / "qrels.txt")
    assert evaluate(*flags, "--out", out, "--json", figures) == 0
    scores = score_run(read_run(data / "run.txt"), read_judgements(data / "qrels.txt"))
    assert table(capsys) == {name: [pytest.approx(value, abs=1e-4)] for name, value in scores.means.items()}
    assert json.loads(figures.read_text())["ndcg@10"] == pytest.approx(scores.means["ndcg@10"])
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["query"] for record in records] == list(scores.queries)
    assert [record["mrr@10"] for record in records] == pytest.approx(scores.per_query["mrr@10"].tolist(), abs=1e-6)
    assert evaluate(*flags, "--out", out) == 2
    assert "exists" in capsys.readouterr().err
    assert evaluate("--task", "retrieval", *flags, "--metrics", "map", "accuracy@3") == 0
    assert list(table(capsys)) == ["map", "accuracy@3"]


@pytest.mark.parametrize("kind", ["dense", "tokens", "sparse"])
def test_retrieval_and_its_run(tmp_path: Path, data: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The run that is written has the metrics that are printed; both layouts are the same data."""
    run, figures = tmp_path / "run.txt", tmp_path / "figures.json"
    flags = ("--task", "retrieval", "--model", data / "model", "--vectors", kind, "--device", "cpu", "--quiet")
    assert evaluate(*flags, "--data", data, "--run-out", run, "--json", figures) == 0
    expected = table(capsys)
    assert list(expected) == METRICS
    results = json.loads(figures.read_text())
    assert {name: [pytest.approx(results[name], abs=1e-4)] for name in METRICS} == expected
    assert (results["queries"], results["documents"]) == (9, 60)
    assert results["machine"]["dtype"] == "fp32"
    files = ("--queries", data / "queries.tsv", "--documents", data / "documents.tsv", "--qrels", data / "qrels.txt")
    assert evaluate(*flags, *files, "--batch-tokens", 32) == 0
    assert table(capsys) == expected
    assert evaluate("--run", run, "--qrels", data / "qrels.txt", "--quiet") == 0
    assert table(capsys) == expected


def test_reranking_after_retrieval_and_alone(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, last = tmp_path / "first.txt", tmp_path / "last.txt"
    flags = ("--model", data / "model", "--data", data, "--device", "cpu", "--quiet")
    assert evaluate("--task", "retrieval", *flags, "--top", 8, "--run-out", first) == 0
    retrieved = table(capsys)
    assert list(retrieved) == ["ndcg@8", "mrr@8", "map@8", "recall@1", "recall@8"]
    ranked = ("--rerank", data / "ranker", "--rerank-top", 5, "--run-out", last)
    assert evaluate("--task", "retrieval", *flags, "--top", 8, *ranked) == 0
    both = table(capsys)
    assert {name: values[:1] for name, values in both.items()} == retrieved
    ranker = CrossEncoder(data / "ranker", device="cpu", dtype="fp32")
    queries, documents = read_texts(data / "queries.jsonl"), read_texts(data / "corpus.jsonl")
    runs = read_run(first), read_run(last)
    for query, scores in runs[1].items():
        best = list(runs[0][query])[:5]
        order = ranker.rank(queries.of([query])[0], documents.of(best)) if queries.of([query])[0] else []
        assert set(scores) == set(best)
        assert list(scores.values()) == pytest.approx([one.score for one in order] or list(scores.values()))

    # The same candidates, ranked by the same model.
    short = tmp_path / "short.txt"
    short.write_text("".join(line for line in first.read_text().splitlines(keepends=True) if int(line.split()[3]) <= 5))
    flags = ("--task", "reranking", "--data", data, "--run", short, "--device", "cpu", "--quiet")
    assert evaluate(*flags, "--model", data / "ranker", "--metrics", "ndcg@8", "map@8") == 0
    assert {name: values[1] for name, values in table(capsys).items()} == {n: both[n][1] for n in ("ndcg@8", "map@8")}
    assert evaluate(*flags, "--model", data / "model") == 0
    alike = table(capsys)
    assert list(alike) == ["map", "mrr@10", "ndcg@10"]
    assert all(before == after for before, after in alike.values())  # the embedder's own ranking


def test_judged_documents_are_candidates(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--task", "reranking", "--data", data, "--device", "cpu", "--json", "/dev/null")
    figures = {}
    for name in ("ranker", "model"):
        assert evaluate(*flags, "--model", data / name) == 0
        figures[name] = table(capsys)
        assert list(figures[name]) == ["map", "mrr@10", "ndcg@10"]
        assert all(20 < values[0] < 100 for values in figures[name].values())
    assert figures["ranker"] != figures["model"]


def test_widths_and_their_plot(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    plot, figures = tmp_path / "widths.png", tmp_path / "figures.json"
    flags = ("--task", "retrieval", "--model", data / "model", "--data", data, "--device", "cpu", "--quiet")
    assert evaluate(*flags, "--metrics", "ndcg@10", "map@100") == 0
    whole = table(capsys)
    assert evaluate(*flags, "--metrics", "map") == 0
    assert table(capsys)["map"] == whole["map@100"]  # of as many documents
    assert evaluate(*flags, "--widths", WIDTH, 8, 2, "--plot", plot, "--json", figures) == 0
    rows = table(capsys)
    assert list(rows) == [str(WIDTH), "8", "2"]
    assert rows[str(WIDTH)][:1] == whole["ndcg@10"]
    assert rows["2"] != rows["8"]
    assert list(json.loads(figures.read_text())["widths"]["8"].values()) == pytest.approx(rows["8"], abs=1e-4)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert evaluate(*flags, "--widths", 3200) == 2
    assert f"width 3200 is more than the {WIDTH} numbers" in capsys.readouterr().err


def test_what_is_left_out_is_counted(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q0 0 d1 1\nq0 0 gone 1\nq1 0 d2 0\nnobody 0 d3 1\n")
    flags = ("--task", "retrieval", "--model", data / "model", "--data", data, "--qrels", qrels, "--device", "cpu")
    assert evaluate(*flags, "--metrics", "recall@60", "precision@60") == 0
    shown = capsys.readouterr()
    assert "recall@60       50.0000\n" in shown.out
    assert "1 query, 60 documents in " in shown.out
    for line in (
        "qrels.txt: 1 judged query has no relevant document and is left out",
        "queries.jsonl: 1 judged query has no text and is left out",
        "queries.jsonl: 7 queries have no judgement and are left out",
        "corpus.jsonl: 1 judged document is absent and cannot be found: 'gone'",
    ):
        assert line in caplog.text
    run = tmp_path / "run.txt"
    run.write_text("q0 Q0 d1 1 1 x\nq5 Q0 d1 1 1 x\n")
    assert evaluate("--run", run, "--qrels", qrels) == 0
    shown = capsys.readouterr()
    assert "recall@1      25.0000" in shown.out
    assert "run.txt: 1 query has no judgement and is left out" in caplog.text
    assert "run.txt: 1 judged query has no hit and is counted as 0" in caplog.text
    flags = ("--task", "reranking", "--model", data / "ranker", "--data", data, "--qrels", qrels, "--device", "cpu")
    assert evaluate(*flags) == 0
    assert "of 1 query all judged documents are relevant" in caplog.text
    run.write_text("q0 Q0 d1 1 1 x\nq0 Q0 lost 2 0 x\n")
    assert evaluate(*flags, "--run", run) == 0
    assert "1 candidate is absent and left out" in caplog.text


def test_mistakes(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.txt").write_text("q0 0 d1 0\n")
    (tmp_path / "other.txt").write_text("x 0 y 1\n")
    (tmp_path / "run.txt").write_text("x Q0 y 1 1 t\n")
    retrieval = ("--task", "retrieval", "--model", data / "model", "--data", data, "--device", "cpu")
    for flags, problem in (
        ((*retrieval, "--qrels", tmp_path / "none.txt"), "no query has a relevant document; judge some"),
        ((*retrieval, "--qrels", tmp_path / "other.txt"), "has a relevant document; are the ids the same?"),
        ((*retrieval, "--query-prompt", "query"), "--query-prompt query is unknown: the model has no prompts"),
        ((*retrieval, "--vectors", "sparse", "--document-prompt", "x"), "is unknown: the model has no prompts"),
        ((*retrieval, "--rerank", data / "model"), "--rerank"),
        ((*retrieval, "--top", 0), "--top 0 must be at least 1"),
        ((*retrieval, "--widths", 4, 4), "--widths 4 4: must be different numbers"),
        ((*retrieval, "--rerank", data / "ranker", "--rerank-top", 0), "--rerank-top 0 must be at least 1"),
        ((*retrieval, "--rerank-top", 4), "--rerank-top 4 is for --rerank; name a cross-encoder"),
        ((*retrieval, "--top-k", 4), "--top-k changes nothing without --vectors sparse"),
        ((*retrieval, "--queries", tmp_path / "nope.tsv"), "nope.tsv: no such file"),
        (
            ("--task", "retrieval", "--model", data / "ranker", "--data", data),
            "is a cross-encoder, which has no vectors",
        ),
        ((*retrieval, "--max-length", 4096), "--max-length 4096 is more than the"),
        (("--run", tmp_path / "run.txt", "--qrels", data / "qrels.txt"), "no query of the run has a relevant document"),
        (("--run", data / "qrels.txt", "--qrels", data / "qrels.txt"), "line 1: has 4 cells, not 6"),
        (
            ("--task", "reranking", "--model", data / "ranker", "--data", data, "--run", tmp_path / "run.txt"),
            "holds no candidate of a judged query",
        ),
    ):
        assert evaluate(*flags) == 2, flags
        error = capsys.readouterr().err.splitlines()
        assert error[-1].startswith("fastbert: error: "), flags
        assert problem in error[-1], (flags, error[-1])
