"""The results of a run: scores of every trial, mean and standard deviation over seeds, the best point of the grid."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fastbert.errors import CheckpointError
from fastbert.finetuning.config import Trial
from fastbert.finetuning.trial_state import Progress, Scores
from fastbert.io.atomic_write import write_atomic
from fastbert.io.checksums import is_sealed, json_sha256, sealed
from fastbert.io.untrusted_input import read_json_file

FILE, FORMAT_VERSION = "results.json", 1
CONFIG = "config.json"
RUN = "run"
"""Key of what ties the results to the run's inputs."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """The result of a finished trial; `scores` are those of its best step by file, None without evaluation files."""

    trial: Trial
    scores: Scores | None
    value: float | None
    """The score that selects the best model; None where it is undefined, for constant predictions for example."""
    best_step: int
    steps: int
    epochs: float
    """The epochs that were run: fewer than the trial's if early stopping or --steps ended it."""
    tokens: int
    seconds: float
    """The time of training, without evaluations."""

    @classmethod
    def of(cls, trial: Trial, progress: Progress, steps_per_epoch: int) -> TrialResult:
        """Return the result of a trial with this progress."""
        return cls(
            trial=trial,
            scores=progress.best_scores,
            value=progress.best if progress.best is not None and math.isfinite(progress.best) else None,
            best_step=progress.best_step,
            steps=progress.step,
            epochs=round(progress.step / steps_per_epoch, 4),
            tokens=progress.tokens,
            seconds=round(progress.seconds, 3),
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrialResult:
        """Return the result that `asdict` stored."""
        return cls(**{**values, "trial": Trial(**values["trial"])})


def point_of(trial: Trial) -> tuple[float, int, float]:
    """Return the trial's point of the grid."""
    return trial.lr, trial.batch_size, trial.epochs


def best_point(results: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the results of the grid point with the best mean over its seeds; the first of equal ones."""
    points: dict[Any, list[TrialResult]] = {}
    for result in results:
        points.setdefault(point_of(result.trial), []).append(result)

    return max(points.values(), key=lambda point: fmean(_value(result) for result in point))


def best_trial(results: Sequence[TrialResult]) -> TrialResult:
    """Return the trial whose model the run keeps: the best, the first of equal ones."""
    return max(results, key=_value)


def _value(result: TrialResult) -> float:
    return -math.inf if result.value is None else result.value


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, sample standard deviation (None for a single value) and the values."""
    return {
        "mean": round(fmean(values), 4),
        "std": round(stdev(values), 4) if len(values) > 1 else None,
        "per_seed": [round(value, 4) for value in values],
    }


def summary(results: Sequence[TrialResult]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return file -> metric -> spread over the seeds of a grid point, without metrics that a seed lacks."""
    scored = [result.scores for result in results if result.scores is not None]
    if not scored:
        return {}
    return {
        file: {
            metric: spread([scores[file][metric] for scores in scored])
            for metric in scored[0][file]
            if all(metric in scores[file] for scores in scored)
        }
        for file in scored[0]
    }


def settings(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Return learning rate, batch size and epochs of trials that differ in their seed: `epochs` as they were run, the
    mean over the seeds, and `planned_epochs`."""
    trial = results[0].trial
    epochs = round(fmean(result.epochs for result in results), 4)
    return {"lr": trial.lr, "batch_size": trial.batch_size, "epochs": epochs, "planned_epochs": trial.epochs}


def write(
    folder: Path,
    task: str,
    metric: str,
    results: Sequence[TrialResult],
    planned: int,
    baselines: Mapping[str, Mapping[str, Mapping[str, float]]],
    linear_baseline: str | None = None,
    constant_loss: float | None = None,
) -> None:
    """Write results.json: the best point, each point of the grid, each trial, and the baselines: file -> baseline ->
    metric -> score; `linear_baseline` describes the linear one in words; `constant_loss` is the training loss of
    predicting the labels' frequencies alone."""
    best, kept = best_point(results), best_trial(results)
    points: dict[Any, list[TrialResult]] = {}
    for result in results:
        points.setdefault(point_of(result.trial), []).append(result)
    grid = [{**settings(point), "results": summary(point)} for point in points.values()]
    values = {
        "format_version": FORMAT_VERSION,
        "task": task,
        "metric": metric,
        "best": settings(best),
        "model": {**settings([kept]), "seed": kept.trial.seed},
        "results": summary(best),
        "baselines": baselines,
        "grid": grid,
        "trials": [asdict(result) for result in results],
        "finished": len(results) == planned,
    }
    run = _inputs(folder)
    if run is not None:
        values[RUN] = run
    if linear_baseline is not None:
        values["linear_baseline"] = linear_baseline
    if constant_loss is not None:
        values["constant_loss"] = round(constant_loss, 6)
    write_atomic(folder / FILE, json.dumps(sealed(values), indent=2) + "\n")


def stored(folder: Path) -> dict[str, Any]:
    """Return the content of results.json, nothing without the file. Raises `CheckpointError` for a changed one."""
    path = folder / FILE
    return _values(path) if path.exists() else {}


def read(folder: Path) -> list[TrialResult]:
    """Return the finished trials of a run. Raises `CheckpointError` for a changed file."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return [TrialResult.from_dict(values) for values in _values(path)["trials"]]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); start again with --overwrite") from None


def metric(folder: Path) -> str:
    """Return the metric that selects the best model of a run with results."""
    return str(_values(folder / FILE)["metric"])


def _values(path: Path) -> dict[str, Any]:
    values = read_json_file(path)
    if not isinstance(values, dict) or not is_sealed(values):
        raise CheckpointError(
            f"{path}: changed or damaged since it was written; put the run's own back, or start again with --overwrite"
        )
    run = _inputs(path.parent)
    if run is not None and values.get(RUN, run) != run:
        raise CheckpointError(f"{path}: belongs to another run than {CONFIG} beside it; put the run's own back")
    return values


def _inputs(folder: Path) -> str | None:
    """Return the SHA-256 of the model's configuration, vocabulary and data in a run's config.json; None without it."""
    path = folder / CONFIG
    saved = read_json_file(path) if path.exists() else None
    if not isinstance(saved, dict):
        return None
    return json_sha256({name: saved.get(name) for name in ("model", "vocabulary", "data")})
