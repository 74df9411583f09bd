"""`fastbert evaluate` from flags to figures."""

import json
from pathlib import Path

import pytest
from task_data import task_file

pytest.importorskip("tyro", reason="the command line needs tyro")
pytest.importorskip("sklearn", reason="metrics need scikit-learn")
pytest.importorskip("seqeval", reason="metrics need seqeval")

from fastbert import cli
from fastbert.tasks.metrics.glue import GLUE

FILES = {
    "classification": ("g.tsv", "text\tlabel\na\tx\nb\ty\n", "p.txt", "x\ny\n", "accuracy"),
    "regression": ("g.tsv", "text\tscore\na\t1\nb\t2\n", "p.tsv", "id\tprediction\n1\t4\n0\t2\n", "pearson"),
    "tagging": ("g.conll", "a\tB-X\nb\tO\n", "p.conll", "a\tB-X\nb\tO\n", "f1"),
    "span": (
        "g.json",
        '{"data": [{"paragraphs": [{"context": "the x", "qas": [{"id": "q", "question": "?",'
        ' "answers": [{"text": "x", "answer_start": 4}]}]}]}]}',
        "p.json",
        '{"q": "The x."}',
        "exact_match",
    ),
    "choice": ("g.jsonl", '{"prompt": "p", "endings": ["a", "b"], "label": 1}', "p.txt", "1\n", "accuracy"),
    "seq2seq": ("g.tsv", "source\ttarget\na\tone two three four\n", "p.txt", "one two three four\n", "bleu"),
}


def evaluate(*flags: object) -> int:
    return cli.main(["evaluate", *map(str, flags)])


