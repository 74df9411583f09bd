"""Weights of classes: scikit-learn's balanced ones, files, and losses that equal torch's, in parts of a batch too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_runs import config, wrong
from toy_tasks import feelings, sentiment, tagged, toy_folder

from fastbert import WordPieceTokenizer
from fastbert.errors import UserError
from fastbert.finetuning import start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks.class_weights import MOST, class_weights, positive_weights
from fastbert.tasks.registry import make_task
from fastbert.training.metrics import read_records

MAKERS: dict[str, tuple[Any, str]] = {
    "classification": (sentiment, "tsv"),
    "multilabel": (feelings, "tsv"),
    "tagging": (tagged, "conll"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_folder(folder / "model")
    for task, (make, kind) in MAKERS.items():
        make(folder / f"{task}.{kind}", 96, seed=1)
        make(folder / f"{task}-dev.{kind}", 24, seed=2)
    return folder


def run_config(place: Path, task: str, **flags: Any) -> FinetuneConfig:
    kind = MAKERS[task][1]
    files = {"train": place / f"{task}.{kind}", "eval": (place / f"{task}-dev.{kind}",)}
    return config(place, flags.pop("out", place / "unused"), task=task, **{**files, **flags})


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.utils.class_weight")
    classes = np.random.default_rng(0).choice(5, size=300, p=[0.6, 0.2, 0.15, 0.04, 0.01])
    weights = class_weights("balanced", "abcde", classes)
    expected = sklearn.compute_class_weight("balanced", classes=np.arange(5), y=classes)
    assert weights.dtype == np.float32
    assert weights == pytest.approx(expected)
    # A class that only held-out examples have changes nothing.
    assert class_weights("balanced", "abcdef", classes)[:5] == pytest.approx(expected)


def test_balanced_weights_of_labels_are_bounded() -> None:
    targets = np.zeros((200, 5), dtype=np.float32)
    targets[:50, 0], targets[:150, 1], targets[:2, 2], targets[:, 3] = 1, 1, 1, 1
    assert positive_weights("balanced", "abcde", targets).tolist() == pytest.approx([3, 1 / 3, MOST, 1, 1])


def test_weights_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"

    def weights(content: object) -> list[float]:
        path.write_text(json.dumps(content))
        return class_weights(str(path), ("bad", "good"), np.zeros(3, dtype=np.int64)).tolist()

    assert weights({"good": 2.5}) == [1, 2.5]
    for content, message in (
        ({"god": 2}, "has no label 'god'; did you mean 'good'"),
        ({"good": 0}, "the weight of 'good' is 0; it must be above 0"),
        ({"good": "much"}, "the weight of 'good' must be a finite number"),
        ([1, 2], "must be a JSON object of weights by label"),
    ):
        with pytest.raises(UserError, match=message):
            weights(content)
    with pytest.raises(UserError, match=r"--class-weights even: must be balanced, or a \.json file"):
        class_weights("even", "ab", np.zeros(1, dtype=np.int64))
    with pytest.raises(UserError, match=r"none\.json: no such file"):
        positive_weights(str(tmp_path / "none.json"), "ab", np.zeros((1, 2)))


@pytest.mark.parametrize("task", list(MAKERS))
def test_the_loss_is_that_of_torch_whole_and_in_parts(place: Path, task: str) -> None:
    run = run_config(place, task, class_weights="balanced", dropout=0.0)
    one = make_task(task, run.task_settings())
    dataset = one.read(str(run.train))
    one.learn_labels(dataset)
    rows = one.encode(dataset, WordPieceTokenizer.from_pretrained(place / "model"), labelled=True)
    model = start.begin(one, place / "model", run, seed=0)
    units = np.random.default_rng(0).permutation(rows.units)[:13]
    whole = rows.batch(units)
    loss = one.loss(model, whole, one.items(whole))
    loss.backward()
    gradient = model.classifier.weight.grad.clone()
    with torch.no_grad():
        outputs = one.outputs(model, whole)
    logits = torch.from_numpy(np.concatenate([np.atleast_2d(output) for output in outputs]))
    if task == "multilabel":
        targets = rows.unit_targets["labels"]
        positives = targets.sum(axis=0)
        pos_weight = torch.from_numpy((len(targets) - positives) / positives)
        expected = torch.nn.BCEWithLogitsLoss(pos_weight=pos_weight)(logits, torch.from_numpy(targets[units]))
    else:
        classes = rows.labels if task == "tagging" else rows.unit_targets["labels"]
        counts = np.bincount(classes)
        weight = torch.from_numpy(len(classes) / (len(counts) * counts)).float()
        labels = whole.inputs.labels if task == "tagging" else whole.targets["labels"]
        assert len(set(counts.tolist())) > 1
        expected = torch.nn.CrossEntropyLoss(weight=weight)(logits, labels)
    torch.testing.assert_close(loss.detach(), expected, atol=1e-6, rtol=1e-5)
    model.zero_grad()
    parts = [rows.batch(units[begin:end]) for begin, end in ((0, 1), (1, 6), (6, 13))]
    items = sum(one.items(part) for part in parts)
    losses = [one.loss(model, part, items) for part in parts]
    sum(losses).backward()
    torch.testing.assert_close(sum(losses).detach(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model.classifier.weight.grad, gradient, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("task", list(MAKERS))
def test_runs_with_weights_in_micro_batches(place: Path, tmp_path: Path, task: str) -> None:
    losses = []
    for name, size in (("whole", None), ("parts", 3)):
        flags = {"class_weights": "balanced", "epochs": (1.0,), "lr": (1e-4,), "log_every": 1, "dropout": 0.0}
        result = finetune(run_config(place, task, out=tmp_path / name, micro_batch=size, **flags))
        records = read_records(tmp_path / name / "metrics.jsonl")
        losses.append([record["loss"] for record in records if record["split"] == "train"])
        assert "class_weights" not in json.loads((result.model / "fastbert_task.json").read_text())["settings"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_a_batch_of_light_examples_is_a_mean_too(place: Path, tmp_path: Path) -> None:
    """The sum of its weights is below 1."""
    (tmp_path / "weights.json").write_text('{"good": 0.001, "bad": 0.001}')
    losses = []
    for name, weights in (("plain", None), ("light", str(tmp_path / "weights.json"))):
        flags = {"class_weights": weights, "epochs": (0.5,), "lr": (1e-4,), "log_every": 1, "dropout": 0.0}
        finetune(run_config(place, "classification", out=tmp_path / name, **flags))
        records = read_records(tmp_path / name / "metrics.jsonl")
        losses.append([record["loss"] for record in records if record["split"] == "train"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_weights_where_they_do_not_apply(place: Path, tmp_path: Path) -> None:
    message = wrong(place, tmp_path, task="regression", class_weights="balanced")
    tasks = "classification, multilabel or tagging"
    assert message == f"--class-weights balanced changes nothing without --task {tasks}; leave it out"
    with pytest.raises(UserError, match="--class-weights and --teacher exclude each other"):
        config(place, tmp_path / "run", class_weights="balanced", teacher="x")
