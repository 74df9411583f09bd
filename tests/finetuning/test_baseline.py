"""Linear models on frozen vectors: for each kind of task, beside the run's scores, and after an interruption."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_runs import config, wrong
from toy_tasks import choices, feelings, moods, sentiment, tagged, toy_folder

from fastbert import WordPieceTokenizer
from fastbert.cli import main
from fastbert.embeddings.embed import embed
from fastbert.errors import UserError
from fastbert.finetuning import baseline, results
from fastbert.finetuning.baseline import BASELINES, Encoder
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.models import registry
from fastbert.tasks.registry import make_task
from fastbert.tasks.settings import TaskSettings
from fastbert.training.reporter import Reporter
from fastbert.training.stopping import Stopped

# The files of each task, and the score that words of a toy vocabulary, hardly mixed by a random encoder, allow.
MAKERS: dict[str, tuple[Any, str, float]] = {
    "classification": (sentiment, "tsv", 70),
    "multilabel": (feelings, "tsv", 70),
    "regression": (moods, "tsv", 60),
    "tagging": (tagged, "conll", 90),
    "choice": (choices, "jsonl", 40),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    for task, (make, kind, _) in MAKERS.items():
        make(folder / f"{task}.{kind}", 256, seed=1)
        make(folder / f"{task}-dev.{kind}", 64, seed=2)
    return folder


def run_config(place: Path, out: Path, task: str = "classification", **flags: Any) -> FinetuneConfig:
    kind = MAKERS[task][1]
    files = {"train": place / f"{task}.{kind}", "eval": (place / f"{task}-dev.{kind}",)}
    return config(place, out, task=task, **{"baseline": True, "epochs": (0.1,), "lr": (1e-5,), **files, **flags})


@pytest.mark.parametrize("task", list(MAKERS))
def test_every_task_has_a_linear_baseline(place: Path, tmp_path: Path, task: str) -> None:
    messages: list[str] = []
    stages: dict[str, tuple[int | None, list[int]]] = {}

    def on_stage(name: str, total: int | None, unit: str = "bytes") -> Any:
        stages[f"{name}, {unit}"] = (total, [])
        return stages[f"{name}, {unit}"][1].append

    reporter = Reporter(on_message=messages.append, on_stage=on_stage)
    result = finetune(run_config(place, tmp_path / "run", task), reporter)
    assert list(stages) == ["baseline, vectors, texts", "baseline, linear model, fits"]
    for name, (total, done) in stages.items():
        assert done == sorted(done), name
        assert done[-1] == total, name
    file = f"{task}-dev.{MAKERS[task][1]}"
    stored = json.loads((result.folder / "results.json").read_text())
    scores = stored["baselines"][file]["linear"]
    assert scores[result.metric] > MAKERS[task][2]
    assert set(scores) <= set(stored["results"][file]) | {"lrap"}
    assert stored["linear_baseline"] == BASELINES[task].title
    line = f"{file}: baseline: {BASELINES[task].title}: {result.metric} {scores[result.metric]:.2f}"
    assert line in messages
    linear = baseline.read_results(result.folder)
    assert linear is not None
    assert baseline.lines(linear, result.metric) == [line]


def test_the_command_prints_it_with_a_warning(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = {
        "task": "classification", "model": place / "model", "train": place / "classification.tsv",
        "eval": place / "classification-dev.tsv", "out": tmp_path / "run", "epochs": 0.1, "lr": 1e-6, "max-length": 32,
        "device": "cpu", "dtype": "fp32",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert main(["finetune", *words, "--baseline", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "linear on frozen vectors" in lines[0] + lines[1]
    warning = " ".join(lines[next(i for i, line in enumerate(lines) if line.startswith("warning: ")) :])
    assert "is below that of a baseline, linear on frozen vectors" in " ".join(warning.split())
    # A finished run prints the same again.
    assert main(["finetune", "--out", str(tmp_path / "run"), "--resume", "--quiet"]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_an_interrupted_run_keeps_the_scores(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = finetune(run_config(place, tmp_path / "whole", seeds=2, epochs=(1.0,)))

    def stop(record: dict[str, Any], progress: float) -> None:
        if record["seed"] == 1 and record["step"] == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        finetune(run_config(place, tmp_path / "parts", seeds=2, epochs=(1.0,)), Reporter(on_step=stop))
    monkeypatch.setattr(baseline, "score_linear", lambda *_: pytest.fail("is computed once"))
    parts = finetune(FinetuneConfig(out=tmp_path / "parts", resume=True))
    stored = [json.loads((run.folder / "results.json").read_text()) for run in (whole, parts)]
    assert stored[0]["baselines"] == stored[1]["baselines"]
    assert results.read(parts.folder)


def test_vectors_are_those_of_embed(place: Path) -> None:
    model = registry.load_encoder(place / "model", dtype=torch.float32)
    tokenizer = WordPieceTokenizer.from_pretrained(place / "model")
    told: list[int] = []
    encoder = Encoder(model=model, tokenizer=tokenizer, max_length=32, on_texts=told.append)
    texts = ["the river was bright", "a dull day"]
    expected = embed(model, texts, tokenizer, pooling="mean", normalize=True).numpy()
    assert np.array_equal(encoder.texts(texts), expected)
    u, v = expected
    pair = np.concatenate((u, v, abs(u - v), u * v))
    assert np.array_equal(encoder.pairs(texts[:1], texts[1:])[0], pair)
    assert sum(told) == 4


def test_words_are_those_of_the_tagger(place: Path) -> None:
    """In the order of the rows, whatever the batches."""
    model = registry.load_encoder(place / "model", dtype=torch.float32)
    tokenizer = WordPieceTokenizer.from_pretrained(place / "model")
    task = make_task("tagging", TaskSettings(max_length=8))
    dataset = task.read(str(place / "tagging-dev.conll"))
    task.learn_labels(dataset)
    rows: Any = task.encode(dataset, tokenizer, labelled=True)
    told: list[int] = []
    vectors = Encoder(model=model, tokenizer=tokenizer, max_length=8, on_texts=told.append).words(rows)
    assert sum(told) == len(rows)
    with torch.no_grad():
        for row in (0, 5, len(rows) - 1):
            batch = rows.packed(np.array([row]))
            states = model(batch).last_hidden_state[batch.masked_positions]
            begin, end = rows.word_offsets[row : row + 2]
            torch.testing.assert_close(torch.from_numpy(vectors[begin:end]), states, atol=1e-5, rtol=1e-5)


def test_many_examples_are_sampled(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline.Baseline, "most", 100)
    result = finetune(run_config(place, tmp_path / "run"))
    description = json.loads((result.folder / "results.json").read_text())["linear_baseline"]
    assert description == ("logistic regression on the frozen model's vectors (100 of the 256 training examples)")


def test_classes_that_the_sample_lacks() -> None:
    task = make_task("classification", TaskSettings(), labels=("a", "b", "c"))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 4)).astype(np.float32)
    y = np.where(x[:, 0] > 0, 2, 0)
    outputs = BASELINES["classification"].fit(task, x, y)(x)
    assert outputs.shape == (60, 3)
    assert (outputs.argmax(axis=1) == y).mean() > 0.9
    assert (outputs[:, 1] == baseline.LEAST_LOG_PROBABILITY).all()
    assert BASELINES["classification"].fit(task, x, 0 * y)(x).argmax(axis=1).max() == 0
    labels = np.stack((y == 2, y < 0, y >= 0), axis=1).astype(np.float32)
    logits = BASELINES["multilabel"].fit(task, x, labels)(x)
    assert ((logits > 0) == (labels > 0)).mean() > 0.95
    assert (logits[:, 1] < 0).all()
    assert (logits[:, 2] > 0).all()


def test_where_there_is_none(place: Path, tmp_path: Path) -> None:
    for task in ("span", "seq2seq"):
        message = wrong(place, tmp_path, task=task, baseline=True)
        assert message.startswith(f"--baseline: there is none for --task {task}, only for classification, multilabel,")
    with pytest.raises(UserError, match="--baseline needs --eval"):
        config(place, tmp_path / "run", baseline=True, eval=())
