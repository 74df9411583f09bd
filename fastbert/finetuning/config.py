"""The flags of a fine-tuning run. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastbert.errors import UserError
from fastbert.tasks.registry import TASKS, TaskFlags, TaskName, task_class
from fastbert.training.run_config import RunConfig, flag

PAPER_GRID: dict[str, tuple[float, ...]] = {"batch_size": (16, 32), "lr": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
DEFAULTS: dict[str, tuple[float, ...]] = {"batch_size": (32,), "lr": (5e-5,), "epochs": (3,)}
"""Default hyper-parameters; the grid is that of Devlin et al. 2019, appendix A.3."""


@dataclass(frozen=True, kw_only=True)
class _Files:
    """The task, its files and their columns."""

    task: TaskName | None = None
    """Task to train for."""
    model: str | None = None
    """Folder of the pre-trained model, or its Hub id in the local cache."""
    train: Path | None = None
    """File with the training examples: a GLUE TSV, .tsv, .csv, .jsonl, .parquet, .conll or SQuAD .json, also .gz
    or .xz of these; or a `datasets` folder, FOLDER#SPLIT if it holds several splits."""
    eval: tuple[Path, ...] = ()
    """Files to evaluate on; the first selects the best model."""
    validation_fraction: float | None = None
    """Fraction of the training examples held out for evaluation, instead of --eval files."""
    out: Path = Path("runs/finetune")
    """Folder of the run: config, metrics, curves, results, predictions and the best model."""
    text_column: str | None = None
    """Column or key of the text (the first of a pair, the question, the prompt, the source)."""
    pair_column: str | None = None
    """Column or key of the second text of a pair."""
    label_column: str | None = None
    """Column or key of the label (the tag, the target)."""
    id_column: str | None = None
    """Column or key of an example's id."""
    max_length: int | None = None
    """Tokens per sequence, special tokens included (default: 128, span: 384); longer texts are cut, or windowed."""


