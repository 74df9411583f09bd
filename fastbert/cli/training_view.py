"""Progress of `pretrain`, `finetune` and `demo`: bars on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fastbert.io.progress import Bars
from fastbert.training.reporter import Record, Reporter
from fastbert.training.stopping import Stopped

_LINE_SECONDS = 10.0


@contextmanager
def shown(command: str, out: Path, quiet: bool) -> Iterator[Reporter]:
    """Yield the hooks of a run whose progress is shown; say how `command` continues a run that a signal stopped."""
    with Bars(quiet) as bars:
        try:
            yield TrainingView(bars).reporter()
        except Stopped as stopped:
            bars.message(f"saved {stopped.saved}; continue with: fastbert {command} --out {out} --resume")
            raise


class TrainingView:
    """Shows the newest metrics of a run, smoothed over the last few steps, and its validations."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.stage = "training"
        self.update: Callable[..., None] | None = None
        self.smooth: dict[str, float] = {}
        self.last_line = 0.0

    def reporter(self) -> Reporter:
        """Return the hooks for a run."""
        return Reporter(
            on_step=self.step,
            on_validation=self.validation,
            on_message=self.bars.message,
            on_stage=self.bars.stage,
            on_trial=self.trial,
        )

    def trial(self, number: int, total: int, name: str) -> None:
        """Start a new bar for a trial."""
        self.stage, self.update, self.smooth = "training", None, {}
        if total > 1:
            self.stage = f"trial {number} of {total}"
            self.bars.message(f"{self.stage}: {name}")

    def step(self, record: Record, progress: float) -> None:
        """Show an optimiser step."""
        if self.update is None:
            self.update = self.bars.stage(self.stage, 1000)
        for name, value in record.items():
            if isinstance(value, float):
                self.smooth[name] = 0.9 * self.smooth[name] + 0.1 * value if name in self.smooth else value
        detail = (
            f"step {record['step']:,}  {_train_detail(self.smooth)}  {self.smooth['tokens_per_second']:,.0f} tokens/s"
        )
        self.update(int(progress * 1000), detail)
        now = time.monotonic()
        # Without a terminal there is no bar: a line every ten seconds shows in a log file that the run continues.
        if not self.bars.console.is_terminal and (now - self.last_line >= _LINE_SECONDS or progress >= 1.0):
            self.last_line = now
            self.bars.message(f"{progress:6.1%}  {detail}")

    def validation(self, record: Record) -> None:
        """Show a validation as a line that stays."""
        self.bars.message(f"step {record['step']:>6,}  {_validation_detail(record)}")


def _train_detail(metrics: dict[str, float]) -> str:
    """Format the losses of a step: of masked words and sentence pairs in pre-training, of the task in fine-tuning."""
    if "mlm_loss" not in metrics:
        return f"loss {metrics['loss']:.3f}"
    pairs = f"  pairs {metrics['nsp_accuracy']:.0%}" if "nsp_accuracy" in metrics else ""
    return f"masked-LM loss {metrics['mlm_loss']:.2f}  accuracy {metrics['mlm_accuracy']:.0%}{pairs}"


def _validation_detail(record: Record) -> str:
    """Format a validation: the first scores of each file in fine-tuning, losses and accuracies in pre-training."""
    if "scores" in record:
        return "; ".join(
            f"{file}: " + ", ".join(f"{name} {value:.2f}" for name, value in list(scores.items())[:4])
            for file, scores in record["scores"].items()
        )
    pairs = "" if record["nsp_accuracy"] is None else f", pairs {record['nsp_accuracy']:.1%}"
    losses = f"masked-LM loss {record['mlm_loss']:.3f}, accuracy {record['mlm_accuracy']:.1%}"
    return f"validation: {losses}{pairs}"
