"""The flags of an adaptation. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, get_args

from fastbert.adaptation.passages import Pairs
from fastbert.data.corpus import CorpusFlags
from fastbert.errors import UserError
from fastbert.flags import DATA, MODEL, OUTPUT, TRAINING, rare, required
from fastbert.io.locations import LocationText
from fastbert.training.run_config import RecordedFlags, RunFolderFlags, TrainingMachineFlags

BATCH_SIZE = 64
"""Pairs per step, as in SimCSE (Gao et al. 2021, appendix A)."""


@dataclass(frozen=True, kw_only=True)
class _Data(CorpusFlags):
    """The text of the domain."""

    GROUP: ClassVar = DATA

    corpus: tuple[LocationText, ...] = required("text files, folders or globs", unless=("resume",), default=())
    """Text of the domain, without labels: files, folders, globs or URLs, as --corpus of `fastbert pretrain`."""
    sentences: int = 50_000
    """Passages of the corpus for contrastive training: a random sample without duplicates."""
    pairs: Pairs = "both"
    """Positive pairs: dropout, each passage with itself under two dropout masks (SimCSE); neighbours, each passage with
    the next one of its document; or half of each."""
    max_length: int = 128
    """Tokens per sequence in both trainings, special tokens included."""
    held_out: float = rare(0.05)
    """Fraction of the corpus, taken from its end, that is not trained on but scored after each stage."""


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model."""

    GROUP: ClassVar = MODEL

    model: str | None = required("the folder of an embedder or of a pre-trained model", unless=("resume",))
    """Folder of the model to adapt: a sentence-transformers embedder, a Hugging Face encoder, or a run; or its id in
    the Hub's cache."""


@dataclass(frozen=True, kw_only=True)
class _Training:
    """The length of the two trainings."""

    GROUP: ClassVar = TRAINING

    pretrain_steps: int | None = None
    """Steps of continued pre-training; 0 skips it (default: as `fastbert pretrain`)."""
    pretrain_epochs: float | None = None
    """Epochs of continued pre-training, perhaps a fraction of one."""
    hours: float | None = None
    """Hours of continued pre-training."""
    contrastive_steps: int | None = None
    """Steps of contrastive training (default: one pass over --sentences)."""
    pretrain_batch_size: int | None = rare(None)
    """Sequences per step of continued pre-training (default: as `fastbert pretrain`)."""
    batch_size: int = BATCH_SIZE
    """Pairs per step of contrastive training; the other pairs of a step give the negatives."""
    pretrain_lr: float | None = None
    """Learning rate of continued pre-training (default: half that of `fastbert pretrain --init`)."""
    contrastive_lr: float | None = None
    """Learning rate of contrastive training (default: by the model's width, as `fastbert finetune`)."""
    dropout: float | None = rare(None)
    """Dropout probability of contrastive training (default: from the model's config; 0.1 if that is 0)."""
    seed: int = 0
    """Seed of the sample, masks and dropout."""


@dataclass(frozen=True, kw_only=True)
class _Output:
    """The folder of the run."""

    GROUP: ClassVar = OUTPUT

    out: Path = Path("runs/adapt")
    """Folder of the run: its stages, results.json, and the embedder in model/."""


@dataclass(frozen=True, kw_only=True)
class AdaptConfig(TrainingMachineFlags, RunFolderFlags, RecordedFlags, _Output, _Training, _Model, _Data):
    """Adapt an embedder to the text of a domain, without labels: continued pre-training, then contrastive training
    (SimCSE). The end of the corpus is held out; masked-LM loss and retrieval of the next passage are measured on it
    before and after."""

    CHANGEABLE: ClassVar = frozenset(("device", "log_every", "checkpoint_activations", "out", "resume", "overwrite"))

    def __post_init__(self) -> None:
        counts = ("contrastive_steps", "pretrain_batch_size")
        positive = ("pretrain_epochs", "hours", "pretrain_lr", "contrastive_lr")
        self.require(
            ("sentences", self.sentences >= 2, "at least 2"),
            ("batch_size", self.batch_size >= 2, "at least 2: the other pairs of a step are negatives"),
            ("pairs", self.pairs in get_args(Pairs), "dropout, neighbours or both"),
            ("max_length", self.max_length >= 4, "at least 4"),
            ("held_out", 0 < self.held_out <= 0.5, "above 0 and at most 0.5"),
            ("pretrain_steps", self.pretrain_steps is None or self.pretrain_steps >= 0, "at least 0"),
            *((name, getattr(self, name) is None or getattr(self, name) >= 1, "at least 1") for name in counts),
            *(
                (name, getattr(self, name) is None or 0 < getattr(self, name) < math.inf, "above 0 and finite")
                for name in positive
            ),
            ("dropout", self.dropout is None or 0 <= self.dropout < 1, "from 0 to below 1"),
            ("seed", 0 <= self.seed < 2**31, "from 0 to 2^31 - 1"),
            ("log_every", self.log_every >= 1, "at least 1"),
        )
        if self.resume and self.overwrite:
            raise UserError("--resume and --overwrite exclude each other; leave one out")
        if self.dropout == 0 and self.pairs != "neighbours":
            raise UserError(f"--dropout 0 makes both texts of --pairs {self.pairs} equal; raise it, or leave it out")
        if self.batch_size > self.sentences:
            raise UserError(f"--batch-size {self.batch_size} is more than --sentences {self.sentences}; lower it")
        if self.pretrain_steps == 0:
            for name in ("pretrain_epochs", "hours", "pretrain_batch_size", "pretrain_lr"):
                if getattr(self, name) is not None:
                    raise UserError(
                        f"--{name.replace('_', '-')} changes nothing with --pretrain-steps 0; leave one of them out"
                    )
