"""`fastbert finetune`, `predict` and `evaluate` on every kind of task, from files to files."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import cpu_kernels
import pytest
import torch
from toy_tasks import choices, echoes, feelings, moods, questions, sentiment, tagged, toy_folder

from fastbert.cli import main
from fastbert.tasks import inference

MAKERS: dict[str, tuple[Any, str, float, dict[str, str]]] = {
    "classification": (sentiment, "tsv", 95, {}),
    "multilabel": (feelings, "tsv", 90, {"--epochs": "6"}),
    "regression": (moods, "tsv", 60, {"--epochs": "6"}),
    "tagging": (tagged, "conll", 95, {}),
    "span": (questions, "json", 80, {"--epochs": "6", "--stride": "8"}),
    "choice": (choices, "jsonl", 90, {"--epochs": "6"}),
    "seq2seq": (echoes, "tsv", 40, {"--epochs": "12", "--max-target-length": "6"}),
}
KINDS = {"tagging": ".conll", "span": ".json"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    for task, (make, kind, *_) in MAKERS.items():
        make(folder / f"{task}-train.{kind}", 224, seed=1)
        make(folder / f"{task}-dev.{kind}", 48, seed=2)
    return folder


def finetune(toy: Path, task: str, out: Path, **flags: str) -> int:
    kind = MAKERS[task][1]
    options = {
        "--task": task,
        "--model": str(toy / "model"),
        "--train": str(toy / f"{task}-train.{kind}"),
        "--eval": str(toy / f"{task}-dev.{kind}"),
        "--out": str(out),
        "--lr": "1e-2",
        "--batch-size": "16",
        "--epochs": "3",
        "--max-length": "32",
        "--device": "cpu",
        "--dtype": "fp32",
        **MAKERS[task][3],
        **flags,
    }
    return main(["finetune", *(word for pair in options.items() for word in pair if word)])


@pytest.mark.parametrize("task", list(MAKERS))
def test_every_task_trains_predicts_and_is_scored(
    task: str, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert finetune(toy, task, run) == 0
    results = json.loads((run / "results.json").read_text())
    (file, metrics), metric = next(iter(results["results"].items())), results["metric"]
    score = metrics[metric]["mean"]
    out = capsys.readouterr().out
    assert f"{file}: {metric} {score:.2f}" in out
    assert f"report:  {run / 'reports'}" in out
    assert len(out.splitlines()) <= 12
    assert max(len(line) for line in out.splitlines() if str(tmp_path) not in line) <= 80
    report = run / "reports" / file
    assert (report / "confusion.png").is_file() == (task in ("classification", "tagging"))
    assert json.loads((report / "report.json").read_text())["scores"][metric] == pytest.approx(score, abs=1e-4)
    assert score > MAKERS[task][2]
    gold = toy / file

    # The model, scored; its predictions, written by predict and by the run, scored.
    out = tmp_path / f"predictions{KINDS.get(task, '.jsonl')}"
    assert main(["predict", "--model", str(run / "model"), "--text", str(gold), "--out", str(out)]) == 0
    for flags in (
        ["--model", str(run / "model"), "--gold", str(gold)],
        ["--task", task, "--gold", str(gold), "--predictions", str(out)],
        ["--task", task, "--gold", str(gold), "--predictions", str(run / "predictions" / f"{file}.jsonl")],
    ):
        written = str(tmp_path / "report")
        assert main(["evaluate", *flags, "--json", str(tmp_path / "scores.json"), "--report", written]) == 0
        assert json.loads((tmp_path / "scores.json").read_text())[metric] == pytest.approx(score, abs=1e-4)
    # The last ones hold all details, so that the errors have the same order.
    assert (tmp_path / "report" / "errors.tsv").read_text() == (report / "errors.tsv").read_text()


def test_evaluate_and_predict_reproduce_the_scores_of_a_run(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To four digits, at every level of the processor, for every dtype of the run, and where the fastest dtype is bf16:
    a regression's correlation shows each rounding."""
    gold = toy / "regression-dev.tsv"

    def check(name: str, **flags: str) -> str:
        run, scores, predictions = tmp_path / name, tmp_path / "scores.json", tmp_path / f"{name}.jsonl"
        assert finetune(toy, "regression", run, **{"--epochs": "1", **flags}) == 0, name
        results = json.loads((run / "results.json").read_text())["results"][gold.name]
        capsys.readouterr()
        assert main(["predict", "--model", str(run / "model"), "--text", str(gold), "--out", str(predictions)]) == 0
        stderr = capsys.readouterr().err
        assert predictions.read_text() == (run / "predictions" / f"{gold.name}.jsonl").read_text(), name
        for source in (["--model", str(run / "model")], ["--task", "regression", "--predictions", str(predictions)]):
            assert main(["evaluate", *source, "--gold", str(gold), "--json", str(scores)]) == 0
            result = json.loads(scores.read_text())
            assert {metric: round(value, 4) for metric, value in result.items()} == {
                metric: value["mean"] for metric, value in results.items()
            }, name
        return stderr

    for kernel in cpu_kernels.HERE:
        with cpu_kernels.running(kernel):
            assert "scores can differ" not in check(kernel, **{"--dtype": "auto"})
    for dtype in ("fp32", "bf16"):
        assert f"{dtype} (the dtype of its run)" in check(dtype, **{"--dtype": dtype})
    monkeypatch.setattr(inference, "fastest_dtype", lambda device, **_: (torch.bfloat16, "as with BF16"))
    check("fast", **{"--dtype": "auto"})
    check("chosen", **{"--dtype": "fp32"})
    if importlib.util.find_spec("peft") is not None:
        check("lora", **{"--dtype": "bf16", "--lora": "4"})
    monkeypatch.undo()
    capsys.readouterr()
    if inference.fastest_dtype(torch.device("cpu"))[0] == torch.float32:
        assert main(["evaluate", "--model", str(tmp_path / "fast" / "model"), "--gold", str(gold)]) == 0
        assert "its run scored it in bf16 on cpu, so scores can differ" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(toy: Path) -> Path:
    assert finetune(toy, "classification", toy / "run") == 0
    return toy / "run" / "model"


