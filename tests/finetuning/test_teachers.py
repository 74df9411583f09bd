"""Students that learn from a teacher, adapters and deltas of whole runs."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_tasks import VOCABULARY, choices, feelings, moods, questions, sentiment, tagged, toy_folder

from fastbert import BertForSequenceClassification, WordPieceTokenizer
from fastbert.checkpoints.delta.files import restore_delta
from fastbert.distillation.finetuning import DistillationLoss, load_teacher
from fastbert.errors import UserError
from fastbert.finetuning import start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks.registry import make_task
from fastbert.tasks.rows import share_out

MAKERS: dict[str, Any] = {
    "classification": (sentiment, "tsv"),
    "multilabel": (feelings, "tsv"),
    "regression": (moods, "tsv"),
    "tagging": (tagged, "conll"),
    "span": (questions, "json"),
    "choice": (choices, "jsonl"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model", num_hidden_layers=4)
    for task, (make, kind) in MAKERS.items():
        make(folder / f"{task}.{kind}", 224, seed=1)
        make(folder / f"{task}-dev.{kind}", 48, seed=2)
    return folder


def config(files: Path, out: Path, task: str = "classification", **flags: Any) -> FinetuneConfig:
    kind = MAKERS[task][1]
    chosen = {
        "task": task,
        "model": str(files / "model"),
        "train": files / f"{task}.{kind}",
        "eval": (files / f"{task}-dev.{kind}",),
        "out": out,
        "epochs": (3.0,),
        "lr": (1e-2,),
        "batch_size": (16,),
        "max_length": 32,
        "device": "cpu",
        "dtype": "fp32",
    }
    if task == "span":
        chosen["stride"] = 8
    return FinetuneConfig(**{**chosen, **flags})


@pytest.fixture(scope="module")
def teacher(files: Path) -> Path:
    result = finetune(config(files, files / "teacher"))
    assert result.scores["classification-dev.tsv"]["accuracy"]["mean"] > 90
    return result.model


@pytest.mark.parametrize("distill", ["distilbert", "tinybert"])
def test_a_student_learns_from_its_teacher(files: Path, teacher: Path, tmp_path: Path, distill: str) -> None:
    flags = {"model": str(teacher), "teacher": str(teacher), "student_layers": 2, "distill": distill}
    result = finetune(config(files, tmp_path / "run", **flags, soft_weight=1.0))
    assert result.scores["classification-dev.tsv"]["accuracy"]["mean"] > 90
    student = BertForSequenceClassification.from_pretrained(result.model)
    assert student.config.num_hidden_layers == 2
    assert not student.new_weights
    names = json.loads((result.model / "config.json").read_text())
    assert names["id2label"] == {"0": "bad", "1": "good"}


@pytest.mark.parametrize("task", list(MAKERS))
def test_a_pupil_that_is_its_teacher_learns_nothing_new(task: str, files: Path) -> None:
    """The soft part of the loss is zero where both say the same, and its gradient too, for every kind of task."""
    run = config(files, files / "unused", task, dropout=0.0, soft_weight=1.0)
    one = make_task(task, run.task_settings())
    dataset = one.read(str(run.train))
    one.learn_labels(dataset)
    rows = one.encode(dataset, WordPieceTokenizer.from_pretrained(files / "model"), labelled=True)
    student = start.begin(one, files / "model", run, seed=0)
    teacher = start.begin(one, files / "model", run, seed=0).eval()
    batch = rows.batch(torch.arange(8).numpy())
    for distill in ("distilbert", "tinybert"):
        distillation = DistillationLoss(one, student, teacher, replace(run, distill=distill))
        loss = distillation(student, batch, one.items(batch))
        assert abs(loss.item()) < 1e-5
        loss.backward()
        assert max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None) < 1e-3
        student.zero_grad()
    # The labels' part is the task's own loss.
    plain = one.loss(student, batch, one.items(batch))
    distillation = DistillationLoss(one, student, teacher, replace(run, soft_weight=0.0))
    torch.testing.assert_close(distillation(student, batch, one.items(batch)), plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", list(MAKERS))
def test_parts_of_a_batch_are_its_whole(task: str, files: Path) -> None:
    run = config(files, files / "unused", task, dropout=0.0)
    one = make_task(task, run.task_settings())
    dataset = one.read(str(run.train))
    one.learn_labels(dataset)
    rows = one.encode(dataset, WordPieceTokenizer.from_pretrained(files / "model"), labelled=True)
    student, teacher = (start.begin(one, files / "model", run, seed=seed).eval() for seed in (0, 1))
    losses = [
        DistillationLoss(one, student, teacher, replace(run, distill=kind)) for kind in ("distilbert", "tinybert")
    ]
    whole = rows.batch(torch.arange(7).numpy())
    items = one.items(whole)
    parts = share_out([rows.batch(torch.arange(a, b).numpy()) for a, b in ((0, 3), (3, 7))])
    for loss in (one.loss, lambda model, batch, items: one.forward(model, batch, items).loss, *losses):
        total = sum(loss(student, part, items) for part in parts)
        torch.testing.assert_close(total, loss(student, whole, items), atol=1e-5, rtol=1e-5)


def test_teachers_that_do_not_fit(files: Path, teacher: Path, tmp_path: Path) -> None:
    words = WordPieceTokenizer.from_pretrained(files / "model")
    task = make_task("classification", config(files, tmp_path).task_settings(), labels=("no", "yes"))
    with pytest.raises(UserError, match="has the labels bad, good; the training set has no, yes"):
        load_teacher(task, teacher, words)
    task = make_task("classification", config(files, tmp_path).task_settings(), labels=("bad", "good"))
    other_words = WordPieceTokenizer(list(VOCABULARY[:5]) + list(VOCABULARY[:4:-1]), do_lower_case=True)
    with pytest.raises(UserError, match="has a different vocabulary than --model"):
        load_teacher(task, teacher, other_words)
    with pytest.raises(UserError, match="is not trained for classification"):
        load_teacher(task, files / "model", words)
    other = make_task("seq2seq", config(files, tmp_path).task_settings())
    with pytest.raises(UserError, match="not --task seq2seq"):
        load_teacher(other, teacher, words)


def test_a_students_run_continues_bit_for_bit(files: Path, teacher: Path, tmp_path: Path) -> None:
    from fastbert.training.reporter import Reporter
    from fastbert.training.stopping import Stopped

    flags = {"model": str(teacher), "teacher": str(teacher), "student_layers": 2, "distill": "tinybert"}
    whole = finetune(config(files, tmp_path / "whole", **flags))

    def stop(record: dict[str, Any], progress: float) -> None:
        if record["step"] == 20:
            import signal

            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Stopped):
        finetune(config(files, tmp_path / "parts", **flags), Reporter(on_step=stop))
    parts = finetune(FinetuneConfig(out=tmp_path / "parts", resume=True))
    assert (parts.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()


def test_lora_trains_a_fraction_and_leaves_adapter_and_model(files: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    result = finetune(config(files, tmp_path / "run", lora=4, epochs=(6.0,)))
    assert result.scores["classification-dev.tsv"]["accuracy"]["mean"] > 60
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    merged = BertForSequenceClassification.from_pretrained(result.model)
    base = BertForSequenceClassification.from_pretrained(files / "model")
    changed = {
        name
        for name, tensor in merged.state_dict().items()
        if not torch.equal(tensor, base.state_dict()[name]) and "classifier" not in name
    }
    assert changed
    assert all(name.endswith(("query.weight", "value.weight")) for name in changed)
    gold = [line.split("\t")[0] for line in (files / "classification-dev.tsv").read_text().splitlines()[1:]]
    lines = (tmp_path / "run" / "predictions" / "classification-dev.tsv.jsonl").read_text().splitlines()
    right = sum(json.loads(line)["label"] == label for line, label in zip(lines, gold, strict=True))
    assert 100 * right / 48 == pytest.approx(result.scores["classification-dev.tsv"]["accuracy"]["mean"], abs=0.01)


def test_a_package_that_is_missing_is_named_before_anything_is_trained(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(UserError, match="needs the package seqeval: `pip install seqeval`"):
        finetune(config(files, tmp_path / "run", "tagging"))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match="adapters need the package peft: `pip install peft`"):
        finetune(config(files, tmp_path / "run", lora=4))
    assert not (tmp_path / "run").exists()


def test_the_extra_holds_what_its_errors_name() -> None:
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = {line.partition(">")[0] for line in extras["optional-dependencies"]["tasks"]}
    assert names >= {"scikit-learn", "scipy", "seqeval", "sacrebleu", "rouge-score", "peft"}


def test_a_run_stores_what_changed(files: Path, tmp_path: Path) -> None:
    result = finetune(config(files, tmp_path / "run", frozen=True, store_delta=True))
    delta = tmp_path / "run" / "model.delta"
    assert delta.stat().st_size < 0.5 * (result.model / "model.safetensors").stat().st_size
    restore_delta(delta, files / "model", tmp_path / "back")
    for name in ("model.safetensors", "config.json", "fastbert_task.json"):
        assert (tmp_path / "back" / name).read_bytes() == (result.model / name).read_bytes(), name