def printed(capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    """The metrics that a command has printed."""
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {name: float(value) for name, value, *_ in lines}


@pytest.mark.parametrize("task", FILES)
def test_a_report_on_predictions_of_every_task(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    if task == "seq2seq":
        pytest.importorskip("sacrebleu")
        pytest.importorskip("rouge_score")
    gold, gold_text, predictions, text, _ = FILES[task]
    (tmp_path / gold).write_text(gold_text)
    (tmp_path / predictions).write_text(text)
    flags = ("--task", task, "--gold", tmp_path / gold, "--predictions", tmp_path / predictions)
    assert evaluate(*flags, "--report", tmp_path / "report", "--json", tmp_path / "scores.json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {tmp_path / 'report'}"
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["scores"] == pytest.approx(json.loads((tmp_path / "scores.json").read_text()), abs=1e-4)
    assert report["errors"] == (2 if task == "regression" else 0)  # correlated, but not equal
    assert (tmp_path / "report" / "errors.tsv").is_file()
    assert evaluate(*flags, "--report", tmp_path / gold) == 2
    assert "is a file; give a folder" in capsys.readouterr().err


@pytest.mark.parametrize("task", FILES)
def test_right_predictions_of_every_task(tmp_path: Path, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    if task == "seq2seq":
        pytest.importorskip("sacrebleu")
        pytest.importorskip("rouge_score")
    gold, gold_text, predictions, text, metric = FILES[task]
    (tmp_path / gold).write_text(gold_text)
    (tmp_path / predictions).write_text(text)
    flags = ("--task", task, "--gold", tmp_path / gold, "--predictions", tmp_path / predictions)
    assert evaluate(*flags, "--json", tmp_path / "scores.json") == 0
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores[metric] == pytest.approx(100)
    assert printed(capsys) == pytest.approx(scores, abs=1e-4)


def test_columns_and_probabilities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.csv").write_text("name,body,kind\nk,a,x\nl,b,y\n")
    (tmp_path / "p.jsonl").write_text('{"id": "l", "label": "x"}\n{"id": "k", "label": "x"}\n')
    flags = ("--task", "classification", "--gold", tmp_path / "g.csv", "--predictions", tmp_path / "p.jsonl")
    columns = ("--text-column", "body", "--label-column", "kind", "--id-column", "name")
    assert evaluate(*flags, *columns) == 0
    printed_lines = capsys.readouterr()
    assert printed_lines.out.splitlines() == [
        "accuracy    50.0000 (majority class 50.00, chance 50.00)",
        "f1           0.0000 (majority class 0.00)",
        "macro_f1    33.3333 (majority class 33.33)",
        "matthews     0.0000 (majority class 0.00, chance 0.00)",
    ]
    assert printed_lines.err.splitlines() == [
        "warning: g.csv: all predictions are 'x', the class of 50.0 % of the examples;",
        "  train for more steps, or with a different --lr",
        "fastbert evaluate: --report FOLDER writes scores per class, confusions and errors",
    ]
    assert evaluate(*flags) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"fastbert: error: --gold {tmp_path}/g.csv, line 1: ")
    assert "--text-column" in error

    none = FILES["span"][1].replace('"answers"', '"is_impossible": true, "answers"')
    (tmp_path / "g.json").write_text(none)
    (tmp_path / "p.json").write_text('{"q": "x"}')
    (tmp_path / "n.json").write_text('{"q": 0.5}')
    flags = ("--task", "span", "--gold", tmp_path / "g.json", "--predictions", tmp_path / "p.json")
    assert evaluate(*flags, "--no-answer", tmp_path / "n.json") == 0
    scores = printed(capsys)
    assert (scores["f1"], scores["best_f1"]) == (0, 100)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--skip-bad",), "--task is missing"),
        (("--task", "span"), "--gold is missing"),
        (("--task", "span", "--gold", "g.json"), "--predictions is missing"),
        (("--task", "span", "--gold", "g.json", "--predictions", "p.json"), "g.json: no such file"),
        (
            ("--task", "choice", "--gold", "g", "--predictions", "p", "--no-answer", "n.json"),
            "n.json: choice has no questions without an answer",
        ),
        (("--task", "poetry"), "poetry"),
        (("--glue", "nowhere"), "--glue nowhere: no such folder"),
        (("--glue", ".", "--task", "span"), "leave --task, --gold, --model, --predictions and --report out"),
        (("--glue", ".", "--json", "nowhere/x.json"), "no such folder nowhere"),
    ],
)
def test_wrong_flags_are_one_line(flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(*flags) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_both_averages_of_glue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"accuracy": {"mean": 80.0, "std": 1.0}, "f1": 90.0, "matthews": 50.0, "pearson": 70.0, "spearman": 60.0}
    for i, name in enumerate(GLUE):
        if name == "WNLI":
            continue
        path = tmp_path / f"{name}.json" if i % 2 else tmp_path / name.lower() / "results.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(metrics))
    (tmp_path / "config.json").write_text("{}")
    assert evaluate("--glue", tmp_path, "--json", tmp_path / "average.json") == 0
    assert "no official average: no result for WNLI" in capsys.readouterr().out
    scores = json.loads((tmp_path / "average.json").read_text())
    assert scores["paper average"] == pytest.approx((50 + 80 + 90 + 60 + 90 + 80 * 4) / 9)
    (tmp_path / "average.json").unlink()
    (tmp_path / "WNLI.json").write_text('{"accuracy": 65.0}')
    assert evaluate("--glue", tmp_path) == 0
    lines = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    expected = (50 + 80 + 85 + 65 + 85 + 80 + 80 + 80 + 65) / 9
    assert float(dict(lines)["official average"]) == pytest.approx(expected, abs=1e-4)


def test_a_run_that_is_not_finished_counts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "RTE"
    run.mkdir()
    (run / "results.json").write_text('{"results": {"dev.tsv": {"accuracy": {"mean": 60.0}}}, "finished": false}')
    assert evaluate("--glue", tmp_path) == 2
    assert "its run is not finished; continue it with --resume" in capsys.readouterr().err


def test_the_published_predictions(tmp_path: Path, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gold = task_file(data_dir, "squad", "dev-v1.1.rebuilt.json", tmp_path)
    predictions = task_file(data_dir, "squad", "bert_ensemble_predictions.json", tmp_path)
    assert evaluate("--task", "span", "--gold", gold, "--predictions", predictions) == 0
    printed = {name: value for name, value, *_ in map(str.split, capsys.readouterr().out.splitlines())}
    assert (printed["exact_match"], printed["f1"]) == ("86.2062", "92.1956")