def test_lines_from_standard_input(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"the day was bright\na road looked cruel\n"))
    monkeypatch.setattr(sys, "stdin", text)
    capsys.readouterr()
    assert main(["predict", "--quiet", "--model", str(trained), "--text", "-"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["label"] for line in lines] == ["good", "bad"]
    assert lines[0]["probabilities"]["good"] > 0.5


def test_a_glue_submission_grows(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = tmp_path / "test.tsv"
    test.write_text("index\tsentence\n0\tthe day was bright\n1\ta road looked cruel\n")
    sentiment(tmp_path / "train.tsv", 224, seed=1, names=("0", "1"))
    sentiment(tmp_path / "dev.tsv", 32, seed=2, names=("0", "1"))
    files = {"--train": str(tmp_path / "train.tsv"), "--eval": str(tmp_path / "dev.tsv")}
    assert finetune(toy, "classification", tmp_path / "run", **files) == 0
    out = tmp_path / "glue"
    flags = ["predict", "--model", str(tmp_path / "run" / "model"), "--text", str(test), "--out", str(out)]
    assert main([*flags, "--glue", "SST-2"]) == 0
    assert main([*flags, "--glue", "WNLI"]) == 0
    assert (out / "SST-2.tsv").read_text() == "index\tprediction\n0\t1\n1\t0\n"
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert sorted(archive.namelist()) == ["SST-2.tsv", "WNLI.tsv"]
    # The server's MNLI has other labels.
    assert main([*flags, "--glue", "MNLI-m"]) == 2
    assert "is not a label of MNLI-m on the server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["finetune", "--frozen"], "--task is missing"),
        (["finetune", "--task", "classification", "--train", "x.tsv"], "--model is missing"),
        (["finetune", "--task", "poetry"], "poetry"),
        (["finetune", "--task", "span", "--model", "nowhere", "--train", "x.json"], "--train x.json: no such file"),
        (["predict", "--text", "x.tsv"], "--model is missing"),
        (["predict", "--model", "nowhere"], "--text is missing"),
        (["evaluate", "--model", "nowhere"], "--gold is missing"),
    ],
)
def test_wrong_flags_are_one_line(
    command: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_task_that_the_folder_was_not_trained_for(
    trained: Path, toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(toy / "span-dev.json")
    assert main(["predict", "--model", str(trained), "--text", text, "--task", "span"]) == 2
    assert "was trained for classification" in capsys.readouterr().err
    assert main(["predict", "--model", str(toy / "model"), "--text", text]) == 2
    assert "name the task with --task" in capsys.readouterr().err


def test_a_file_that_exists(trained: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    flags = ["predict", "--model", str(trained), "--text", str(toy / "classification-dev.tsv"), "--out", str(out)]
    assert main(flags) == 2
    assert "replace it with --overwrite" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main([*flags, "--overwrite"]) == 0
    assert len(out.read_text().splitlines()) == 48


def test_a_kind_of_file_that_the_task_has_not(trained: Path, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = str(toy / "classification-dev.tsv")
    assert main(["predict", "--model", str(trained), "--text", text, "--out", "x.conll"]) == 2
    assert ".jsonl" in capsys.readouterr().err
