"""The inputs of a fine-tuning run: examples, model, tokenizer and teacher, and the flags that they determine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fastbert.checkpoints.source import find_source
from fastbert.checkpoints.weights import open_weights
from fastbert.distillation.finetuning import load_teacher
from fastbert.distributed.world import World
from fastbert.errors import UserError
from fastbert.finetuning import baseline, defaults, language_model, new_model, order, start
from fastbert.finetuning.adapters import require_peft
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.evaluation import Evaluation, file_names, split_off
from fastbert.finetuning.mixture import mixed
from fastbert.finetuning.negatives import with_negatives
from fastbert.flags import flag
from fastbert.io.checksums import sha256
from fastbert.models.seq2seq.transformer.config import TransformerConfig
from fastbert.tasks.base import Task
from fastbert.tasks.examples import Dataset
from fastbert.tasks.inference import SHORT_NAMES, ScoringDtype
from fastbert.tasks.registry import make_task
from fastbert.tasks.retrieval.task import GroupTask
from fastbert.tasks.rows import Rows
from fastbert.tokenizers.fit import check_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.tokenizers.words import WordTokenizer
from fastbert.training import checkpoint
from fastbert.training.device import choose_device
from fastbert.training.reporter import Reporter

if TYPE_CHECKING:
    from fastbert.config import BertConfig
    from fastbert.models.base import PreTrainedModel


@dataclass(frozen=True)
class GivenExamples:
    """Training examples in memory, in place of a file's; `labels` are their classes, None to take them from the
    examples."""

    train: Dataset[Any]
    labels: tuple[str, ...] | None = None


class RunInputs:
    """The inputs of a run, read and encoded once, with the flags that follow from them."""

    def __init__(
        self, config: FinetuneConfig, reporter: Reporter, world: World, examples: GivenExamples | None = None
    ) -> None:
        """Read what `config` names, in every process; `examples` take the place of --train, which then is only a name.
        Raises `UserError` for input that cannot be trained on, and where processes have different inputs."""
        self.world = world
        if not config.resume:  # a run that is continued keeps its own
            config = defaults.with_dropout(config)
        self.config: FinetuneConfig = config
        self.reporter = reporter
        assert config.task is not None
        assert config.model is not None
        assert config.train is not None
        if config.lora is not None:
            require_peft()
        if config.baseline:
            baseline.check(config.task)
        self.task: Task[Any] = make_task(config.task, config.task_settings())
        if self.task.main_metric not in self.task.metrics:
            raise UserError(f"--metric {config.metric}: {config.task} has {', '.join(self.task.metrics)}")
        train: Dataset[Any]
        paths = [str(path) for path in (config.train, *config.more_train)]
        if examples is not None:
            train, self.task.labels = examples.train, examples.labels
        elif config.mine_negatives is not None:
            assert isinstance(self.task, GroupTask)  # the configuration says so
            train = with_negatives(self.task, paths, config, reporter, world)
        else:
            files = [self.task.read(path, labelled=True) for path in paths]
            train = files[0] if len(files) == 1 else mixed(files, config.mix, config.seed)
        learned = None
        if config.teacher is not None:
            learned = self.task.taught(train, find_source(config.teacher), reporter.on_message, config.device)
            train = learned or train
        self.task.learn_labels(train)
        train, held_out = split_off(train, config.validation_fraction)
        self.source: Path | TransformerConfig
        self.tokenizer: Tokenizer
        self.source, self.tokenizer = new_model.source_of(self.task, config, train, reporter)
        self.model_config: BertConfig = start.model_config(self.task, self.source, config)
        for name in ("frozen", "gradual_unfreezing"):
            if getattr(config, name) and not self.task.has_head:
                raise UserError(f"{flag(name)}: --task {config.task} has no weights but the encoder's; leave it out")
        check_tokenizer(self.tokenizer, self.model_config.vocab_size, str(config.model))
        self.task.fit_to(self.model_config)
        evaluations = held_out + [self.task.read_gold(str(path)) for path in config.eval]
        self.rows: Rows = self.task.encode(train, self.tokenizer, labelled=True)
        for dataset in evaluations:
            self.task.check_labels(dataset)
        self.evaluations: list[Evaluation] = [
            Evaluation(name, dataset, self.task.encode(dataset, self.tokenizer, labelled=False))
            for name, dataset in zip(file_names(config), evaluations, strict=True)
        ]
        self.teacher: PreTrainedModel | None = (
            None
            if config.teacher is None or learned is not None
            else load_teacher(self.task, find_source(config.teacher), self.tokenizer)
        )
        if not self.rows.units:
            raise UserError(f"{config.train}: no example can be trained on")
        self.config = config = defaults.resolved(
            config,
            examples=self.rows.units,
            classes=len(self.task.labels or ()),
            hidden_size=self.model_config.hidden_size,
        )
        self.task.check_batch_size(self.rows, min(config.batch_size))
        lm_weight = language_model.resolved_weight(config, self.task, self.source, self.model_config)
        if lm_weight:
            self.config = config = replace(config, lm_weight=lm_weight)
            reporter.on_message(f"trains the language model too: its loss has the weight {lm_weight:g} (--lm-weight)")
        if world.is_main:
            self._check_metric()
        self.train: Dataset[Any] | None = train if self.evaluations else None
        self.train_examples: int = len(train)
        self.device: torch.device
        self.dtype: torch.dtype
        self.device, self.dtype = choose_device(config.device, config.dtype, reporter.on_message)
        # In the dtype of inference, so that evaluate and predict reproduce the scores.
        self.scored: ScoringDtype = ScoringDtype.of_run(self.device, config.dtype)
        if self.evaluations and self.scored.dtype != SHORT_NAMES[self.dtype]:
            reporter.on_message(f"scores are computed in {self.scored.dtype}, as evaluate and predict do here")
        if self.teacher is not None:
            self.teacher.to(self.device)
        self.parts: dict[str, Any] = {
            "model": self.model_config.to_dict(),
            "vocabulary": self.tokenizer.fingerprint,
            "data": self._fingerprint(),
        }
        self._check_processes()
        counted = (
            ", ".join(f"{len(file.dataset):,} in {file.name}" for file in self.evaluations) or "none to evaluate on"
        )
        sequences = "" if self.rows.units == len(train) else f" in {self.rows.units:,} rows"
        reporter.on_message(
            f"{len(train):,} training examples{sequences}, {len(self.rows.input_ids):,} tokens; evaluation: {counted}"
        )
        if self.task.labels is not None:
            shown = ", ".join(self.task.labels[:10]) + (", ..." if len(self.task.labels) > 10 else "")
            reporter.on_message(f"{len(self.task.labels)} labels: {shown}")
        trials = config.trials()
        if len(trials) == 1:  # those of a grid are named one by one
            steps = order.steps_of(self.rows.units, trials[0].batch_size, trials[0].epochs, config.steps)[1]
            reporter.on_message(f"{trials[0]}: {steps:,} step{'s' * (steps != 1)}")

    def _check_processes(self) -> None:
        """Raise `UserError` where processes of a run differ in what they read or where they train, or where a batch has
        fewer examples than there are processes."""
        self.world.require_equal(
            "inputs",
            {
                "--device": str(self.device),
                "--dtype": str(self.dtype),
                "a dtype of scores": str(self.scored.dtype),
                "a vocabulary": self.parts["vocabulary"],
                "a SHA-256 of --model, --train and --eval": self.parts["data"],
            },
            "give all processes the same files, and devices of one kind",
        )
        least = min(trial.batch_size for trial in self.config.trials())
        if least < self.world.size:
            raise UserError(
                f"--batch-size {least} is less than one example per process for {self.world.size} processes; raise it,"
                " or start fewer processes"
            )
        if self.world.size > 1:
            self.reporter.on_message(f"{self.world.size} processes; gradients are summed by DDP")

    def _fingerprint(self) -> str:
        """Return the SHA-256 of the weights of model and teacher, and of all training and evaluation data."""
        digest = hashlib.sha256()
        if isinstance(self.source, Path):
            weights = open_weights(self.task.encoder_folder(self.source))
            for path in sorted({stored.file for stored in weights.tensors.values()}):
                digest.update(sha256(path).encode())
        if self.teacher is not None:
            digest.update(checkpoint.weights_fingerprint(self.teacher).encode())
        for rows in (self.rows, *(file.rows for file in self.evaluations)):
            if isinstance(self.tokenizer, WordTokenizer):  # ids that only this process knows
                words, ids = self.tokenizer.spelled(rows.input_ids)
                digest.update("\n".join(words).encode())
                rows = replace(rows, input_ids=ids)
            for array in rows.arrays():
                digest.update(np.ascontiguousarray(array).data)
        for dataset in (file.dataset for file in self.evaluations):
            digest.update(repr(dataset.examples).encode())
        return digest.hexdigest()

    def _check_metric(self) -> None:
        """Raise `UserError` for a metric that is undefined on the first file, with labels of one class for example."""
        metric = self.task.main_metric
        for number, file in enumerate(self.evaluations):
            defined = self.task.gold_scores(file.dataset)  # logs what is wrong with the gold labels, once per file
            if number == 0 and metric not in defined:
                others = ", ".join(name for name in self.task.metrics if name in defined)
                cure = f"choose one of {others}" if others else "evaluate on a different file"
                raise UserError(
                    f"--metric {metric}: is undefined on {file.dataset.path}, whose labels are all alike or of a"
                    f" different kind; {cure}"
                )
