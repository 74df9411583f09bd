"""Progress of `pretrain`, `finetune`, `adapt` and `demo`: bars on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fastbert.distributed.environment import launcher
from fastbert.io.progress import Bars, Stage
from fastbert.io.sizes import size_text
from fastbert.training.reporter import Record, Reporter
from fastbert.training.stopping import Stopped

_LAST_STEP = 0.9999  # of the bar
WAITS = 0.05  # of the time of training, waited for data, from which it is shown


@contextmanager
def shown(command: str, out: Path, quiet: bool) -> Iterator[Reporter]:
    """Yield the hooks of a run whose progress is shown; say how `command` continues a run that a signal stopped."""
    with Bars(quiet) as bars:
        try:
            yield TrainingView(bars).reporter()
        except Stopped as stopped:
            resumed = shlex.join([*launcher(), "fastbert", command, "--out", str(out), "--resume"])
            bars.message(f"saved {stopped.saved}; continue with: {resumed}")
            raise


class TrainingView:
    """Shows the newest metrics of a run, smoothed over the last few steps, and its validations.

    All trials of a run share one bar, so that the time left is that of the run.
    """

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.stage: Stage | None = None
        self.trial_number: int = 1
        self.trials: int = 1
        self.smooth: dict[str, float] = {}
        self.costs: list[str] = []
        self.evaluation: Stage | None = None

    def reporter(self) -> Reporter:
        """Return the hooks for a run."""
        return Reporter(
            on_step=self.step,
            on_validation=self.validation,
            on_line=self.line,
            on_message=self.bars.message,
            on_stage=self.bars.stage,
            on_trial=self.trial,
            on_prediction=self.prediction,
        )

    def trial(self, number: int, total: int, name: str) -> None:
        """Begin a trial."""
        self.trial_number, self.trials, self.smooth = number, total, {}
        if number == 1:  # a run of pre-training may have gone before, with a bar of its own
            self.stage, self.costs = None, []
        if total > 1:
            self.bars.message(f"trial {number} of {total}: {name}")

    def step(self, record: Record, progress: float) -> None:
        """Show an optimiser step."""
        name = f"trial {self.trial_number} of {self.trials}" if self.trials > 1 else "training"
        if self.stage is None:
            self.stage = self.bars.stage(name, 1.0)
        for key, value in record.items():
            if isinstance(value, float):
                self.smooth[key] = 0.9 * self.smooth[key] + 0.1 * value if key in self.smooth else value
        losses = _train_details(self.smooth)
        losses.insert(1, f"step {record['step']:,}")
        losses += self.costs
        # The last validation and the report come after the last step: the bar is full at the end of the command.
        done = min((self.trial_number - 1 + progress) / self.trials, _LAST_STEP)
        self.stage(done, "  ".join(losses), rate=f"{self.smooth['tokens_per_second']:,.0f} tokens/s", name=name)

    def line(self, record: Record) -> None:
        """Take what a run costs from its newest line of metrics.jsonl, to show it behind the losses."""
        if record["split"] == "train":
            self.costs = _costs(record)

    def prediction(self, file: str, rows: int, done: float) -> None:
        """Show the part of an evaluation file that is done in a bar of its own, for as long as it takes."""
        name = f"evaluating {file}"
        if self.evaluation is None or self.evaluation.name != name:
            self.evaluation = self.bars.stage(name, 1.0, "rows")
        self.evaluation(done, counted=rows)
        if done >= 1.0:
            self.bars.remove(self.evaluation)
            self.evaluation = None

    def validation(self, record: Record) -> None:
        """Show a validation as a line that stays."""
        self.bars.message(f"step {record['step']:>6,}  {_validation_detail(record)}")


def _train_details(metrics: dict[str, float]) -> list[str]:
    """Format the metrics of a step, the loss first; in pre-training it is that of predicted tokens."""
    if "mlm_loss" not in metrics:
        return [f"loss {metrics['loss']:.3f}"]
    losses = [f"loss {metrics['mlm_loss']:.2f}", f"accuracy {metrics['mlm_accuracy']:.0%}"]
    if "nsp_accuracy" in metrics:
        losses.append(f"pairs {metrics['nsp_accuracy']:.0%}")
    if "rtd_accuracy" in metrics:
        losses.append(f"replaced {metrics['rtd_loss']:.2f}, {metrics['rtd_accuracy']:.0%}")
    return losses


def _costs(record: Record) -> list[str]:
    """Format model FLOPs utilisation, memory, the gradient's norm, skipped steps, masked false negatives, and a long
    wait for data."""
    costs = [f"MFU {record['mfu']:.0%}"] if record.get("mfu") is not None else []
    if record.get("memory_bytes") is not None:
        costs.append(size_text(record["memory_bytes"]))
    if record.get("skipped_steps"):
        costs.append(f"{record['skipped_steps']:,} skipped")
    waited, seconds = record.get("data_seconds") or 0.0, record.get("seconds") or 0.0
    if seconds and waited / seconds >= WAITS:
        costs.append(f"waits {waited / seconds:.0%}")
    if record.get("masked_negatives"):
        costs.append(f"{record['masked_negatives']:,.1f} false negatives masked per step")
    if record.get("gradient_norm") is not None:
        costs.append(f"gradient {record['gradient_norm']:.2g}")
    return costs


def _validation_detail(record: Record) -> str:
    """Format a validation: the first scores of each file in fine-tuning, losses and accuracies in pre-training."""
    if "scores" in record:
        return "; ".join(
            f"{file}: " + ", ".join(f"{name} {value:.2f}" for name, value in list(scores.items())[:4])
            for file, scores in record["scores"].items()
        )
    pairs = "" if record["nsp_accuracy"] is None else f", pairs {record['nsp_accuracy']:.1%}"
    if record.get("rtd_accuracy") is not None:
        pairs += f"; replaced tokens: loss {record['rtd_loss']:.3f}, accuracy {record['rtd_accuracy']:.1%}"
    losses = f"loss {record['mlm_loss']:.3f}, accuracy {record['mlm_accuracy']:.1%}"
    reference = f"; {record['reference']}" if "reference" in record else ""
    return f"validation: {losses}{pairs}{reference}"
