"""The flags of averaged weights. Imports no torch: the command line is generated from this class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fastbert.errors import UserError
from fastbert.flags import TRAINING, rare


@dataclass(frozen=True, kw_only=True)
class AveragingFlags:
    """The average of weights that a run validates and saves in place of the last ones."""

    GROUP: ClassVar = TRAINING

    ema: float | None = rare(None)
    """Validate and save an exponential moving average of the weights with this decay, such as 0.999."""
    average_last: int | None = rare(None)
    """Save the mean of the weights of so many last checkpoints, and validate it at the end."""

    def check_flags(self) -> None:
        """Raise `UserError` for values out of range."""
        run: Any = self  # a RunConfig, of which this is a base
        run.require(
            ("ema", self.ema is None or 0 < self.ema < 1, "between 0 and 1, such as 0.999"),
            ("average_last", self.average_last is None or self.average_last >= 2, "at least 2"),
        )
        if self.ema is not None and self.average_last is not None:
            raise UserError("--ema and --average-last exclude each other; leave one out")
        if self.average_last is not None and self.average_last > run.keep_checkpoints:
            raise UserError(
                f"--average-last {self.average_last} needs as many checkpoints, and --keep-checkpoints keeps"
                f" {run.keep_checkpoints}; raise it to {self.average_last}"
            )
