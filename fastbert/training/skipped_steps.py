"""Steps that change no weight, since their gradient is not finite: they are counted, and too many end a run."""

from __future__ import annotations

from dataclasses import dataclass

from fastbert.errors import UserError

MOST_IN_A_ROW = 50


class TrainingError(UserError):
    """Training cannot continue, for example after a non-finite gradient."""


@dataclass
class SkippedSteps:
    """The count of a run's or trial's steps without an update."""

    total: int = 0
    in_a_row: int = 0

    def add(self, place: str, cure: str) -> None:
        """Count a step, named by `place`. Raises `TrainingError` after `MOST_IN_A_ROW` of them in a row."""
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row >= MOST_IN_A_ROW:
            raise TrainingError(
                f"{place}: the gradients of {MOST_IN_A_ROW} steps in a row were not finite numbers; {cure}"
            )

    def updated(self) -> None:
        """Note a step with an update."""
        self.in_a_row = 0
