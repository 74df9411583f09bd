"""A throw-away task with a flag of its own: good or bad, by one score and a threshold."""

from additions import Addition, Edit

TASK = Addition(
    new={
        "fastbert/tasks/verdict/__init__.py": '"""Verdicts."""\n',
        "fastbert/tasks/verdict/flags.py": '''
"""Flags of verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastbert.flags import rare


@dataclass(frozen=True, kw_only=True)
class VerdictFlags:
    """The choice of verdicts."""

    GROUP: ClassVar = "With --task verdict"

    threshold: float = rare(0.5)
    """Score from which a text is good."""


@dataclass(frozen=True, kw_only=True)
class VerdictPredictFlags:
    """Those `VerdictFlags` that can change after training; None keeps the value of training."""

    GROUP: ClassVar = "With --task verdict"

    threshold: float | None = rare(None)
    """Score from which a text is good (default: as in training)."""
''',
        "fastbert/tasks/verdict/task.py": '''
"""Good or bad, by one score and a threshold: a reader, a head, a prediction format and a metric of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastbert.config import BertConfig
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset, Prediction, PredictionFormat, TextExample
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.tasks.settings import TaskSettings
from fastbert.tasks.verdict.flags import VerdictFlags
from fastbert.tokenizers import WordPieceTokenizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class VerdictSettings(TaskSettings, VerdictFlags):
    """The settings of verdicts."""


class Verdict(Task[TextExample]):
    """A verdict on each text."""

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

    def loss(self, model: Any, batch: TaskBatch, items: int) -> Tensor:
        loss: Tensor = model(batch.inputs, labels=batch.targets["labels"], num_items_in_batch=items).loss
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
''',
        "tests/test_verdict.py": '''
"""The task is trained, evaluated and used by the commands, with its own flag."""

import json
from pathlib import Path
from random import Random

import pytest
from toy_tasks import sentence, toy_folder

from fastbert import cli
from fastbert.errors import UserError
from fastbert.tasks.finetuned_model import load_trained
from fastbert.tasks.predicting import predict
from fastbert.tasks.prediction_files import read_predictions, write_predictions
from fastbert.tasks.verdict.task import Verdict, VerdictSettings


def verdicts(path: Path, count: int, seed: int) -> Path:
    random = Random(seed)
    rows = [(kind, sentence(random, kind == "good")) for kind in random.choices(("good", "bad"), k=count)]
    path.write_text("".join(f"{kind}|{text}\\n" for kind, text in rows))
    return path


def fastbert(command: str, **flags: object) -> int:
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return cli.main([command, *words, "--quiet"])


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return verdicts(tmp_path_factory.mktemp("dev") / "dev.txt", 40, 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, dev: Path) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("run")
    train, model = verdicts(folder / "train.txt", 192, 1), toy_folder(folder / "toy")
    code = fastbert(
        "finetune", task="verdict", threshold=0.4, model=model, train=train, eval=dev, out=folder / "run",
        lr=1e-2, batch_size=16, epochs=6, device="cpu", dtype="fp32",
    )  # fmt: skip
    assert code == 0
    return folder / "run"


def test_the_flag_of_the_command_line_is_a_setting_of_the_model(run: Path, dev: Path) -> None:
    trained = load_trained(str(run / "model"), device="cpu")
    assert isinstance(trained.task, Verdict)
    assert trained.task.settings == VerdictSettings(max_length=32, threshold=0.4)
    strict = load_trained(str(run / "model"), device="cpu", threshold=1e9)
    rejected = predict(strict.task, strict.model, strict.tokenizer, strict.task.read_gold(str(dev)))
    assert {prediction["verdict"] for prediction in rejected} == {"bad"}


def test_evaluate_and_predict_agree_with_the_run(run: Path, dev: Path, tmp_path: Path) -> None:
    trained = load_trained(str(run / "model"), device="cpu")
    gold = trained.task.read_gold(str(dev))
    predictions = predict(trained.task, trained.model, trained.tokenizer, gold)
    agreement = trained.task.score(gold, predictions)["agreement"]
    assert agreement >= 90
    assert json.loads((run / "results.json").read_text())["metric"] == "agreement"
    wrong = [
        f"{example.text}\\t{example.label}\\t{prediction['verdict']}\\t{example.location}\\n"
        for example, prediction in zip(gold, predictions)
        if example.label != prediction["verdict"]
    ]
    errors = "text\\tgold\\tpredicted\\tlocation\\n" + "".join(wrong)
    assert (run / "reports" / "dev.txt" / "errors.tsv").read_text() == errors
    file, out, scores = tmp_path / "dev.verdicts", tmp_path / "p.jsonl", tmp_path / "scores.json"
    write_predictions(file, "verdict", gold, predictions)
    assert file.read_text().split() == [prediction["verdict"] for prediction in predictions]
    assert read_predictions(file, "verdict", gold) == predictions
    assert fastbert("predict", model=run / "model", text=dev, out=out) == 0
    assert list(map(json.loads, out.read_text().splitlines())) == predictions
    for predicted in ({"model": run / "model"}, {"task": "verdict", "predictions": file}):
        assert fastbert("evaluate", gold=dev, json=scores, **predicted) == 0
        assert json.loads(scores.read_text()) == {"agreement": pytest.approx(agreement)}
    strict = tmp_path / "strict.jsonl"
    assert fastbert("predict", model=run / "model", text=dev, out=strict, threshold=1e9) == 0
    assert {json.loads(line)["verdict"] for line in strict.read_text().splitlines()} == {"bad"}


def test_the_flag_has_help_and_belongs_to_the_task(
    run: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("finetune", "predict"):
        assert cli.main([command, "--task", "verdict", "--help"]) == 0
        shown = "".join(capsys.readouterr().out.split())
        assert "With--taskverdict:--thresholdXScorefromwhichatextisgood(default:" in shown
        assert "{verdict,classification," in shown
    assert fastbert("finetune", task="span", threshold=0.4, model=run / "model", train=dev, out=run / "other") == 2
    assert "--threshold 0.4 changes nothing without --task verdict" in capsys.readouterr().err
    with pytest.raises(UserError, match="--n-best 3: the model is for verdict, which has no such setting"):
        load_trained(str(run / "model"), n_best=3)
''',
    },
    edits={
        "fastbert/tasks/registry.py": (
            Edit(
                "from fastbert.tasks.tagging.flags import TaggingFlags\n",
                "from fastbert.tasks.tagging.flags import TaggingFlags\n"
                "from fastbert.tasks.verdict.flags import VerdictFlags, VerdictPredictFlags\n",
            ),
            Edit("TASKS = {\n", 'TASKS = {\n    "verdict": "fastbert.tasks.verdict.task:Verdict",\n'),
            Edit("class TaskFlags(", "class TaskFlags(VerdictFlags, "),
            Edit("class PredictFlags(", "class PredictFlags(VerdictPredictFlags, "),
        ),
    },
)
