"""`fastbert pretrain`: from raw text or token shards to a pre-trained model."""

from __future__ import annotations

import time
from typing import Any

from fastbert.cli.common import output
from fastbert.io.progress import Bars
from fastbert.training.config import PretrainConfig as Config

__all__ = ["Config", "run"]


def run(config: Config, *, quiet: bool = False) -> int:
    """Pre-train with bars on the terminal; 130 after Ctrl-C (saved), 143 after SIGTERM (saved)."""
    from fastbert.training.loop import Stopped
    from fastbert.training.pretrain import pretrain

    with Bars(quiet) as bars:
        view = TrainingView(bars, quiet)
        try:
            result = pretrain(config, view.reporter())
        except Stopped as stopped:
            bars.message(f"saved {stopped.saved}; continue with: fastbert pretrain --out {config.out} --resume")
            return 128 + stopped.signal
    validation = result.validation
    lines = [
        f"validation: masked-LM loss {validation.mlm_loss:.3f} nats (word frequencies alone:"
        f" {result.unigram_cross_entropy:.3f}), accuracy {validation.mlm_accuracy:.1%}",
    ]
    if validation.nsp_accuracy is not None:
        pairs = "sentence-order" if config.objective == "mlm+sop" else "next-sentence"
        lines.append(f"            {pairs} accuracy {validation.nsp_accuracy:.1%} (chance is 50 %)")
    lines += [f"model:      {result.model}", f"loss curve: {result.loss_curve}"]
    output("\n".join(lines))
    return 0


class TrainingView:
    """What `pretrain` shows: a bar with the newest figures on a terminal, a line now and then elsewhere."""

    def __init__(self, bars: Bars, quiet: bool) -> None:
        self.bars, self.quiet = bars, quiet
        self.update: Any = None
        self.smooth: dict[str, float] = {}
        self.last_line = 0.0

    def reporter(self) -> Any:
        """The hooks that the training loop calls."""
        from fastbert.training.loop import Reporter

        return Reporter(
            on_step=self.step,
            on_validation=self.validation,
            on_message=self.bars.message,
            on_stage=self.bars.stage,
        )

    def step(self, metrics: Any, progress: float) -> None:
        """Show one optimiser step; the figures are smoothed over the last few."""
        if self.update is None:
            self.update = self.bars.stage("training", 1000)
        for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "tokens_per_second"):
            value = getattr(metrics, name)
            if value is not None:
                self.smooth[name] = value if name not in self.smooth else 0.9 * self.smooth[name] + 0.1 * value
        detail = (
            f"step {metrics.step:,}  masked-LM loss {self.smooth['mlm_loss']:.2f}  accuracy"
            f" {self.smooth['mlm_accuracy']:.0%}"
        )
        if "nsp_accuracy" in self.smooth:
            detail += f"  pairs {self.smooth['nsp_accuracy']:.0%}"
        detail += f"  {self.smooth['tokens_per_second']:,.0f} tokens/s"
        self.update(int(progress * 1000), detail)
        now = time.monotonic()
        # Without a terminal there is no bar: a line every ten seconds tells a log file's reader that all is well.
        if not self.bars.console.is_terminal and (now - self.last_line >= 10 or progress >= 1.0):
            self.last_line = now
            self.bars.message(f"{progress:6.1%}  {detail}")

    def validation(self, metrics: Any) -> None:
        """Show a validation as a line that stays."""
        pairs = "" if metrics.nsp_accuracy is None else f", pairs {metrics.nsp_accuracy:.1%}"
        self.bars.message(
            f"step {metrics.step:>6,}  validation: masked-LM loss {metrics.mlm_loss:.3f},"
            f" accuracy {metrics.mlm_accuracy:.1%}{pairs}"
        )
