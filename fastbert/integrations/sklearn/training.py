"""Fine-tune a classifier on texts in memory: a run of fastbert's own, of which the model is kept."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.checkpoints.source import config_folder, find_source
from fastbert.distributed.environment import is_launched
from fastbert.errors import UserError, require_whole
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.inputs import GivenExamples
from fastbert.finetuning.run import finetune
from fastbert.flags import as_arguments
from fastbert.integrations.sklearn.trained_model import TrainedModel
from fastbert.io.job_progress import job_progress
from fastbert.models import registry
from fastbert.tasks.classifier_inputs import Pair
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.inference import check_inference
from fastbert.tasks.texts import Classification
from fastbert.training.reporter import Record, Reporter
from fastbert.training.stopping import Stopped

NAME = "X"  # stands for the name of a training file


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of `TextClassifier`, checked."""

    model: str | Path
    epochs: float | None
    steps: int | None
    batch_size: int | None
    lr: float | None
    max_length: int | None
    class_weights: Mapping[str, float] | str | None
    frozen: bool
    validation_fraction: float | None
    early_stopping: int | None
    device: str | None
    dtype: str
    show_progress_bar: bool | None

    def __post_init__(self) -> None:
        if not isinstance(self.model, str | Path):
            raise UserError(f"model={self.model!r} must be the folder of a model, or its name in the Hub's cache")
        for name, least in (("steps", 1), ("batch_size", 1), ("early_stopping", 1), ("max_length", 4)):
            require_whole(name, getattr(self, name), least, optional=True)
        for name in ("epochs", "lr", "validation_fraction"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            most = 1 if name == "validation_fraction" else float("inf")
            if value is not None and not (is_number and 0 < value < most):
                raise UserError(f"{name}={value!r} must be a number above 0{' and below 1' if most == 1 else ''}")
        if not isinstance(self.frozen, bool):
            raise UserError(f"frozen={self.frozen!r} must be True or False")
        if self.early_stopping is not None and self.validation_fraction is None:
            raise UserError("early_stopping needs validation_fraction, the part of the texts to score the model on")
        check_inference(self.device, self.dtype)
        if self.dtype == "int8":
            raise UserError("dtype='int8' is for prediction: use 'auto', 'fp32' or 'bf16'")


def train(
    texts: Sequence[Pair], labels: Sequence[str], classes: tuple[str, ...], options: TrainingOptions, seed: int
) -> TrainedModel:
    """Fine-tune a model on texts with their labels, each of which is one of the classes.

    Raises UserError for a model that cannot be trained and in one of several processes, and KeyboardInterrupt after
    Ctrl-C.
    """
    if is_launched():
        raise UserError("TextClassifier trains in one process: with torchrun use `fastbert finetune`")
    examples = tuple(
        TextExample(id=str(index), location=f"item {index}", text=text, pair=pair, label=label)
        for index, ((text, pair), label) in enumerate(zip(texts, labels, strict=True))
    )
    trained = TrainedModel()
    run = trained.home / "run"
    config = _config(options, trained.home, run, seed)
    with job_progress("fine-tuning", 1.0, options.show_progress_bar, unit="") as report:

        def on_step(record: Record, fraction: float) -> None:
            report(fraction)

        try:
            finetune(config, Reporter(on_step=on_step), GivenExamples(Dataset(NAME, examples), classes))
        except Stopped as stopped:  # whatever was saved goes with the run's folder
            if stopped.signal == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise SystemExit(128 + stopped.signal) from None
        except UserError as error:
            raise type(error)(as_arguments(str(error))) from None
    (run / "model").rename(trained.folder)
    shutil.rmtree(run, ignore_errors=True)
    return trained


def _config(options: TrainingOptions, home: Path, run: Path, seed: int) -> FinetuneConfig:
    """Return the configuration of a run."""
    weights = options.class_weights
    if isinstance(weights, Mapping):
        file = home / "class_weights.json"
        file.write_text(json.dumps(dict(weights)), encoding="utf-8")
        weights = str(file)
    device, dtype = check_inference(options.device, options.dtype)
    several: dict[str, Any] = {
        name: (float(value) if name != "batch_size" else value,)
        for name in ("epochs", "batch_size", "lr")
        if (value := getattr(options, name)) is not None
    }
    return FinetuneConfig(
        task=Classification.name,
        model=str(options.model),
        train=Path(NAME),
        out=run,
        steps=options.steps,
        max_length=options.max_length or _length(options.model),
        class_weights=weights,
        frozen=options.frozen,
        validation_fraction=options.validation_fraction,
        early_stopping=options.early_stopping,
        seed=seed,
        device=device,  # type: ignore[arg-type]
        dtype=dtype,  # type: ignore[arg-type]
        **several,
    )


def _length(model: str | Path) -> int:
    """Return the tokens per text: the task's default, or as many as the model has positions for."""
    config = registry.read_config(config_folder(find_source(model)))
    return min(Classification.default_length, config.max_sequence_length)
