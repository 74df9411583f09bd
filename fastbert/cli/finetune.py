"""`fastbert finetune`: train a pre-trained model on the examples of a task, score it, and write its predictions."""

from __future__ import annotations

from fastbert.cli.common import output
from fastbert.cli.training_view import TrainingView
from fastbert.finetuning.config import FinetuneConfig as Config
from fastbert.io.progress import Bars

__all__ = ["Config", "run"]


def run(config: Config, *, quiet: bool = False) -> int:
    """Fine-tune; return 130 after Ctrl-C and 143 after SIGTERM, both with a checkpoint."""
    from fastbert.finetuning.run import finetune
    from fastbert.training.stopping import Stopped

    with Bars(quiet) as bars:
        try:
            result = finetune(config, TrainingView(bars).reporter())
        except Stopped as stopped:
            bars.message(f"saved {stopped.saved}; continue with: fastbert finetune --out {config.out} --resume")
            return 128 + stopped.signal
    lines = []
    for file, metrics in result.scores.items():
        for name, values in metrics.items():
            spread = f" ± {values['std']:.2f} over {len(values['per_seed'])} seeds" if values["std"] else ""
            lines.append(f"{file}: {name} {values['mean']:.2f}{spread}")
    points = {(trial.trial.lr, trial.trial.batch_size, trial.trial.epochs) for trial in result.trials}
    if len(points) > 1 and result.scores:
        best = result.best
        lines.append(f"best of the grid: lr {best.lr:g}, batch {best.batch_size}, {best.epochs:g} epochs")
    trial = f" ({result.kept})" if len(result.trials) > 1 else ""
    lines += [f"model:   {result.model}{trial}", f"results: {result.folder / 'results.json'}"]
    output("\n".join(lines))
    return 0
