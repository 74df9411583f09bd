"""The plot of a fine-tuning run: training loss and validation scores of its trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastbert.errors import UserError
from fastbert.training.metrics import read_records
from fastbert.training.plot import finish_axes, save_figure
from fastbert.training.reporter import Record

KEYS = ("lr", "batch_size", "epochs", "seed")
MAX_LEGEND = 10  # trials in a legend


def plot_run(folder: Path, metric: str) -> Path:
    """Plot training loss, and `metric` on the first evaluation file, of each trial to RUN/loss.png.

    Raises `UserError` for a run without metrics.
    """
    from matplotlib.figure import Figure

    records = read_records(folder / "metrics.jsonl")
    if not records:
        raise UserError(f"{folder}: no metrics to plot; a run's folder holds a metrics.jsonl")
    trials: dict[tuple[float, ...], list[Record]] = {}
    for record in records:
        trials.setdefault(tuple(record[key] for key in KEYS), []).append(record)
    scored = any(record["split"] == "validation" for record in records)
    figure = Figure(figsize=(11 if scored else 5.5, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    named = len(trials) <= MAX_LEGEND
    for index, (key, lines) in enumerate(trials.items()):
        name = _name(key, list(trials)) if named else None
        train = [line for line in lines if line["split"] == "train" and line["loss"] is not None]
        axes[0].plot([x["step"] for x in train], [x["loss"] for x in train], color=f"C{index}", alpha=0.8, label=name)
        validated = [line for line in lines if line["split"] == "validation"]
        if validated:
            first = next(iter(validated[0]["scores"]))
            points = [(x["step"], x["scores"][first][metric]) for x in validated if metric in x["scores"][first]]
            axes[1].plot(*zip(*points), color=f"C{index}", marker="o", markersize=4, label=name)
            axes[1].set(title=f"{metric} on {first}", xlabel="optimiser step", ylabel=metric)
    axes[0].set(title="training loss", xlabel="optimiser step", ylabel="loss")
    for panel in axes:
        finish_axes(panel, legend=named and len(trials) > 1)
    return save_figure(figure, folder / "loss.png")


def _name(key: Sequence[float], trials: Sequence[Sequence[float]]) -> str:
    """Return the hyper-parameters in which a trial differs from the others."""
    differing = [i for i in range(len(KEYS)) if len({other[i] for other in trials}) > 1]
    return ", ".join(f"{KEYS[i].replace('_', ' ')} {key[i]:g}" for i in differing)
