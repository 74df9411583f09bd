"""The flags of learning-rate schedules. Imports no torch: the command line is generated from these classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fastbert.errors import UserError
from fastbert.flags import TRAINING, rare
from fastbert.training.schedules import DECAY_FRACTION, Schedule, learning_rate_factor


@dataclass(frozen=True, kw_only=True)
class DecayFlags:
    """The decay of the learning rate in all runs."""

    GROUP: ClassVar = TRAINING

    decay_fraction: float = rare(DECAY_FRACTION)
    """Length of the decay of --schedule wsd, as a fraction of the run."""
    min_lr_ratio: float = rare(0.0)
    """Learning rate that decays end at, as a fraction of --lr."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range, and for those that the schedule does not use."""
        run: Any = self  # a RunConfig, of which this is a base
        run.require(
            ("decay_fraction", 0 < self.decay_fraction <= 1, "above 0 and at most 1 (a fraction of the run)"),
            ("min_lr_ratio", 0 <= self.min_lr_ratio <= 1, "from 0 to 1 (a fraction of --lr)"),
        )
        if run.schedule == "wsd" and run.warmup + self.decay_fraction > 1 + 1e-9:
            raise UserError(
                f"--warmup {run.warmup:g} and --decay-fraction {self.decay_fraction:g} are more than the whole run;"
                " lower one of them"
            )
        if self.min_lr_ratio and run.schedule not in (None, "linear", "cosine", "wsd"):
            raise UserError(
                f"--min-lr-ratio {self.min_lr_ratio:g} changes nothing with --schedule {run.schedule}; leave it out"
            )
        if run.schedule != "wsd" and self.decay_fraction != DECAY_FRACTION:
            raise UserError(
                f"--decay-fraction {self.decay_fraction:g} changes nothing without --schedule wsd; leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class ScheduleFlags(DecayFlags):
    """The learning-rate schedule of pre-training."""

    GROUP: ClassVar = TRAINING

    schedule: Schedule = "linear"
    """Learning rate after the warm-up: linear or cosine decay over the rest of the run, wsd (constant, and at the end a
    decay of 1 minus square root, see --decay-fraction), or constant."""

    def rate_factor(self, progress: float) -> float:
        """Return the learning rate at `progress` (0 to 1) as a fraction of --lr."""
        run: Any = self
        fraction, least = self.decay_fraction, self.min_lr_ratio
        return learning_rate_factor(progress, run.warmup, self.schedule, decay_fraction=fraction, min_ratio=least)
