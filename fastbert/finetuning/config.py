"""What a fine-tuning run is made of. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fastbert.errors import UserError
from fastbert.tasks.registry import TASKS, TaskFlags, TaskName, task_class

PAPER_GRID: dict[str, tuple[float, ...]] = {"batch_size": (16, 32), "lr": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
DEFAULTS: dict[str, tuple[float, ...]] = {"batch_size": (32,), "lr": (5e-5,), "epochs": (3,)}
"""Hyper-parameters of a run that asks for none; and of Devlin et al. 2019, appendix A.3."""
CHANGEABLE = frozenset(("seeds", "device", "log_every", "checkpoint_every", "out", "resume", "overwrite"))
"""What a resumed run may have another value of; of the seeds only more."""


@dataclass(frozen=True, kw_only=True)
class _Files:
    """The task, its files and their columns."""

    task: TaskName | None = None
    """Kind of the task."""
    model: str | None = None
    """Folder of the pre-trained model, or its name in the Hub's cache."""
    train: Path | None = None
    """File with the training examples: a GLUE TSV, .tsv, .csv, .jsonl, .parquet, .conll or SQuAD .json, perhaps .gz or
    .xz; or a folder of `datasets`, FOLDER#SPLIT where it holds several."""
    eval: tuple[Path, ...] = ()
    """Files to evaluate on; the first decides which model is best."""
    validation_fraction: float | None = None
    """Fraction of the training examples to evaluate on instead of training on them, where there is no --eval file."""
    out: Path = Path("runs/finetune")
    """Folder of the run: config, metrics, curves, results, predictions and the best model."""
    text_column: str | None = None
    """Column or key of the text (the first of a pair, the question, the prompt, the source)."""
    pair_column: str | None = None
    """Column or key of the second text of a pair."""
    label_column: str | None = None
    """Column or key of the label (the tag, the target)."""
    id_column: str | None = None
    """Column or key that names an example."""
    max_length: int | None = None
    """Tokens per row, special ones included (default: 128, for span 384); longer texts are cut, or become windows."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TaskFlags, _Files):
    """Fine-tune a pre-trained encoder on a task: every combination of --lr, --batch-size and --epochs, --seeds times
    each; the best model on the first --eval file is kept, with its scores and its predictions."""

    epochs: tuple[float, ...] = ()
    """Passes over the training set; several numbers are a grid (default: 3)."""
    max_steps: int | None = None
    """End after so many optimiser steps; the schedule follows."""
    batch_size: tuple[int, ...] = ()
    """Examples per optimiser step; several numbers are a grid (default: 32)."""
    micro_batch: int | None = None
    """Examples per forward and backward pass, where a whole batch does not fit (default: the whole batch)."""
    lr: tuple[float, ...] = ()
    """Peak learning rate; several numbers are a grid (default: 5e-5)."""
    grid: Literal["paper"] | None = None
    """Search the paper's grid: batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4 epochs."""
    seeds: int = 1
    """Runs that differ in their seed alone; results have their mean and standard deviation."""
    seed: int = 0
    """The first seed: of the head's weights, the order of the examples, and dropout."""
    metric: str | None = None
    """Metric that decides which model is best (default: the task's first)."""
    schedule: Literal["linear", "constant", "slanted-triangular"] = "linear"
    """Learning rate behind the warm-up: linearly to zero, constant, or ULMFiT's (which has its own warm-up)."""
    warmup: float = 0.1
    """Fraction of the steps in which the learning rate rises."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay; none on biases and LayerNorm."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    layer_decay: float = 1.0
    """Learning rate of each layer as a fraction of that of the one above; ULMFiT takes 0.385 (1/2.6)."""
    gradual_unfreezing: bool = False
    """Train the head alone in the first epoch, and one layer more in each one after that (ULMFiT)."""
    frozen: bool = False
    """Train the head alone; the encoder stays as it is."""
    reinit_layers: int = 0
    """Draw the weights of so many of the top layers, and the pooler, anew before training."""
    dropout: float | None = None
    """Dropout everywhere (default: as the model's config says)."""
    lora: int | None = None
    """Train low-rank adapters of this rank and the head, through the package peft, instead of all weights."""
    early_stopping: int | None = None
    """End after so many evaluations in a row without a better score."""
    eval_every: int | None = None
    """Steps between evaluations (default: once an epoch)."""
    teacher: str | None = None
    """Folder of a trained model of the same task, whose predictions the model also learns from."""
    student_layers: int | None = None
    """Begin as every k-th layer of --model, this many in all."""
    distill: Literal["distilbert", "tinybert"] = "distilbert"
    """What of the teacher is learnt: soft labels and hidden states, or also attention, layer by layer."""
    temperature: float = 2.0
    """Softness of the teacher's labels."""
    soft_weight: float = 0.5
    """Share of the teacher's labels in the loss; the rest is the training set's."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto takes a GPU when there is one."""
    dtype: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Dtype of the matrix products; auto takes the fastest of the device and prints it. fp16 needs a GPU."""
    checkpoint_activations: bool = False
    """Keep only each layer's input and compute the rest again in the backward pass."""
    deterministic: bool = False
    """Use deterministic algorithms only, on GPUs too."""
    store_delta: bool = False
    """Write the best model as a delta to --model too: only what changed."""
    strict: bool = False
    """End at the first example that cannot be used (an answer that is not in its text), instead of counting them."""
    skip_bad: bool = False
    """Skip rows of files that cannot be read and report how many, instead of refusing the file."""
    checkpoint_every: int | None = None
    """Steps between checkpoints, from which --resume goes on after a crash (default: only when the run is stopped)."""
    log_every: int = 10
    """Steps between lines of metrics.jsonl; the first step always has one."""
    resume: bool = False
    """Continue the run in --out, or start it if there is none; trials that are finished are not repeated."""
    overwrite: bool = False
    """Replace the run that is in --out."""

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise UserError(f"--task {self.task}: choose one of {', '.join(TASKS)}")
        for name in ("seeds", "log_every", "n_best", "max_answer_length", "num_beams", "max_target_length"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        optional = (
            "max_steps",
            "micro_batch",
            "eval_every",
            "checkpoint_every",
            "early_stopping",
            "student_layers",
            "lora",
        )
        for name in (*optional, "decoder_layers"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, value, "at least 1")
        for name, least in (("epochs", 0), ("lr", 0), ("batch_size", 1)):
            for value in getattr(self, name):
                good = least <= value < float("inf") and value > 0
                _require(good, name, value, "at least 1" if least else "above 0 and finite")
        for name in ("stride", "context_tokens", "reinit_layers", "weight_decay"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "at least 0")
        _require(0 <= self.warmup < 1, "warmup", self.warmup, "from 0 to below 1 (a fraction of the run)")
        _require(self.max_grad_norm > 0, "max_grad_norm", self.max_grad_norm, "above 0")
        _require(0 < self.layer_decay <= 1, "layer_decay", self.layer_decay, "above 0 and at most 1")
        _require(self.dropout is None or 0 <= self.dropout < 1, "dropout", self.dropout, "from 0 to below 1")
        _require(self.max_length is None or self.max_length >= 4, "max_length", self.max_length, "at least 4")
        held = self.validation_fraction
        _require(
            held is None or 0 < held < 1, "validation_fraction", held, "between 0 and 1 (a fraction of the examples)"
        )
        _require(self.temperature > 0, "temperature", self.temperature, "above 0")
        _require(0 <= self.soft_weight <= 1, "soft_weight", self.soft_weight, "from 0 to 1")
        _require(0 <= self.seed < 2**31, "seed", self.seed, "from 0 to 2^31 - 1")
        _require(not math.isnan(self.null_threshold), "null_threshold", self.null_threshold, "a number")
        self._check_together()

    def _check_together(self) -> None:
        for one, other in (
            ("resume", "overwrite"),
            ("frozen", "gradual_unfreezing"),
            ("frozen", "lora"),
            ("gradual_unfreezing", "lora"),
            ("frozen", "reinit_layers"),
            ("lora", "reinit_layers"),
            ("lora", "student_layers"),
            ("lora", "teacher"),
        ):
            if getattr(self, one) and getattr(self, other):
                raise UserError(f"{_flag(one)} and {_flag(other)} exclude each other; leave one out")
        if self.grid:
            given = [name for name in PAPER_GRID if getattr(self, name)]
            if given:
                raise UserError(f"--grid {self.grid} sets {' and '.join(map(_flag, given))} itself; leave one out")
        if self.validation_fraction is not None and self.eval:
            raise UserError("--validation-fraction takes the place of --eval; leave one of the two out")
        if self.early_stopping is not None and not self.eval and self.validation_fraction is None:
            raise UserError("--early-stopping needs --eval, a file to score the model on, or --validation-fraction")

    def check_of_use(self) -> None:
        """Refuse flags of a new run that would change nothing. Raises `UserError`."""
        needs = [(name, "--teacher", bool(self.teacher)) for name in ("distill", "temperature", "soft_weight")]
        needs.append(("null_threshold", "--unanswerable", self.unanswerable))
        defaults = {one.name: one.default for one in fields(self)}
        if self.task is not None:
            taken = {field.name for field in fields(task_class(self.task).settings_type)}
            for task in TASKS:
                own = {field.name for field in fields(task_class(task).settings_type)} - taken
                needs += [(name, f"--task {task}", False) for name in defaults if name in own]
        for name, needed, given in needs:
            value = getattr(self, name)
            if not given and value != defaults[name]:
                shown = "" if value is True else f" {value}"
                raise UserError(f"{_flag(name)}{shown} changes nothing without {needed}; leave it out")

    @property
    def length(self) -> int:
        """Tokens per row."""
        return self.max_length or task_class(self.task or "classification").default_length

    def trials(self) -> list[Trial]:
        """Every combination of the grid with every seed, seeds innermost."""
        source = PAPER_GRID if self.grid else {name: getattr(self, name) or DEFAULTS[name] for name in DEFAULTS}
        combinations = product(source["lr"], source["batch_size"], source["epochs"])
        return [
            Trial(lr=lr, batch_size=int(batch), epochs=epochs, seed=self.seed + number)
            for lr, batch, epochs in combinations
            for number in range(self.seeds)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> FinetuneConfig:
        """What `to_dict` wrote; keys of newer versions are refused."""
        unknown = sorted(values.keys() - {one.name for one in fields(cls)})
        if unknown:
            raise UserError(f"the run's configuration holds {', '.join(unknown)}, unknown here: update fastbert")
        chosen = dict(values)
        for name in ("train", "out"):
            if chosen.get(name) is not None:
                chosen[name] = Path(chosen[name])
        for name in ("epochs", "batch_size", "lr"):
            chosen[name] = tuple(chosen.get(name, ()))
        chosen["eval"] = tuple(Path(path) for path in chosen.get("eval", ()))
        return cls(**chosen)

    def resumed_from(self, saved: FinetuneConfig) -> FinetuneConfig:
        """The configuration to continue `saved` with: its own, where this one has the default.

        Raises `UserError` for a flag that would make it another run. More seeds may be asked for.
        """
        merged: dict[str, Any] = {}
        for one in fields(self):
            given, held = getattr(self, one.name), getattr(saved, one.name)
            if one.name in ("out", "resume", "overwrite"):
                continue
            if given in (one.default, held) or _same_files(given, held):
                continue
            if one.name not in CHANGEABLE:
                raise UserError(
                    f"{_flag(one.name)} {_shown(given)} differs from the run being resumed, which has {_shown(held)};"
                    f" leave {_flag(one.name)} out, or start another run with another --out"
                )
            if one.name == "seeds" and given < held:
                raise UserError(
                    f"--seeds {given}: the run being resumed has {held}; leave --seeds out, or ask for more"
                )
            merged[one.name] = given
        return replace(saved, **merged, out=self.out, resume=True, overwrite=False)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a run: a point of its grid, and a seed."""

    lr: float
    batch_size: int
    epochs: float
    seed: int

    def __str__(self) -> str:
        return f"lr {self.lr:g}, batch {self.batch_size}, {self.epochs:g} epochs, seed {self.seed}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _same_files(given: Any, held: Any) -> bool:
    """Tell whether two paths, or two lists of them, lead to the same files, from wherever the command was called."""
    if isinstance(given, Path) and isinstance(held, Path):
        return given.resolve() == held.resolve()
    if isinstance(given, tuple) and isinstance(held, tuple) and len(given) == len(held):
        return all(_same_files(one, other) for one, other in zip(given, held))
    return False


def _shown(value: Any) -> str:
    """A flag's value as it is given on the command line."""
    if value is None or value == ():
        return "none"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _require(holds: bool, name: str, value: object, range_in_words: str) -> None:
    if not holds:
        raise UserError(f"{_flag(name)} {value} must be {range_in_words}")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
