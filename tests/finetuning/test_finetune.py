"""Whole fine-tuning runs on toy tasks: what they learn, and what they leave."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from finetune_runs import config, same, weights, wrong
from toy_tasks import echoes, sentiment

from fastbert import BertConfig, BertForSequenceClassification
from fastbert.errors import UserError
from fastbert.finetuning import start
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.registry import make_task
from fastbert.tasks.rows import Rows
from fastbert.tasks.settings import TaskSettings
from fastbert.training.metrics import read_records
from fastbert.training.reporter import Reporter


def test_a_run_learns_and_leaves_its_files(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run"))
    assert result.scores["dev.tsv"]["accuracy"]["mean"] > 95
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()}
    files = {"config.json", "loss.png", "metrics.jsonl", "results.json", "vocab.txt"}
    assert names == files | {"model", "predictions", "reports", "tokenizer"}
    assert (run / "tokenizer" / "vocab.txt").read_bytes() == (run / "vocab.txt").read_bytes()
    configuration = json.loads((run / "config.json").read_text())["finetune"]
    assert FinetuneConfig.from_dict(configuration) == config(place, run)
    stored = json.loads((run / "results.json").read_text())
    assert stored["results"]["dev.tsv"]["accuracy"] == result.scores["dev.tsv"]["accuracy"]
    assert stored["finished"] is True
    assert stored["results"]["dev.tsv"]["accuracy"]["std"] is None  # of one seed
    assert stored["best"] == {"lr": 1e-2, "batch_size": 16, "epochs": 3.0, "planned_epochs": 3.0}
    assert stored["model"] == {**stored["best"], "seed": 0}
    assert stored["baselines"]["dev.tsv"]["chance"]["accuracy"] == 50
    assert 50 <= stored["baselines"]["dev.tsv"]["majority"]["accuracy"] < 75
    report = json.loads((run / "reports" / "dev.tsv" / "report.json").read_text())
    assert report["scores"] == {name: values["mean"] for name, values in stored["results"]["dev.tsv"].items()}
    assert report["baselines"] == stored["baselines"]["dev.tsv"]
    assert report["errors"] == len((run / "reports" / "dev.tsv" / "errors.tsv").read_text().splitlines()) - 1
    lines = read_records(run / "metrics.jsonl")
    assert [line["step"] for line in lines if line["split"] == "train"] == [1, 10, 20, 30, 36]
    assert [line["step"] for line in lines if line["split"] == "validation"] == [12, 24, 36]
    predictions = [json.loads(line) for line in (run / "predictions" / "dev.tsv.jsonl").read_text().splitlines()]
    assert len(predictions) == 64
    assert predictions[0]["label"] in ("bad", "good")
    assert sum(predictions[0]["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)


def test_every_evaluation_reads_its_file_once(place: Path, tmp_path: Path) -> None:
    """The predictions and the report come from the best model's own evaluation."""
    calls: list[tuple[str, float]] = []
    finetune(
        config(place, tmp_path / "run", epochs=(2.0,)),
        Reporter(on_prediction=lambda file, rows, done: calls.append((file, done))),
    )
    assert [name for name, done in calls if done == 1.0] == ["dev.tsv"] * 2


def test_the_model_loads_in_transformers_with_its_labels(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run"))
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "run" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert model.config.id2label == {0: "bad", 1: "good"}
    text = "the river was bright and they found a house"
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits
    assert int(logits.argmax()) == 1


def test_regression(place: Path, tmp_path: Path) -> None:
    flags = {"task": "regression", "train": place / "pairs.tsv", "eval": (place / "pairs-dev.tsv",), "epochs": (8.0,)}
    result = finetune(config(place, tmp_path / "run", **flags))
    assert result.metric == "spearman"
    assert result.scores["pairs-dev.tsv"]["pearson"]["mean"] > 80
    model = transformers.AutoModelForSequenceClassification.from_pretrained(result.model)
    assert model.config.num_labels == 1
    assert model.config.problem_type == "regression"


def test_a_new_regression_head_starts_at_the_mean_of_the_labels() -> None:
    model: Any = BertForSequenceClassification(
        BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=1)
    )
    task, rows = make_task("regression"), cast("Rows", SimpleNamespace(unit_targets={"labels": np.array([1.0, 4.0])}))
    task.start_head(model, rows)  # of a trained head
    assert model.classifier.bias.item() == 0
    model.new_weights = ["classifier.bias", "classifier.weight"]
    task.start_head(model, rows)
    assert model.classifier.bias.item() == 2.5


