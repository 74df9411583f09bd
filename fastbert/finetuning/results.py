"""The results of a run: scores of every trial, mean and standard deviation over seeds, the best point of the grid."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fastbert.errors import CheckpointError
from fastbert.finetuning.config import Trial
from fastbert.finetuning.fit import Progress, Scores
from fastbert.io.atomic_write import write_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.training.run_record import is_sealed, sealed

FILE, FORMAT_VERSION = "results.json", 1


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """What a finished trial reached: the scores of its best step by file, None where there was nothing to evaluate."""

    trial: Trial
    scores: Scores | None
    value: float | None
    """The score that decides; None where there is none, as of predictions that are all the same."""
    best_step: int
    steps: int
    tokens: int
    seconds: float
    """Of training, evaluations left out."""

    @classmethod
    def of(cls, trial: Trial, progress: Progress) -> TrialResult:
        return cls(
            trial=trial,
            scores=progress.best_scores,
            value=progress.best if progress.best is not None and math.isfinite(progress.best) else None,
            best_step=progress.best_step,
            steps=progress.step,
            tokens=progress.tokens,
            seconds=round(progress.seconds, 3),
        )


def point_of(trial: Trial) -> tuple[float, int, float]:
    """The trial's place in the grid."""
    return trial.lr, trial.batch_size, trial.epochs


def best_point(results: Sequence[TrialResult]) -> list[TrialResult]:
    """The results of the point of the grid that is best in the mean of its seeds; the first where all are equal."""
    points: dict[Any, list[TrialResult]] = {}
    for result in results:
        points.setdefault(point_of(result.trial), []).append(result)

    return max(points.values(), key=lambda some: fmean(_value(result) for result in some))


def kept(results: Sequence[TrialResult]) -> TrialResult:
    """The trial whose model is the run's: the best one, the first of those that are equally good."""
    return max(results, key=_value)


def _value(result: TrialResult) -> float:
    return -math.inf if result.value is None else result.value


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (of a sample; 0 of a single value) and the values themselves."""
    return {
        "mean": round(fmean(values), 4),
        "std": round(stdev(values), 4) if len(values) > 1 else 0.0,
        "per_seed": [round(value, 4) for value in values],
    }


def summary(results: Sequence[TrialResult]) -> dict[str, dict[str, dict[str, Any]]]:
    """Of one point of the grid: file -> metric -> spread over its seeds. A metric that a seed lacks is left out."""
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


def write(folder: Path, task: str, metric: str, results: Sequence[TrialResult], planned: int) -> None:
    """Write results.json: of the best point, of each point of the grid, and of each trial."""
    best = best_point(results)
    points = {point_of(result.trial): None for result in results}
    grid = [
        {
            **dict(zip(("lr", "batch_size", "epochs"), point, strict=True)),
            "results": summary([result for result in results if point_of(result.trial) == point]),
        }
        for point in points
    ]
    values = {
        "format_version": FORMAT_VERSION,
        "task": task,
        "metric": metric,
        "best": dict(zip(("lr", "batch_size", "epochs"), point_of(best[0].trial), strict=True)),
        "model": asdict(kept(results).trial),
        "results": summary(best),
        "grid": grid,
        "trials": [asdict(result) for result in results],
        "finished": len(results) == planned,
    }
    write_atomic(folder / FILE, json.dumps(sealed(values), indent=2) + "\n")


def read(folder: Path) -> list[TrialResult]:
    """The finished trials of a run; none where it has none yet. Raises `CheckpointError` for a file that has changed
    since it was written."""
    path = folder / FILE
    if not path.exists():
        return []
    try:
        return [TrialResult(**{**one, "trial": Trial(**one["trial"])}) for one in _values(path)["trials"]]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error}); start again with --overwrite") from None


def metric(folder: Path) -> str:
    """The metric that decides, of a run with results."""
    return str(_values(folder / FILE)["metric"])


def _values(path: Path) -> dict[str, Any]:
    values = read_json_file(path)
    if not isinstance(values, dict) or not is_sealed(values):
        raise CheckpointError(
            f"{path}: changed or damaged since it was written; put the run's own back, or start again with --overwrite"
        )
    return values
