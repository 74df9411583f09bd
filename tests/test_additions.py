"""A new task or command needs an edit of one existing file, its registry: throw-away ones are registered here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from toy_tasks import sentence, toy_folder

from fastbert import BertConfig, WordPieceTokenizer, cli
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.run import finetune
from fastbert.tasks import registry
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.predicting import predict
from fastbert.tasks.prediction_files import read_predictions, write_predictions
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.settings import TaskSettings


@dataclass(frozen=True, kw_only=True)
class VerdictFlags:
    """The task's own flag."""

    threshold: float = 0.5
    """Verdict: score from which a text is good."""


@dataclass(frozen=True, kw_only=True)
class VerdictSettings(TaskSettings, VerdictFlags):
    """The task's settings."""


@dataclass(frozen=True, kw_only=True)
class Config(VerdictFlags, FinetuneConfig):
    """`fastbert finetune` with the flag, as an entry in `TaskFlags` would add it."""


class Verdict(Task[TextExample]):
    """Good or bad, by one score and a threshold: a reader, a head, a prediction format and a metric of its own."""

    name = "verdict"
    head_name = "ForSequenceClassification"
    metrics = ("agreement",)
    prediction_format = PredictionFormat("verdict", (".verdicts",))
    settings_type = VerdictSettings
    default_length = 32
    settings: VerdictSettings

    def read(self, path: str, *, labelled: bool = True) -> Dataset[TextExample]:
        lines = [line.split("|") for line in Path(path).read_text().splitlines()]
        return Dataset(
            path,
            tuple(
                TextExample(id=str(i), location=f"line {i + 1}", text=text, label=verdict if labelled else None)
                for i, (verdict, text) in enumerate(lines)
            ),
        )

    def head_config(self, config: BertConfig) -> BertConfig:
        return replace(config, num_labels=1, label_names=None, problem_type="regression")

    def encode(self, dataset: Dataset[TextExample], tokenizer: WordPieceTokenizer, *, labelled: bool) -> Rows:
        batch = tokenizer.pack([example.text for example in dataset], max_length=self.settings.max_length)
        targets = np.array([[example.label == "good"] for example in dataset], dtype=np.float32)
        return Rows(
            input_ids=batch.input_ids.numpy().astype(np.int32),
            token_type_ids=batch.token_type_ids.numpy().astype(np.int32),
            offsets=batch.cu_seqlens.numpy().astype(np.int64),
            examples=np.arange(len(dataset)),
            unit_targets={"labels": targets} if labelled else {},
        )

    def items(self, batch: TaskBatch) -> int:
        return len(batch.inputs)

    def loss(self, model: Any, batch: TaskBatch, items: int) -> torch.Tensor:
        loss: torch.Tensor = model(batch.inputs, labels=batch.targets["labels"], num_items_in_batch=items).loss
        return loss

    def outputs(self, model: Any, batch: TaskBatch) -> list[np.ndarray]:
        return list(model(batch.inputs).logits.float().cpu().numpy())

    def decode(self, dataset: Dataset[TextExample], rows: Rows, outputs: Sequence[np.ndarray]) -> list[Prediction]:
        verdicts = ["good" if output[0] >= self.settings.threshold else "bad" for output in outputs]
        return [{"id": example.id, "verdict": verdict} for example, verdict in zip(dataset, verdicts, strict=True)]

    def gold_prediction(self, example: TextExample) -> Prediction:
        return {"id": example.id, "verdict": example.label}

    def score(self, dataset: Dataset[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        same = [example.label == prediction["verdict"] for example, prediction in zip(dataset, predictions)]
        return {"agreement": 100 * sum(same) / len(same)}


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line in the registry."""
    monkeypatch.setitem(registry.TASKS, "verdict", f"{__name__}:Verdict")


def verdicts(path: Path, count: int, seed: int) -> Path:
    random = Random(seed)
    rows = [(kind, sentence(random, kind == "good")) for kind in random.choices(("good", "bad"), k=count)]
    path.write_text("".join(f"{kind}|{text}\n" for kind, text in rows))
    return path


@pytest.mark.usefixtures("verdict")
def test_a_task_of_its_own_file_is_trained_evaluated_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, dev = verdicts(tmp_path / "train.txt", 192, 1), verdicts(tmp_path / "dev.txt", 40, 2)
    config = Config(
        task="verdict",
        model=str(toy_folder(tmp_path / "toy")),
        train=train,
        eval=(dev,),
        out=tmp_path / "run",
        lr=(1e-2,),
        batch_size=(16,),
        epochs=(6,),
        device="cpu",
        dtype="fp32",
        threshold=0.4,
    )
    result = finetune(config)
    agreement = result.scores["dev.txt"]["agreement"]["mean"]
    assert agreement >= 90
    assert (result.metric, config.length) == ("agreement", 32)

    trained = load_trained(str(result.model), device="cpu")
    assert isinstance(trained.task, Verdict)
    assert trained.task.settings == VerdictSettings(max_length=32, threshold=0.4)
    gold = trained.task.read_gold(str(dev))
    predictions = predict(trained.task, trained.model, trained.tokenizer, gold)
    assert trained.task.score(gold, predictions) == {"agreement": pytest.approx(agreement)}
    file = tmp_path / "dev.verdicts"
    write_predictions(file, "verdict", gold, predictions)
    assert file.read_text().split() == [prediction["verdict"] for prediction in predictions]
    assert read_predictions(file, "verdict", gold) == predictions
    strict = load_trained(str(result.model), device="cpu", threshold=1e9)
    rejected = predict(strict.task, strict.model, strict.tokenizer, gold)
    assert {prediction["verdict"] for prediction in rejected} == {"bad"}
    with pytest.raises(UserError, match="--n-best 3: the model is for verdict, which has no such setting"):
        load_trained(str(result.model), n_best=3)

    pytest.importorskip("tyro", reason="the command line needs tyro")
    out = tmp_path / "p.jsonl"
    assert cli.main(["predict", "--model", str(result.model), "--text", str(dev), "--out", str(out), "--quiet"]) == 0
    assert list(map(json.loads, out.read_text().splitlines())) == predictions
    for predicted in (("--model", result.model), ("--task", "verdict", "--predictions", file)):
        scores = tmp_path / "scores.json"
        assert cli.main(["evaluate", *map(str, predicted), "--gold", str(dev), "--json", str(scores), "--quiet"]) == 0
        assert json.loads(scores.read_text()) == {"agreement": pytest.approx(agreement)}
    capsys.readouterr()
    assert cli.main(["finetune", "--help"]) == 0
    assert "seq2seq,verdict}" in "".join(capsys.readouterr().out.split())


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(UserError, match="--task verdict: choose one of classification, regression, tagging, span,"):
        FinetuneConfig(task="verdict")


@pytest.mark.usefixtures("verdict")
def test_a_flag_of_a_different_task_is_refused() -> None:
    with pytest.raises(UserError, match=r"--threshold 0\.4 changes nothing without --task verdict"):
        Config(task="span", threshold=0.4).check_of_use()
    with pytest.raises(UserError, match="--num-beams 4 changes nothing without --task seq2seq"):
        FinetuneConfig(task="span", num_beams=4).check_of_use()


def test_a_command_of_its_own_file_is_listed_and_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tyro", reason="the command line needs tyro")

    @dataclass(frozen=True, kw_only=True)
    class Greeting:
        """Greet."""

        name: str = "world"
        """Who is greeted."""

    module = ModuleType("fastbert.cli.greet")
    module.Config = Greeting  # type: ignore[attr-defined]
    module.run = lambda config, *, quiet=False: print(f"hello, {config.name}")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastbert.cli.greet", module)
    monkeypatch.setitem(cli.COMMANDS, "greet", ("greet", "greet someone"))
    assert cli.main(["greet", "--name", "you"]) == 0
    assert capsys.readouterr().out == "hello, you\n"
    assert cli.main(["greet", "--help"]) == 0
    assert "Who is greeted." in capsys.readouterr().out
    assert cli.main(["gret"]) == 2
    assert "did you mean `fastbert greet`?" in capsys.readouterr().err