def test_seeds_have_mean_and_deviation(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run", seeds=3, epochs=(0.5,), lr=(1e-3,)))
    values = [one.value for one in result.trials]
    accuracy = result.scores["dev.tsv"]["accuracy"]
    assert [one.trial.seed for one in result.trials] == [0, 1, 2]
    assert len(set(values)) > 1
    assert accuracy["per_seed"] == pytest.approx(values, abs=1e-4)
    mean = sum(values) / 3  # type: ignore[arg-type]
    assert accuracy["mean"] == pytest.approx(mean, abs=1e-3)
    assert accuracy["std"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5, abs=1e-3)  # type: ignore[operator]


def test_epochs_are_those_that_were_run(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run", steps=9, seeds=2))
    assert [one.epochs for one in result.trials] == [0.75, 0.75]
    stored = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (stored["best"]["epochs"], stored["best"]["planned_epochs"]) == (0.75, 3.0)
    assert (stored["grid"][0]["epochs"], stored["model"]["epochs"]) == (0.75, 0.75)
    # The score never improves: the second evaluation ends the run.
    stopped = finetune(config(place, tmp_path / "stopped", lr=(1e-9,), early_stopping=1))
    assert stopped.trials[0].epochs == 2.0


def test_a_grid_finds_its_best_point(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run", lr=(1e-7, 1e-2), epochs=(2.0,)))
    assert result.best.lr == 1e-2
    assert json.loads((tmp_path / "run" / "results.json").read_text())["model"]["lr"] == 1e-2
    assert len(json.loads((tmp_path / "run" / "results.json").read_text())["grid"]) == 2
    # The model that is kept is the best trial's, and so is the report.
    report = json.loads((tmp_path / "run" / "reports" / "dev.tsv" / "report.json").read_text())
    assert report["scores"]["accuracy"] == result.scores["dev.tsv"]["accuracy"]["mean"]
    predictions = (tmp_path / "run" / "predictions" / "dev.tsv.jsonl").read_text().splitlines()
    gold = [line.split("\t")[0] for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    right = sum(json.loads(line)["label"] == label for line, label in zip(predictions, gold, strict=True))
    assert 100 * right / 64 == pytest.approx(result.scores["dev.tsv"]["accuracy"]["mean"], abs=1e-3)


def test_several_files_to_evaluate_on(place: Path, tmp_path: Path) -> None:
    files = (place / "dev.tsv", place / "other.tsv")
    result = finetune(config(place, tmp_path / "run", eval=files, epochs=(1.0,)))
    assert set(result.scores) == {"dev.tsv", "other.tsv"}
    assert {path.name for path in (tmp_path / "run" / "predictions").iterdir()} == {
        "dev.tsv.jsonl",
        "other.tsv.jsonl",
    }


def test_what_a_file_lacks_is_logged_once(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    header, *lines = (place / "dev.tsv").read_text().splitlines()
    one = tmp_path / "one.tsv"
    one.write_text("\n".join([header, *[line for line in lines if "good" in line.split("\t")][:3]]) + "\n")
    finetune(config(place, tmp_path / "run", eval=(place / "dev.tsv", one)))
    assert sum("1 class has no example: bad" in message for message in caplog.messages) == 1


def test_files_of_one_name_are_told_apart(place: Path, tmp_path: Path) -> None:
    files = []
    for name, labels in (("a", ("bad", "good")), ("b", ("good", "bad"))):
        (tmp_path / name / "x").mkdir(parents=True)
        files.append(sentiment(tmp_path / name / "x" / "dev.tsv", 40, seed=2, names=labels))
    result = finetune(config(place, tmp_path / "run", eval=tuple(files)))
    right, wrong_way_round = (result.scores[f"{name}-x-dev.tsv"]["accuracy"]["mean"] for name in "ab")
    assert right > 90
    assert right + wrong_way_round == pytest.approx(100)
    assert result.trials[0].value == pytest.approx(right, abs=1e-3)
    assert "is given twice" in wrong(place, tmp_path / "other", eval=(files[0], files[0]))


def test_predictions_that_are_all_the_same_are_the_worst(place: Path, tmp_path: Path) -> None:
    flags = {"task": "regression", "train": place / "pairs.tsv", "eval": (place / "pairs-dev.tsv",), "epochs": (0.5,)}
    result = finetune(config(place, tmp_path / "run", lr=(30.0, 1e-2), warmup=0.0, max_grad_norm=1e9, **flags))
    assert result.best_trial.lr == 1e-2
    json.loads((tmp_path / "run" / "results.json").read_text(), parse_constant=pytest.fail)


def test_labels_that_are_one_number_have_one_order() -> None:
    task = make_task("classification", TaskSettings())
    spelled = ("1", "01", "10", "2")
    task.learn_labels(
        Dataset("x", tuple(TextExample(id=str(i), location="", text="a", label=name) for i, name in enumerate(spelled)))
    )
    assert task.labels == ("01", "1", "2", "10")


def test_without_a_file_to_evaluate_on_the_last_model_is_kept(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run", eval=(), epochs=(1.0,)))
    assert result.scores == {}
    assert result.trials[0].best_step == 12
    assert (result.model / "model.safetensors").exists()


def test_examples_that_are_held_out(place: Path, tmp_path: Path) -> None:
    result = finetune(config(place, tmp_path / "run", eval=(), validation_fraction=0.25, epochs=(6.0,)))
    assert result.scores["held-out"]["accuracy"]["mean"] > 80
    lines = (tmp_path / "run" / "predictions" / "held-out.jsonl").read_text().splitlines()
    held = [int(json.loads(line)["id"]) for line in lines]
    assert len(set(held)) == 48
    assert held == sorted(held)
    again = finetune(config(place, tmp_path / "again", eval=(), validation_fraction=0.25, seed=5, epochs=(0.1,)))
    lines = (again.folder / "predictions" / "held-out.jsonl").read_text().splitlines()
    assert [int(json.loads(line)["id"]) for line in lines] == held


def test_a_frozen_encoder_stays_bit_for_bit(place: Path, tmp_path: Path) -> None:
    finetune(config(place, tmp_path / "run", frozen=True, epochs=(1.0,)))
    before, after = weights(place / "model"), weights(tmp_path / "run" / "model")
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before.get(name[5:], tensor + 1))}
    assert changed == {
        "classifier.weight",
        "classifier.bias",
        "bert.pooler.dense.weight",
        "bert.pooler.dense.bias",
    }


def test_micro_batches_change_nothing_but_rounding(place: Path, tmp_path: Path) -> None:
    losses = []
    for name, size in (("whole", None), ("parts", 5)):
        finetune(config(place, tmp_path / name, micro_batch=size, epochs=(1.0,), lr=(1e-4,), log_every=1, dropout=0.0))
        losses.append([x["loss"] for x in read_records(tmp_path / name / "metrics.jsonl") if x["split"] == "train"])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("flags", [{"layer_decay": 0.8}, {"gradual_unfreezing": True}, {"reinit_layers": 1}])
def test_recipes_learn_too(place: Path, tmp_path: Path, flags: dict[str, Any]) -> None:
    result = finetune(config(place, tmp_path / "run", epochs=(6.0,), schedule="slanted-triangular", **flags))
    assert result.scores["dev.tsv"]["accuracy"]["mean"] > 90


def test_early_stopping_ends_a_run_that_no_longer_improves(place: Path, tmp_path: Path) -> None:
    flags = {"epochs": (50.0,), "eval_every": 12, "early_stopping": 2, "schedule": "constant"}
    result = finetune(config(place, tmp_path / "run", **flags))
    assert result.trials[0].steps < 600
    assert result.trials[0].steps - result.trials[0].best_step == 24


def test_the_same_seed_gives_the_same_bits(place: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    first = finetune(config(place, tmp_path / "first", epochs=(1.0,)))
    torch.manual_seed(2)
    second = finetune(config(place, tmp_path / "second", epochs=(1.0,)))
    assert same(weights(first.model), weights(second.model))


def test_a_head_for_the_same_labels_is_kept(place: Path, tmp_path: Path) -> None:
    first = finetune(config(place, tmp_path / "first"))
    again = config(place, tmp_path / "second", model=str(first.model), lr=(1e-9,), epochs=(0.1,))
    assert finetune(again).scores["dev.tsv"]["accuracy"]["mean"] > 95
    sentiment(tmp_path / "other.tsv", 96, seed=1, names=("no", "yes"))
    other = config(place, tmp_path / "third", model=str(first.model), train=tmp_path / "other.tsv", eval=())
    messages: list[str] = []
    finetune(replace(other, epochs=(0.2,)), Reporter(on_message=messages.append))
    assert "new weights: classifier.bias, classifier.weight" in messages


@pytest.mark.parametrize("decoder", ["decoder", "bert2bert", "prefix"])
def test_a_model_that_writes_is_trained_further(decoder: str, place: Path, tmp_path: Path) -> None:
    train, dev = echoes(tmp_path / "train.tsv", 64, seed=1), echoes(tmp_path / "dev.tsv", 16, seed=2)
    files = {"task": "seq2seq", "train": train, "eval": (dev,), "max_target_length": 6, "epochs": (1.0,)}
    layers = 1 if decoder == "decoder" else None
    first = finetune(config(place, tmp_path / "first", decoder=decoder, decoder_layers=layers, **files))
    # Whatever the flags have as their default, the model goes on as what it is.
    again = config(place, tmp_path / "second", model=str(first.model), **files)
    task = make_task("seq2seq", again.task_settings())
    begun = start.begin(task, first.model, again, seed=5)
    assert begun.new_weights == ()
    assert begun.config.kind == decoder
    begun.save_pretrained(tmp_path / "begun")
    assert same(weights(tmp_path / "begun"), weights(first.model))
    second = finetune(again)
    assert not same(weights(second.model), weights(first.model))
    assert weights(second.model).keys() == weights(first.model).keys()
    for other in {"decoder", "bert2bert", "prefix"} - {decoder}:
        with pytest.raises(UserError, match=f"--decoder {other}: the model already has a decoder, {decoder}; omit"):
            finetune(config(place, tmp_path / "third", model=str(first.model), decoder=other, **files))
    # A classifier that was made of it does not write, so it may become anything.
    classifier = finetune(config(place, tmp_path / "classes", model=str(place / "model"), epochs=(0.1,)))
    text = json.loads((classifier.model / "config.json").read_text()) | {"fastbert_seq2seq": {"kind": "prefix"}}
    (classifier.model / "config.json").write_text(json.dumps(text))
    assert SequenceConfig.of_writer(classifier.model) is None
