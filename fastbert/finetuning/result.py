"""The result of a whole run, and the last things that a run does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastbert.checkpoints.tokenizer_files import holds_tokenizer
from fastbert.errors import UserError
from fastbert.finetuning import results
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.evaluation import REPORTS, file_names, is_described
from fastbert.finetuning.run_folder import discard
from fastbert.training.plot import plot_trials


@dataclass(frozen=True)
class FinetuneResult:
    """The run's folder, its trials, the best point of the grid (file -> metric -> mean, std, value per seed), and the
    trial whose model was kept."""

    folder: Path
    metric: str
    trials: list[results.TrialResult]
    best: Trial
    best_trial: Trial
    scores: dict[str, dict[str, dict[str, Any]]]
    model: Path
    reports: Path
    """The folder with a report per evaluation file, on the predictions of the kept model."""

    @classmethod
    def of(cls, folder: Path, metric: str, done: Sequence[results.TrialResult]) -> FinetuneResult:
        """Return the result of a run in `folder` whose trials are done."""
        best = results.best_point(done)
        return cls(
            folder=folder,
            metric=metric,
            trials=list(done),
            best=best[0].trial,
            best_trial=results.best_trial(done).trial,
            scores=results.summary(best),
            model=folder / "model",
            reports=folder / REPORTS,
        )

    @classmethod
    def from_dict(cls, folder: Path, values: Mapping[str, Any]) -> FinetuneResult:
        """Return the result that `to_dict` has described."""
        return cls.of(folder, values["metric"], [results.TrialResult.from_dict(trial) for trial in values["trials"]])

    def to_dict(self) -> dict[str, Any]:
        """Return the metric and the trials, from which the rest follows, as JSON stores them."""
        return {"metric": self.metric, "trials": [asdict(result) for result in self.trials]}


def finished(config: FinetuneConfig) -> FinetuneResult | None:
    """Return the result of a finished run, None if trials are left. Completes a run that was killed at its very end."""
    out = config.out
    done = results.read(out)
    if not done or not {result.trial for result in done}.issuperset(config.trials()):
        return None
    model = out / "model"
    if not all((model / name).is_file() for name in ("config.json", "model.safetensors")) or not holds_tokenizer(model):
        raise UserError(f"{out / 'model'}: the finished run's model is gone; train it again with --overwrite")
    if not is_described(out, file_names(config)):
        return None  # a full disk or a kill came after the last trial
    return ended(out, results.metric(out), done)


def ended(out: Path, metric: str, done: list[results.TrialResult], *, plot: bool = True) -> FinetuneResult:
    """Plot the run, if asked to, and remove its checkpoints, unless that was done before."""
    if plot and ((out / "checkpoints").exists() or not (out / "loss.png").exists()):
        with contextlib.suppress(UserError):
            plot_trials(out, metric)
    discard(out / "checkpoints")
    return FinetuneResult.of(out, metric, done)
