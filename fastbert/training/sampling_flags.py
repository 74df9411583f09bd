"""The flags of how samples are masked, mixed and put together to steps. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from fastbert.errors import UserError
from fastbert.flags import DATA, MACHINE, MODEL, TRAINING, flag, rare

Masking = Literal["token", "whole-word", "span"]
MAX_WORKERS = 256
LARGEST = 1 << 30  # tokens of a step, and epochs


@dataclass(frozen=True, kw_only=True)
class _Masks:
    """What is masked as a whole, and how often anew."""

    GROUP: ClassVar = MODEL

    masking: Masking | None = rare(None)
    """Mask single tokens, all pieces of a word together (as --whole-word), or spans of 1 to 10 words, 3.8 on average
    (SpanBERT) (default: token)."""
    static_masks: int | None = rare(None)
    """Repeat the masks and sentence pairs of the first N epochs in later ones, as the paper's data does (10 there), in
    an order of its own (default: new ones in every epoch)."""


@dataclass(frozen=True, kw_only=True)
class MixtureFlags:
    """How several corpora are mixed."""

    GROUP: ClassVar = DATA

    mix: tuple[float, ...] | None = rare(None)
    """Weight of each --data in the samples of an epoch, of any sum (default: by their sizes). Small ones repeat; large
    ones are sampled without replacement."""

    def check_mixture(self) -> None:
        """Raise `UserError` for weights that are out of range, or not as many as there are --data."""
        data = getattr(self, "data", None)
        if self.mix is not None and data is None and not getattr(self, "resume", False):
            raise UserError("--mix weighs several --data; give their folders with --data")
        if self.mix is not None and data is not None and len(self.mix) != len(data):
            raise UserError(f"--mix has {len(self.mix)} weights for {len(data)} --data; give one for each")
        for weight in self.mix or ():
            if not 0 < weight < math.inf:
                raise UserError(f"--mix {weight:g} must be above 0 and finite")


@dataclass(frozen=True, kw_only=True)
class _Batches:
    """Steps by tokens."""

    GROUP: ClassVar = TRAINING

    batch_tokens: int | None = rare(None)
    """Effective batch size in tokens, special tokens included, instead of --batch-size: a step has as many sequences as
    fit. Nothing is padded, and no sequence attends to another one."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """Micro-batches by tokens, and the threads that prepare them."""

    GROUP: ClassVar = MACHINE

    micro_batch_tokens: int | None = rare(None)
    """Tokens per forward and backward pass, instead of --micro-batch (default with --batch-tokens: those of
    --micro-batch full sequences)."""
    loader_workers: int = rare(1)
    """Threads that prepare batches while a step is computed; 0 prepares them between steps. The batches are the
    same."""


@dataclass(frozen=True, kw_only=True)
class SamplingFlags(MixtureFlags, _Masks, _Batches, _Work):
    """Masks, mixtures and batches."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range, and for flags that contradict each other."""
        for name in ("static_masks", "batch_tokens", "micro_batch_tokens"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST:
                raise UserError(f"{flag(name)} {value} must be from 1 to {LARGEST:,}")
        if not 0 <= self.loader_workers <= MAX_WORKERS:
            raise UserError(f"--loader-workers {self.loader_workers} must be from 0 to {MAX_WORKERS}")
        if getattr(self, "whole_word", False) and self.masking not in (None, "whole-word"):
            raise UserError(f"--whole-word is --masking whole-word, not --masking {self.masking}; leave one out")
        if self.micro_batch_tokens is not None and getattr(self, "micro_batch", None) is not None:
            raise UserError("--micro-batch and --micro-batch-tokens exclude each other; leave one out")
        if self.batch_tokens is not None and getattr(self, "batch_schedule", None) is not None:
            raise UserError("--batch-tokens and --batch-schedule exclude each other; leave one out")
        for name in ("batch_tokens", "micro_batch_tokens"):
            value, longest = getattr(self, name), getattr(self, "longest", 1)
            if value is not None and value < longest:
                raise UserError(f"{flag(name)} {value} is less than one sequence of {longest} tokens; raise it")
        self.check_mixture()

    @property
    def mask_unit(self) -> Masking:
        """Return what is masked as a whole: --masking, or --whole-word."""
        return self.masking or ("whole-word" if getattr(self, "whole_word", False) else "token")