@dataclass(frozen=True, kw_only=True)
class _Trials:
    """The grid, and how each of its trials is trained."""

    epochs: tuple[float, ...] = ()
    """Epochs; several values form a grid (default: 3)."""
    max_steps: int | None = None
    """Maximum number of optimiser steps; the schedule ends there."""
    batch_size: tuple[int, ...] = ()
    """Examples per optimiser step; several values form a grid (default: 32)."""
    micro_batch: int | None = None
    """Examples per forward and backward pass (default: the whole batch)."""
    lr: tuple[float, ...] = ()
    """Peak learning rate; several values form a grid (default: 5e-5)."""
    grid: Literal["paper"] | None = None
    """Search the paper's grid: batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4 epochs."""
    seeds: int = 1
    """Number of seeds per combination; results report mean and standard deviation over them."""
    seed: int = 0
    """First seed: of the head's weights, the order of the examples, and dropout."""
    baseline: bool = False
    """Also fit a linear model on the frozen encoder's vectors, and print its scores beside those of the run."""
    metric: str | None = None
    """Metric that selects the best model (default: the task's first)."""
    schedule: Literal["linear", "constant", "slanted-triangular"] = "linear"
    """Learning rate after the warm-up: linear decay to zero, constant, or ULMFiT's (which has its own warm-up)."""
    warmup: float = 0.1
    """Warm-up as a fraction of the steps."""
    layer_decay: float = 1.0
    """Learning rate of each layer as a fraction of that of the layer above; 0.385 (1/2.6) in ULMFiT."""
    gradual_unfreezing: bool = False
    """Train only the head in the first epoch, and one more layer in each epoch after it (ULMFiT)."""
    frozen: bool = False
    """Train only the head; the encoder is frozen."""
    reinit_layers: int = 0
    """Number of top layers to re-initialise before training, with the pooler."""
    dropout: float | None = None
    """Dropout probability of all layers and the head (default: from the model's config)."""
    lora: int | None = None
    """Rank of LoRA adapters to train, with the head, instead of all weights (needs the package peft)."""
    early_stopping: int | None = None
    """Stop after this many evaluations without a better score."""
    eval_every: int | None = None
    """Steps between evaluations (default: once per epoch)."""
    teacher: str | None = None
    """Folder of a teacher for distillation: a model trained on the same task."""
    student_layers: int | None = None
    """Initialise the model with this many layers of --model, evenly spread."""
    store_delta: bool = False
    """Also write the best model as a delta to --model."""
    strict: bool = False
    """Fail on the first unusable example (an answer that is not in its text), instead of counting them."""
    skip_bad: bool = False
    """Skip and count unreadable rows of a file, instead of refusing the file."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, for --resume after a crash (default: only when the run is stopped)."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(RunConfig, _Trials, TaskFlags, _Files):
    """Fine-tune a pre-trained encoder on a task: every combination of --lr, --batch-size and --epochs, with --seeds
    seeds each. The best model on the first --eval file is kept, with its scores and predictions."""

    CHANGEABLE: ClassVar = frozenset(["seeds", "device", "log_every", "checkpoint_every", "out", "resume", "overwrite"])

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise UserError(f"--task {self.task}: choose one of {', '.join(TASKS)}")
        counts = ("seeds", "log_every", "n_best", "max_answer_length", "num_beams", "max_target_length")
        optional = (
            *("max_steps", "micro_batch", "eval_every", "checkpoint_every", "early_stopping", "student_layers"),
            *("lora", "decoder_layers"),
        )
        fraction = self.validation_fraction
        self.require(
            *((name, getattr(self, name) >= 1, "at least 1") for name in counts),
            *((name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1") for name in optional),
            *((name, getattr(self, name) >= 0, "at least 0") for name in ("stride", "context_tokens", "reinit_layers")),
            ("weight_decay", self.weight_decay >= 0, "at least 0"),
            ("warmup", 0 <= self.warmup < 1, "from 0 to below 1 (a fraction of the run)"),
            ("max_grad_norm", self.max_grad_norm > 0, "above 0"),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "from 0 to below 1"),
            ("max_length", self.max_length is None or self.max_length >= 4, "at least 4"),
            (
                "validation_fraction",
                fraction is None or 0 < fraction < 1,
                "between 0 and 1 (a fraction of the examples)",
            ),
            ("temperature", self.temperature > 0, "above 0"),
            ("soft_weight", 0 <= self.soft_weight <= 1, "from 0 to 1"),
            ("seed", 0 <= self.seed < 2**31, "from 0 to 2^31 - 1"),
            ("null_threshold", not math.isnan(self.null_threshold), "a number"),
        )
        for name, least, range_in_words in (
            ("epochs", 0, "above 0 and finite"),
            ("lr", 0, "above 0 and finite"),
            ("batch_size", 1, "at least 1"),
        ):
            for value in getattr(self, name):
                if not (least <= value < math.inf and value > 0):
                    raise UserError(f"{flag(name)} {value} must be {range_in_words}")
        self._check_together()

    def _check_together(self) -> None:
        for first, second in (
            ("resume", "overwrite"),
            ("frozen", "gradual_unfreezing"),
            ("frozen", "lora"),
            ("gradual_unfreezing", "lora"),
            ("frozen", "reinit_layers"),
            ("lora", "reinit_layers"),
            ("lora", "student_layers"),
            ("lora", "teacher"),
            ("class_weights", "teacher"),
        ):
            if getattr(self, first) and getattr(self, second):
                raise UserError(f"{flag(first)} and {flag(second)} exclude each other; leave one out")
        if self.grid:
            names = [name for name in PAPER_GRID if getattr(self, name)]
            if names:
                raise UserError(f"--grid {self.grid} sets {' and '.join(map(flag, names))} itself; leave one out")
        if self.validation_fraction is not None and self.eval:
            raise UserError("--validation-fraction takes the place of --eval; leave one of the two out")
        if self.baseline and not self.eval and self.validation_fraction is None:
            raise UserError("--baseline needs --eval, a file to score it on, or --validation-fraction")
        if self.early_stopping is not None and not self.eval and self.validation_fraction is None:
            raise UserError("--early-stopping needs --eval, a file to score the model on, or --validation-fraction")

    def check_of_use(self) -> None:
        """Raise `UserError` for flags of a new run that would have no effect."""
        needs = [(name, "--teacher", bool(self.teacher)) for name in ("distill", "temperature", "soft_weight")]
        needs.append(("null_threshold", "--unanswerable", self.unanswerable))
        defaults = {item.name: item.default for item in fields(self)}
        if self.task is not None:
            taken = {item.name for item in fields(task_class(self.task).settings_type)}
            for task in TASKS:
                names = {item.name for item in fields(task_class(task).settings_type)} - taken
                needs += [(name, f"--task {task}", False) for name in defaults if name in names]
        for name, needed, present in needs:
            value = getattr(self, name)
            if not present and value != defaults[name]:
                shown = "" if value is True else f" {value}"
                raise UserError(f"{flag(name)}{shown} changes nothing without {needed}; leave it out")

    @property
    def length(self) -> int:
        """Return the tokens per sequence."""
        return self.max_length or task_class(self.task or "classification").default_length

    def trials(self) -> list[Trial]:
        """Return every combination of the grid with every seed, seeds innermost."""
        source = PAPER_GRID if self.grid else {name: getattr(self, name) or DEFAULTS[name] for name in DEFAULTS}
        combinations = product(source["lr"], source["batch_size"], source["epochs"])
        return [
            Trial(lr=lr, batch_size=int(batch), epochs=epochs, seed=self.seed + number)
            for lr, batch, epochs in combinations
            for number in range(self.seeds)
        ]

    def check_change(self, name: str, value: Any, stored: Any) -> None:
        """Refuse fewer seeds than the run has."""
        if name == "seeds" and value < stored:
            raise UserError(
                f"--seeds {value}: the run being resumed has {stored}; omit --seeds, or give a larger number"
            )


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training: a point of the grid, and a seed."""

    lr: float
    batch_size: int
    epochs: float
    seed: int

    def __str__(self) -> str:
        return f"lr {self.lr:g}, batch {self.batch_size}, {self.epochs:g} epochs, seed {self.seed}"
