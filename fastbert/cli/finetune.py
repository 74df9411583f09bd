"""`fastbert finetune`: train a pre-trained model on the examples of a task, score it, and write its predictions."""

from __future__ import annotations

from fastbert.cli.training_view import shown
from fastbert.finetuning.config import FinetuneConfig as Config

__all__ = ["Config", "run"]


def run(config: Config, *, quiet: bool = False) -> int:
    """Fine-tune. Raises `Stopped` after Ctrl-C and SIGTERM, with a checkpoint."""
    from fastbert.finetuning import baseline
    from fastbert.finetuning.run import finetune

    with shown("finetune", config.out, quiet) as reporter:
        result = finetune(config, reporter)
    lines = []
    for file, metrics in result.scores.items():
        for name, values in metrics.items():
            spread = f" ± {values['std']:.2f} over {len(values['per_seed'])} seeds" if values["std"] else ""
            lines.append(f"{file}: {name} {values['mean']:.2f}{spread}")
    linear = baseline.read_results(result.folder)
    lines += [] if linear is None else baseline.lines(linear, result.metric, result.scores)
    points = {(trial.trial.lr, trial.trial.batch_size, trial.trial.epochs) for trial in result.trials}
    if len(points) > 1 and result.scores:
        best = result.best
        lines.append(f"best of the grid: lr {best.lr:g}, batch {best.batch_size}, {best.epochs:g} epochs")
    trial = f" ({result.best_trial})" if len(result.trials) > 1 else ""
    lines += [f"model:   {result.model}{trial}", f"results: {result.folder / 'results.json'}"]
    print("\n".join(lines))
    return 0
