"""The flags of a fine-tuning run. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, OUTPUT, TRAINING, flag, rare, required, switch
from fastbert.mining.flags import MiningFlags
from fastbert.tasks.registry import TASKS, TaskFlags, TaskName, task_class
from fastbert.tasks.settings import Columns, TaskSettings
from fastbert.training import tracking_flags
from fastbert.training.run_config import DISTILLATION, RunConfig
from fastbert.training.saving_flags import AsyncSaveFlags
from fastbert.training.schedule_flags import DecayFlags

PAPER_GRID: dict[str, tuple[float, ...]] = {"batch_size": (16, 32), "lr": (5e-5, 3e-5, 2e-5), "epochs": (2, 3, 4)}
"""The grid of Devlin et al. 2019, appendix A.3."""


NEW_SIZES = ("tiny", "small", "base", "big")
"""The sizes of models with new weights."""


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The task, its files and their columns."""

    GROUP: ClassVar = DATA

    task: TaskName | None = required(", ".join(TASKS), unless=("resume",))
    """Task to train for."""
    train: Path | None = required("a file with training examples", unless=("resume",))
    """Training examples: .tsv, .csv, .jsonl, .parquet, .conll or SQuAD's .json, also .gz and .xz of these; or a
    `datasets` folder, FOLDER#SPLIT."""
    more_train: tuple[Path, ...] = rare(())
    """More files with training examples, of the same form."""
    mix: tuple[float, ...] = rare(())
    """How often an epoch holds each example of --train, and of each file of --more-train, such as 1 2 0.5 (default:
    once)."""
    eval: tuple[Path, ...] = ()
    """Evaluation files; the first selects the best model."""
    validation_fraction: float | None = None
    """Fraction of --train to evaluate on, without --eval."""
    text_column: str | None = None
    """Column or key of the text, question, prompt or source."""
    pair_column: str | None = None
    """Column or key of the second text of a pair."""
    label_column: str | None = None
    """Column or key of the label, tag or target."""
    id_column: str | None = rare(None)
    """Column or key of an example's id."""
    max_length: int | None = None
    """Tokens per sequence (default: 128; span: 384; texts of retrieval: 256)."""
    skip_bad: bool = rare(False)
    """Skip and count unreadable rows of a file, instead of refusing the file."""
    strict: bool = rare(False)
    """Fail on the first unusable example (an answer that is not in its text), instead of counting them."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model, and which of its weights are trained."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of a pre-trained model", unless=("resume",))
    """Folder of the pre-trained model or of its run, or its id in the Hub's cache; with --architecture a size (tiny,
    small, base or big), or the path of a config.json."""
    architecture: Literal["transformer"] | None = None
    """Train a model with new weights: the original Transformer, with --task seq2seq."""
    tokenizer: Path | None = rare(None)
    """With --architecture: folder or vocab.txt of the tokenizer (default: a vocabulary is built from --train)."""
    vocab_size: int | None = rare(None)
    """Entries of the vocabulary that is built without --tokenizer (default: by the size of --train)."""
    cased: bool = rare(False)
    """Build a cased vocabulary: keep capitals and accents."""
    frozen: bool = False
    """Train only the head; the encoder is frozen."""
    lora: int | None = None
    """Train LoRA adapters of this rank (needs peft)."""
    bilstm: int | None = switch(None, bare="0")
    """A new bidirectional LSTM with so many outputs between the encoder and the head, half of them per direction;
    without a number, or with 0, as many as the encoder has (LTR + BiLSTM). transformers does not load such models."""
    dropout: float | None = rare(None)
    """Dropout probability of all layers and the head (default: from the model's config; regression: 0)."""
    reinit_layers: int = rare(0)
    """Number of top layers to re-initialise before training, with the pooler."""


@dataclass(frozen=True, kw_only=True)
class _Teacher:
    """The teacher of distillation."""

    GROUP: ClassVar = DISTILLATION

    teacher: str | None = rare(None)
    """Folder of a teacher: a model trained on the same task."""
    student_layers: int | None = rare(None)
    """Initialise the model with this many layers of --model, evenly spread."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The grid, and how each of its trials is trained."""

    GROUP: ClassVar = TRAINING

    epochs: tuple[float, ...] = ()
    """Epochs (default: 2 to 20, by the data); several form a grid."""
    steps: int | None = None
    """Optimiser steps; with --epochs, whichever ends first."""
    batch_size: tuple[int, ...] = ()
    """Examples per step (default: 8 to 32); several form a grid."""
    lr: tuple[float, ...] = ()
    """Learning rate (default: by the width); several form a grid."""
    grid: Literal["paper"] | None = rare(None)
    """Search the paper's grid: batches of 16 and 32, learning rates 5e-5, 3e-5 and 2e-5, 2 to 4 epochs."""
    seeds: int = 1
    """Seeds per combination; results report mean and standard deviation over them."""
    seed: int = 0
    """First seed: head, order, dropout."""
    baseline: bool = False
    """Also fit a linear model on the frozen encoder's vectors."""
    early_stopping: int | None = None
    """Evaluations without a better score before stopping."""
    metric: str | None = None
    """Selects the best model (default: the task's first)."""
    schedule: Literal["linear", "cosine", "wsd", "constant", "slanted-triangular", "inverse-sqrt"] | None = rare(None)
    """Learning rate after the warm-up: linear or cosine decay, wsd (constant, and at the end a decay of 1 minus square
    root), constant, ULMFiT's (which has its own warm-up), or decay with the inverse square root of the step (default:
    linear; inverse-sqrt with --architecture)."""
    lm_weight: float | None = rare(None)
    """Weight of the auxiliary language-model loss, for models that read left to right (default: GPT's 0.5 in tasks over
    sequences, if --model has a language model's head; 0 for others, with --frozen, --lora and --teacher)."""
    warmup: float = rare(0.1)
    """Warm-up as a fraction of the steps."""
    layer_decay: float = rare(1.0)
    """Learning rate of each layer as a fraction of that of the layer above; 0.385 (1/2.6) in ULMFiT."""
    gradual_unfreezing: bool = rare(False)
    """Train only the head in the first epoch, and one more layer in each epoch after it (ULMFiT); sooner in runs of
    fewer epochs, so that all are trained in the end."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The run's folder, and how often it is written."""

    GROUP: ClassVar = OUTPUT

    out: Path = Path("runs/finetune")
    """Folder of the run."""
    eval_every: int | None = rare(None)
    """Steps between evaluations (default: once per epoch)."""
    checkpoint_every: int | None = rare(None)
    """Steps between checkpoints, for --resume after a crash (default: only when the run is stopped)."""
    store_delta: bool = rare(False)
    """Also write the best model as a delta to --model."""


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """Micro-batches."""

    GROUP: ClassVar = MACHINE

    micro_batch: int | None = None
    """Examples per pass of the model (default: all)."""
    pass_tokens: int | None = rare(None)
    """Tokens per pass of the model where the loss compares all examples of a batch; gradients of larger batches are
    cached, and all passes but one computed twice (default: batches of up to 4,096 at once, larger ones by 1,024; on a
    GPU 131,072)."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(
    RunConfig,
    _Machine,
    AsyncSaveFlags,
    _Output,
    MiningFlags,
    TaskFlags,
    _Teacher,
    DecayFlags,
    _Training,
    _Model,
    _Data,
):
    """Fine-tune a pre-trained encoder on a task. --out gets scores, learning curves, predictions and the model that is
    best on the first --eval file."""

    CHANGEABLE: ClassVar = (
        frozenset(["seeds", "device", "log_every", "checkpoint_every", "async_save", "out", "resume", "overwrite"])
        | {"micro_batch", "pass_tokens", "checkpoint_activations"}
        | tracking_flags.CHANGEABLE
    )

    def __post_init__(self) -> None:
        self.check_groups()
        if self.task is not None and self.task not in TASKS:
            raise UserError(f"--task {self.task}: choose one of {', '.join(TASKS)}")
        counts = ("seeds", "log_every", "n_best", "max_answer_length", "num_beams", "max_target_length")
        optional = (
            *(
                "steps",
                "micro_batch",
                "pass_tokens",
                "eval_every",
                "checkpoint_every",
                "early_stopping",
                "student_layers",
            ),
            *("lora", "decoder_layers", "vocab_size"),
        )
        fraction = self.validation_fraction
        self.require(
            *((name, getattr(self, name) >= 1, "at least 1") for name in counts),
            *((name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1") for name in optional),
            *((name, getattr(self, name) >= 0, "at least 0") for name in ("stride", "context_tokens", "reinit_layers")),
            (
                "bilstm",
                self.bilstm is None or (self.bilstm >= 0 and self.bilstm % 2 == 0),
                "even: each direction has half",
            ),
            ("lm_weight", self.lm_weight is None or 0 <= self.lm_weight < math.inf, "at least 0 and finite"),
            ("warmup", 0 <= self.warmup < 1, "from 0 to below 1 (a fraction of the run)"),
            ("layer_decay", 0 < self.layer_decay <= 1, "above 0 and at most 1"),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "from 0 to below 1"),
            (
                "label_smoothing",
                self.label_smoothing is None or 0 <= self.label_smoothing < 1,
                "from 0 to below 1",
            ),
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
            *(("lm_weight", name) for name in ("frozen", "lora", "teacher")),
            ("tokenizer", "vocab_size"),
            ("mix", "mine_negatives"),
            *(("architecture", name) for name in _OF_PRETRAINED),
        ):
            if getattr(self, first) and getattr(self, second):
                raise UserError(f"{flag(first)} and {flag(second)} exclude each other; leave one out")
        if self.grid:
            names = [name for name in PAPER_GRID if getattr(self, name)]
            if names:
                raise UserError(f"--grid {self.grid} sets {' and '.join(map(flag, names))} itself; leave one out")
        if self.architecture is not None and self.task not in (None, "seq2seq"):
            raise UserError(f"--architecture {self.architecture} is for --task seq2seq, not --task {self.task}")
        if self.architecture is not None and self.model is not None and not _is_new(self.model):
            raise UserError(
                f"--model {self.model}: with --architecture {self.architecture} it is a size, {_either(NEW_SIZES)}, or"
                " the path of a config.json"
            )
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
        new = self.architecture is not None
        grouped = self.task is None or task_class(self.task).reads_groups
        with_groups = _either([task for task in TASKS if task_class(task).reads_groups])
        needs.append(("mine_negatives", f"--task {with_groups}", grouped))
        mines = self.mine_negatives is not None
        names = [item.name for item in fields(MiningFlags) if item.name != "mine_negatives"]
        needs += [(name, "--mine-negatives", mines) for name in names]
        self.mining_options()
        needs.append(("mix", "--more-train", bool(self.more_train)))
        coupled = self.task is None or task_class(self.task).couples
        with_vectors = _either([task for task in TASKS if task_class(task).couples])
        needs.append(("pass_tokens", f"--task {with_vectors}", coupled))
        needs += [(name, "--architecture", new) for name in ("tokenizer", "vocab_size", "cased")]
        defaults = {item.name: item.default for item in fields(self)}
        if self.task is not None:
            taken = {item.name for item in fields(task_class(self.task).settings_type)}
            owners: dict[str, list[str]] = {}
            for task in TASKS:
                for item in fields(task_class(task).settings_type):
                    owners.setdefault(item.name, []).append(task)
            names = [name for name in defaults if name in owners and name not in taken]
            needs += [(name, f"--task {_either(owners[name])}", False) for name in names]
        with_heads = [task for task in TASKS if task_class(task).head_name and not task_class(task).couples]
        over_encoder = self.task is None or self.task in with_heads
        needs += [(name, f"--task {_either(with_heads)}", over_encoder) for name in ("bilstm", "lm_weight")]
        for name, needed, present in needs:
            value = getattr(self, name)
            if not present and value != defaults[name]:
                values = value if isinstance(value, tuple) else () if value is True else (value,)
                raise UserError(
                    f"{' '.join((flag(name), *map(str, values)))} changes nothing without {needed}; leave it out"
                )

    @property
    def length(self) -> int:
        """Return the tokens per sequence."""
        return self.max_length or task_class(self.task or "classification").default_length

    def task_settings(self) -> TaskSettings:
        """Return the settings of the run's task: the flags of the same names, row length and columns. Raises
        `UserError`."""
        kind: type[TaskSettings] = task_class(self.task or "classification").settings_type
        flags = {item.name: getattr(self, item.name) for item in fields(kind) if hasattr(self, item.name)}
        columns = Columns(text=self.text_column, pair=self.pair_column, label=self.label_column, id=self.id_column)
        return kind(**{**flags, "max_length": self.length, "columns": columns})

    def trials(self) -> list[Trial]:
        """Return every combination of the grid with every seed, seeds innermost.

        Raises `UserError` for a configuration that leaves a hyper-parameter open (see `defaults.resolved`).
        """
        source = PAPER_GRID if self.grid else {name: getattr(self, name) for name in PAPER_GRID}
        for name, values in source.items():
            if not values:
                raise UserError(f"{flag(name)} is open: the training set determines it")
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
        epochs = f"{self.epochs:g} epoch{'s' * (self.epochs != 1)}"
        return f"lr {self.lr:g}, batch {self.batch_size}, {epochs}, seed {self.seed}"


# Flags that a model with new weights has no use for.
_OF_PRETRAINED = (
    *("frozen", "gradual_unfreezing", "lora", "reinit_layers", "student_layers", "teacher", "store_delta", "baseline"),
    *("decoder", "bilstm"),
)


def _is_new(model: str) -> bool:
    """Return whether --model is a size, or the path of a config.json."""
    return model in NEW_SIZES or model.endswith(".json")


def _either(names: Sequence[str]) -> str:
    """Return names as alternatives: "a, b or c"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
