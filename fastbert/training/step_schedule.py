"""The steps that a run takes next: their samples, progress and learning rates, before their batches are made.

In a run by the clock the progress of a step is written to schedule.jsonl, and a resumed run repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fastbert.distributed.world import World
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.schedule_log import FILE, ScheduledStep, ScheduleLog
from fastbert.training.step_spec import Cursor, Position, StepSource, StepSpec


class StepSchedule:
    """The schedule of a run with this budget, which stands at `position`, an object that the run moves."""

    def __init__(self, data: StepSource, config: PretrainConfig, budget: Budget, lr: float, position: Position) -> None:
        """`lr` is the peak learning rate."""
        self.data = data
        self.config = config
        self.budget = budget
        self.lr = lr
        self.position = position
        self.recorded: dict[int, float] = {}
        """Progress of the steps behind the checkpoint of a run by the clock, by number, as it was the first time."""
        self.repeats = True
        """False if the clock decides over the steps behind the checkpoint too, as for a run with another length."""
        self.log: ScheduleLog | None = None
        self._last_progress = 0.0

    def open(self, folder: Path, world: World, name: str) -> None:
        """Open the schedule.jsonl of a run by the clock, in the first process; the steps behind the checkpoint take
        their progress from it. `name` is that of the processes' agreement, unique within the run."""
        if self.budget.seconds is None:
            return
        if world.is_main:
            self.close()
            self.log = ScheduleLog(folder / FILE, self.position.step or None, replay=self.repeats)
        steps = world.shared(name, lambda: {str(line.step): line.progress for line in self._logged()})
        self.recorded = {int(step): progress for step, progress in steps.items()}

    def close(self) -> None:
        """Close the schedule.jsonl, if one is open; the checkpoints that flush it must have been saved."""
        if self.log is not None:
            self.log.close()
            self.log = None

    def __enter__(self) -> StepSchedule:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def following(self) -> Iterator[StepSpec]:
        """Yield the steps that follow the run's position, which may have gone back."""
        self._last_progress = 0.0
        step, cursor = self.position.step, self.position.cursor
        while True:
            spec = self.spec(step, cursor)
            yield spec
            step, cursor = spec.number, spec.after

    def spec(self, step: int, cursor: Cursor) -> StepSpec:
        """Return the step after `step` steps, which begins with the next one or later."""
        seconds, taken = self.position.seconds, self.position.step
        if taken:
            seconds += seconds / taken * (step - taken + 0.5)
        number = step + 1
        progress = self.recorded.get(number)
        if progress is None:
            progress = max(self.budget.progress(step + 0.5, seconds), self._last_progress)
        self._last_progress = progress
        if self.log is not None:
            self.log.append(number, progress)
        spec = self.data.spec(number, cursor, progress)
        return replace(spec, learning_rate=self.lr * self.config.rate_factor(spec.progress))

    def _logged(self) -> Iterable[ScheduledStep]:
        return [] if self.log is None else self.log.values(self.position.step + 1)
