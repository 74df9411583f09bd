"""The picture of a fine-tuning run: the loss of its trials, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastbert.errors import UserError
from fastbert.finetuning.log import Record, read_log
from fastbert.io.atomic_write import atomic_write

KEYS = ("lr", "batch_size", "epochs", "seed")
MOST_NAMED = 10  # trials in a legend


def plot_run(folder: Path, metric: str) -> Path:
    """Draw training loss, and `metric` on the first evaluation file, of each trial into RUN/loss.png.

    Raises `UserError` for a run without metrics.
    """
    from matplotlib.figure import Figure

    records = read_log(folder / "metrics.jsonl")
    if not records:
        raise UserError(f"{folder}: no metrics to plot; a run's folder holds a metrics.jsonl")
    trials: dict[tuple[float, ...], list[Record]] = {}
    for record in records:
        trials.setdefault(tuple(record[key] for key in KEYS), []).append(record)
    scored = any(record["split"] == "validation" for record in records)
    figure = Figure(figsize=(11 if scored else 5.5, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if scored else 1, squeeze=False)[0]
    named = len(trials) <= MOST_NAMED
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
    for one in axes:
        one.grid(alpha=0.25)
        one.spines[["top", "right"]].set_visible(False)
        if named and len(trials) > 1:
            one.legend(frameon=False, fontsize=8)
    out = folder / "loss.png"
    with atomic_write(out) as partial:
        figure.savefig(partial, dpi=120, format="png")
    return out


def _name(key: Sequence[float], every: Sequence[Sequence[float]]) -> str:
    """What tells a trial from the others."""
    differing = [i for i in range(len(KEYS)) if len({other[i] for other in every}) > 1]
    return ", ".join(f"{KEYS[i].replace('_', ' ')} {key[i]:g}" for i in differing)
