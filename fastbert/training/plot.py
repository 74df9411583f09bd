"""Plots of runs: loss and accuracy of pre-training, loss and scores of fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.atomic_write import atomic_write
from fastbert.training.metrics import Metrics, read_metrics, read_records
from fastbert.training.reporter import Record

TRIAL_KEYS = ("lr", "batch_size", "epochs", "seed")
MAX_LEGEND = 10  # trials in a legend


def plot_runs(runs: Sequence[Path], out: Path, *, unigram: float | None = None, x_axis: str = "step") -> Path:
    """Plot masked-LM loss, accuracy and, where there is one, next-sentence accuracy of each run to `out` (PNG, PDF or
    SVG by its ending).

    `unigram` adds a line at the cross-entropy of word frequencies alone, in nats; `x_axis` is `"step"`, `"tokens"` or
    `"seconds"`. Raises `UserError` for a run without metrics.
    """
    from matplotlib.figure import Figure

    if x_axis not in ("step", "tokens", "seconds"):
        raise UserError(f"x axis {x_axis!r} is not one of step, tokens, seconds")
    if not out.name:
        raise UserError(f"{str(out)!r} is not a file name; end it in .png, .pdf or .svg")
    histories = {run: read_metrics(run / "metrics.jsonl" if run.is_dir() else run) for run in runs}
    for run, history in histories.items():
        if not history:
            raise UserError(f"{run}: no metrics to plot; a run's folder holds a metrics.jsonl")
    pairs = any(record.nsp_accuracy is not None for history in histories.values() for record in history)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    for index, (run, history) in enumerate(histories.items()):
        color = f"C{index}"
        name = (run.name or str(run)) if len(histories) > 1 else ""
        train = [record for record in history if record.split == "train"]
        held_out = [record for record in history if record.split == "validation"]
        for axes, field, marker in ((loss_axes, "mlm_loss", "o"), (accuracy_axes, "mlm_accuracy", "o")):
            _plot(axes, train, x_axis, field, color=color, alpha=0.45, label=f"{name} masked LM, training".strip())
            label = f"{name} masked LM, validation".strip()
            _plot(axes, held_out, x_axis, field, color=color, marker=marker, markersize=4, label=label)
        if pairs:
            label = f"{name} sentence pairs, validation".strip()
            style = {"color": color, "marker": "s", "markersize": 3, "linestyle": "--", "label": label}
            _plot(accuracy_axes, held_out, x_axis, "nsp_accuracy", **style)
    if unigram is not None:
        loss_axes.axhline(unigram, color="0.4", linestyle=":", label=f"word frequencies alone ({unigram:.2f})")
    titles = {"step": "optimiser step", "tokens": "tokens", "seconds": "seconds of training"}
    loss_axes.set(title="loss on masked tokens", xlabel=titles[x_axis], ylabel="nats per masked token")
    accuracy_axes.set(title="accuracy", xlabel=titles[x_axis], ylabel="fraction correct", ylim=(0, 1))
    for axes in (loss_axes, accuracy_axes):
        finish_axes(axes, legend=True)
    return save_figure(figure, out)


def finish_axes(axes: Any, *, legend: bool) -> None:
    """Apply the style of all plots: a light grid, no frame on the top and right."""
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend:
        axes.legend(frameon=False, fontsize=8)


def save_figure(figure: Any, out: Path) -> Path:
    """Replace an image as a whole. Raises `UserError` for a name whose ending matplotlib does not support."""
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(out) as partial:
            figure.savefig(partial, dpi=120, format=out.suffix.removeprefix("."))
    except ValueError as error:
        raise UserError(f"{out}: {error}; end the name in .png, .pdf or .svg") from None
    return out


def _plot(axes: Any, records: Sequence[Metrics], x_axis: str, field: str, **style: object) -> None:
    """Plot a field of the records that have it."""
    points = [(getattr(record, x_axis), getattr(record, field)) for record in records]
    points = [point for point in points if point[1] is not None]
    if points:
        axes.plot(*zip(*points), **style)


def plot_trials(folder: Path, metric: str) -> Path:
    """Plot training loss, and `metric` on the first evaluation file, of each trial to RUN/loss.png.

    Raises `UserError` for a run without metrics.
    """
    from matplotlib.figure import Figure

    records = read_records(folder / "metrics.jsonl")
    if not records:
        raise UserError(f"{folder}: no metrics to plot; a run's folder holds a metrics.jsonl")
    trials: dict[tuple[float, ...], list[Record]] = {}
    for record in records:
        trials.setdefault(tuple(record[key] for key in TRIAL_KEYS), []).append(record)
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
    differing = [i for i in range(len(TRIAL_KEYS)) if len({other[i] for other in trials}) > 1]
    return ", ".join(f"{TRIAL_KEYS[i].replace('_', ' ')} {key[i]:g}" for i in differing)
