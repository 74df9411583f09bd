"""What a run says of its steps: metrics of each to its reporter, lines of metrics.jsonl and steps.jsonl.

The steps of a GPU are read one after the other, while it computes the next one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastbert.packing import PackedBatch
from fastbert.planning.flops import BatchStatistics
from fastbert.training.device_step import StepStats
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import Metrics, MetricsLog, Totals, Window
from fastbert.training.monitors import Monitors
from fastbert.training.reporter import Reporter
from fastbert.training.skipped_steps import SkippedSteps
from fastbert.training.step_log import ExactStep, StepLog
from fastbert.training.step_spec import StepCounts


class SpikeError(Exception):
    """The loss of a step is far above those before it, and the run is to go back behind it."""

    def __init__(self, step: int, message: str) -> None:
        super().__init__(message)
        self.step = step


@dataclass
class Step:
    """An optimiser step that has been started, but not yet reported."""

    number: int
    counts: StepCounts
    total_tokens: int
    """Tokens of this step and all before it."""
    seconds: float
    """Seconds of training until the step was computed."""
    learning_rate: float
    finished: float
    """The finished fraction of the run."""
    losses: Totals | StepStats
    """The step's own losses; those of a GPU are read later."""
    batches: Sequence[PackedBatch]
    """For the message about a non-finite gradient."""
    logs: bool
    """True if a line of metrics.jsonl follows the step."""
    phase: int = 0
    norm: float = math.nan
    """The norm of the gradient before clipping; that of a GPU is read later, with the losses."""
    weights: int | None = None
    """`weights_sum` after the step, of steps that log on a CPU."""
    omitted: bool = False
    """True if the step was left out, since its loss had been a spike."""

    @property
    def tokens(self) -> int:
        """Return the tokens of the step over all processes."""
        return round(self.counts.tokens)


@dataclass
class StepReports:
    """The reports of a run. `refuse` raises the error for a step whose gradient is not finite.

    Without a folder, as in all processes but the first one, nothing is written.
    """

    reporter: Reporter
    meters: RunMeters
    monitors: Monitors
    refuse: Callable[[int, Totals, Sequence[PackedBatch]], None]
    require_finite_weights: Callable[[str], None] = lambda problem: None
    """Raises an error where a step that changes no weight is one of many: a weight itself is not finite."""
    skips: bool = False
    """True if a non-finite gradient is an event that is counted, and no error."""
    scales: bool = False
    """True if a loss scale makes such gradients ordinary."""
    window: Window = field(default_factory=lambda: Window(Totals(), 0, 0.0))
    pending: deque[Step] = field(default_factory=deque)
    log: MetricsLog | None = None
    steps: StepLog | None = None
    computed_seconds: float = 0.0
    """Seconds of training until the last step that was read."""
    skipped: SkippedSteps = field(default_factory=SkippedSteps)
    """Steps that changed no weight."""

    def open(self, folder: Path, step: int, seconds: float) -> None:
        """Begin the files of a run, or continue those of one that resumes after `step`."""
        self.log = MetricsLog(
            folder / "metrics.jsonl",
            (lambda line: Metrics(**line).step <= step) if step else None,
            self.reporter.on_line,
        )
        self.steps = StepLog(folder, step)
        self.computed_seconds = seconds

    @property
    def flush(self) -> list[Callable[[], object]]:
        """Return the functions that make all lines so far durable."""
        return [log.sync for log in (self.log, self.steps) if log is not None]

    def wait(self) -> None:
        """Wait until the device has computed the newest step."""
        if self.pending and isinstance(self.pending[-1].losses, StepStats):
            self.pending[-1].losses.wait()

    def read(self, keep: int) -> None:
        """Report all but the last `keep` steps, and write the lines that follow them.

        Raises what `refuse` does for a non-finite gradient of a GPU, since such a step must not be saved; the steps
        before it are reported. Raises `SpikeError` for a step that the run is to go back behind.
        """
        while len(self.pending) > keep:
            self._report(self.pending.popleft())

    def _report(self, step: Step) -> None:
        seconds = max(step.seconds - self.computed_seconds, 1e-9)
        self.computed_seconds = step.seconds
        losses = step.losses
        if isinstance(losses, StepStats):
            output, step.norm = losses.read()
            losses = Totals()
            losses.add(output)
        finite = math.isfinite(step.norm)
        if not finite and not (self.skips or self.scales or step.omitted):
            self.refuse(step.number, losses, step.batches)
        self.meters.count(self._flops(step.counts))
        metrics = self._metrics("train", step, losses, step.tokens / seconds)
        if finite:
            self.window.totals.add_totals(losses)
            self.skipped.updated()
        else:
            self._skip(step)
        self.reporter.on_step(metrics.record(), step.finished)
        if self.steps is not None:
            line = ExactStep.of(step.number, metrics.loss, step.norm, step.weights, omitted=step.omitted)
            self.steps.append(line)
        if step.logs:
            self._write_window(step)
        self.monitors.computed(seconds)
        if not step.omitted:
            spike = self.monitors.judge(step.number, metrics.loss, step.phase)
            if spike is not None:
                raise SpikeError(step.number, spike)

    def _skip(self, step: Step) -> None:
        """Count a step that changed no weight. Raises `TrainingError` after too many in a row."""
        if step.omitted:
            self.skipped.total += 1
            return
        self.require_finite_weights(f"step {step.number}: the gradient is not a finite number")
        if not self.scales:
            count = f"{self.skipped.total + 1:,} so far"
            self.reporter.on_message(f"step {step.number:,}: the gradient is not finite; it is skipped ({count})")
        self.skipped.add(f"step {step.number}", "start again in another --out with a lower --lr or a longer --warmup")

    def _write_window(self, step: Step) -> None:
        """Write the line of metrics.jsonl that follows a step: means since the previous line."""
        window, self.window = self.window, Window(Totals(), step.total_tokens, step.seconds)
        if window.totals.sums is None:  # all steps since then were skipped
            return
        seconds = max(step.seconds - window.seconds, 1e-9)
        rate = (step.total_tokens - window.tokens) / seconds
        norm = step.norm if math.isfinite(step.norm) else None
        costs = self.meters.fields(seconds=seconds, gradient_norm=norm, skipped=self.skipped.total)
        line = replace(self._metrics("train", step, window.totals, rate), **costs)
        if self.log is not None:
            self.log.append(line.record())
        self.monitors.line()

    def validated(self, step: Step, totals: Totals, rate: float) -> Metrics:
        """Report a validation after `step`, with `rate` tokens per second; return its line."""
        line = self._metrics("validation", step, totals, rate)
        if self.log is not None:
            self.log.append(line.record())
        self.reporter.on_validation(line.record())
        return line

    def _metrics(self, split: str, step: Step, totals: Totals, rate: float) -> Metrics:
        """Return the means of `totals` as metrics of a step."""
        return Metrics(
            step=step.number,
            split=split,  # type: ignore[arg-type]
            tokens=step.total_tokens,
            tokens_per_second=round(rate, 1),
            learning_rate=step.learning_rate,
            seconds=round(step.seconds, 3),
            **totals.read(),
        )

    def _flops(self, counts: StepCounts) -> float:
        """Return the model FLOPs of a step over all processes, 0 where they are unknown."""
        if self.meters.model is None:
            return 0.0
        statistics = BatchStatistics(
            sequences=counts.sequences,
            tokens=counts.tokens,
            squared_lengths=counts.pairs,
            predictions=counts.predictions,
        )
        return self.meters.model.of(statistics)
