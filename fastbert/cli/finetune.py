"""`fastbert finetune`: from a pre-trained model and examples to a model of a task, its scores and its predictions."""

from __future__ import annotations

import time
from typing import Any

from fastbert.cli.common import output
from fastbert.finetuning.config import FinetuneConfig as Config
from fastbert.io.progress import Bars

__all__ = ["Config", "run"]


def run(config: Config, *, quiet: bool = False) -> int:
    """Fine-tune with bars on the terminal; 130 after Ctrl-C (saved), 143 after SIGTERM (saved)."""
    from fastbert.finetuning.run import finetune
    from fastbert.training.stopping import Stopped

    with Bars(quiet) as bars:
        view = FinetuneView(bars)
        try:
            result = finetune(config, view.reporter())
        except Stopped as stopped:
            bars.message(f"saved {stopped.saved}; continue with: fastbert finetune --out {config.out} --resume")
            return 128 + stopped.signal
    lines = []
    for file, metrics in result.scores.items():
        for name, values in metrics.items():
            spread = f" ± {values['std']:.2f} over {len(values['per_seed'])} seeds" if values["std"] else ""
            lines.append(f"{file}: {name} {values['mean']:.2f}{spread}")
    several = len({(one.trial.lr, one.trial.batch_size, one.trial.epochs) for one in result.trials}) > 1
    if several and result.scores:
        best = result.best
        lines.append(f"best of the grid: lr {best.lr:g}, batch {best.batch_size}, {best.epochs:g} epochs")
    which = f" ({result.kept})" if len(result.trials) > 1 else ""
    lines += [f"model:   {result.model}{which}", f"results: {result.folder / 'results.json'}"]
    output("\n".join(lines))
    return 0


class FinetuneView:
    """What a run shows: a bar a trial on a terminal, a line now and then elsewhere."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.name, self.update = "training", None  # type: tuple[str, Any]
        self.loss: float | None = None
        self.last_line = 0.0

    def reporter(self) -> Any:
        """The hooks that the run calls."""
        from fastbert.finetuning.log import Reporter

        return Reporter(
            on_step=self.step, on_evaluation=self.evaluation, on_trial=self.trial, on_message=self.bars.message
        )

    def trial(self, number: int, total: int, name: str) -> None:
        """Begin a bar."""
        self.name, self.update, self.loss = "training" if total == 1 else f"trial {number} of {total}", None, None
        if total > 1:
            self.bars.message(f"trial {number} of {total}: {name}")

    def step(self, record: dict[str, Any], progress: float) -> None:
        """Show one optimiser step; the loss is smoothed over the last few."""
        if self.update is None:
            self.update = self.bars.stage(self.name, 1000)
        self.loss = record["loss"] if self.loss is None else 0.9 * self.loss + 0.1 * record["loss"]
        detail = f"step {record['step']:,}  loss {self.loss:.3f}  {record['tokens_per_second']:,.0f} tokens/s"
        self.update(int(progress * 1000), detail)
        now = time.monotonic()
        # Without a terminal there is no bar: a line every ten seconds tells a log file's reader that all is well.
        if not self.bars.console.is_terminal and (now - self.last_line >= 10 or progress >= 1.0):
            self.last_line = now
            self.bars.message(f"{progress:6.1%}  {detail}")

    def evaluation(self, record: dict[str, Any]) -> None:
        """Show an evaluation as a line that stays."""
        scores = "; ".join(
            f"{file}: " + ", ".join(f"{name} {value:.2f}" for name, value in list(metrics.items())[:4])
            for file, metrics in record["scores"].items()
        )
        self.bars.message(f"step {record['step']:>6,}  {scores}")
