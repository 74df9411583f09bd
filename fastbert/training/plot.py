"""Plots of runs: loss and accuracy of pre-training, loss and scores of fine-tuning, with their baselines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeGuard

from fastbert.errors import CheckpointError, UserError
from fastbert.io.figures import bar_style, draw_baseline, figure_file, finish_axes, legend_below, line_style
from fastbert.io.untrusted_input import read_json_file
from fastbert.training.metrics import Metrics, read_metrics, read_records, typed
from fastbert.training.reference_curves import find_reference
from fastbert.training.reporter import Record

TRIAL_KEYS = ("lr", "batch_size", "epochs", "seed")
MAX_LEGEND = 10  # trials in a legend
MAX_NAME = 48  # characters of a run's name in a legend
TRAINING, VALIDATION, PAIRS = "training", "validation", "sentence pairs, validation"
DETECTION = "replaced tokens, validation"
FREQUENCIES, MOST_FREQUENT, CONSTANT = "word frequencies alone", "most frequent word alone", "loss of a constant output"
_FAINT = {"marker": "", "alpha": 0.5, "linewidth": 1.0}  # of training, beside validation
_HOLLOW = {"markerfacecolor": "white", "linestyle": (0, (1, 1.5))}  # of sentence pairs, beside masked words
X_AXES = {"step": "optimiser step", "tokens": "tokens", "seconds": "seconds of training"}


def plot_runs(
    runs: Sequence[Path],
    out: Path,
    *,
    unigram: float | None = None,
    most_frequent: float | None = None,
    x_axis: str = "step",
    compare: str | None = None,
) -> Path:
    """Plot the loss and accuracy of predicted tokens of each run, and where it has them next-sentence accuracy and the
    loss and accuracy on replaced tokens, to `out` (PNG, PDF or SVG by its ending); of runs of fine-tuning training loss
    and the main metric on the first evaluation file.

    `unigram`, the cross-entropy of word frequencies alone, in nats, and `most_frequent`, the share of the most frequent
    word of the masked ones, are drawn as baselines; by default they are read from the config.json of each finished run.
    `compare` draws a band of expected losses on the first run's own text, those of a shipped curve or another run (see
    `fastbert.training.reference_curves.find_reference`); by default what a run was compared with. `x_axis` is `"step"`,
    `"tokens"` or `"seconds"`. Raises `UserError` for a run without metrics, for runs of pre-training and of fine-tuning
    together, and for runs of fine-tuning with different metrics.
    """
    if x_axis not in X_AXES:
        raise UserError(f"x axis {x_axis!r} is not one of {', '.join(X_AXES)}")
    finetuned = [run for run in runs if _is_finetuned(run)]
    if finetuned:
        other = next((run for run in runs if run not in finetuned), None)
        if other is not None:
            raise UserError(f"{finetuned[0]}: is a run of fine-tuning, and {other} is not; plot them separately")
        if compare is not None:
            raise UserError(
                f"--compare {compare}: is for runs of pre-training, and {finetuned[0]} is one of fine-tuning"
            )
        return _plot_finetuned(finetuned, out, x_axis)
    several = len(runs) > 1
    with figure_file(out, 11, 4.2) as figure:
        histories = {run: read_metrics(run / "metrics.jsonl" if run.is_dir() else run) for run in runs}
        for run, history in histories.items():
            if not history:
                raise UserError(f"{run}: no metrics to plot; a run's folder holds a metrics.jsonl")
        records = [record for history in histories.values() for record in history]
        pairs = any(record.nsp_accuracy is not None for record in records)
        detection = any(record.rtd_loss is not None for record in records)
        loss_axes, accuracy_axes = figure.subplots(1, 2)
        for index, history in enumerate(histories.values()):
            style = line_style(index)
            train = [record for record in history if record.split == "train"]
            held_out = [record for record in history if record.split == "validation"]
            for axes, field in ((loss_axes, "mlm_loss"), (accuracy_axes, "mlm_accuracy")):
                _plot(axes, _points(train, x_axis, field), TRAINING, **{**style, **_FAINT})
                _plot(axes, _points(held_out, x_axis, field), VALIDATION, **style, newest=True)
            for axes, field, name in (
                (accuracy_axes, "nsp_accuracy", PAIRS),
                (loss_axes, "rtd_loss", DETECTION),
                (accuracy_axes, "rtd_accuracy", DETECTION),
            ):
                _plot(axes, _points(held_out, x_axis, field), name, **{**style, **_HOLLOW}, newest=True)
        values = {"unigram_cross_entropy": unigram, "most_frequent_share": most_frequent}
        overrides = {key: value for key, value in values.items() if value is not None}
        stored = [(run, _finished(run) | overrides) for run in histories]
        losses = [(run, FREQUENCIES, values.get("unigram_cross_entropy")) for run, values in stored]
        shares = [(run, MOST_FREQUENT, values.get("most_frequent_share")) for run, values in stored]
        baselines = _draw_baselines(loss_axes, losses)
        for run, values in stored[:1]:
            band = _draw_reference(loss_axes, run, histories[run], x_axis, compare, values)
            baselines += [] if band is None else [band]
        baselines += _draw_baselines(accuracy_axes, shares, len(baselines))
        if pairs:
            baselines.append(draw_baseline(accuracy_axes, 0.5, "chance on sentence pairs", len(baselines) or 1))
        loss_axes.set(title="loss on predicted tokens", ylabel="nats per predicted token")
        accuracy_axes.set(title="accuracy", ylabel="fraction correct", ylim=(0, 1))
        for axes in (loss_axes, accuracy_axes):
            _label_x(axes, x_axis)
            finish_axes(axes, legend=not several)
        if several:
            hollow = [name for name, present in ((PAIRS, pairs), (DETECTION, detection)) if present]
            _legend_of_runs(figure, _names(list(histories)), baselines, hollow)
    return out


def plot_trials(folder: Path, metric: str, baselines: Mapping[str, float] | None = None) -> Path:
    """Plot training loss, and `metric` on the first evaluation file, of each trial to RUN/loss.png.

    `baselines` maps the name of a baseline, such as `"majority"`, to its value of the metric; by default those of the
    run's results.json are drawn, as is the `constant_loss` there beside the training loss. Trials that were evaluated
    once are bars with their values. Raises `UserError` for a run without metrics.
    """
    out = folder / "loss.png"
    trials = _trials(folder)
    file = _first_file(trials)
    with figure_file(out, 5.5 if file is None else 11, 4.2) as figure:
        axes = figure.subplots(1, 1 if file is None else 2, squeeze=False)[0]
        named = 1 < len(trials) <= MAX_LEGEND
        names = [_name(key, list(trials)) if named else "" for key in trials]
        for index, lines in enumerate(trials.values()):
            style = {**line_style(index), "marker": "", "linewidth": 1.1}
            _plot(axes[0], _losses(lines, "step"), names[index], **style)
        axes[0].set(title="training loss", ylabel="loss")
        _label_x(axes[0], "step")
        finish_axes(axes[0])
        handles = list(axes[0].get_lines()) if named else []
        loss = _draw_baselines(axes[0], [(folder, CONSTANT, _json(folder / "results.json").get("constant_loss"))])
        if file is not None:
            scores = [_scores(lines, file, metric) for lines in trials.values()]
            if all(len(points) < 2 for points in scores):
                _draw_bars(axes[1], scores, names)
            else:
                axes[1].sharex(axes[0])
                for index, points in enumerate(scores):
                    _plot(axes[1], points, names[index], **line_style(index), newest=named)
                _label_x(axes[1], "step")
                handles = list(axes[1].get_lines()) if named else []
            axes[1].set(title=f"{metric} on {file}", ylabel=metric)
            finish_axes(axes[1])
            if baselines is None:
                baselines = _stored_baselines(folder, file, metric)
            loss += _draw_baselines(axes[1], [(folder, name, value) for name, value in baselines.items()], len(loss))
        legend_below(figure, [*handles, *loss])
    return out


def _plot_finetuned(runs: Sequence[Path], out: Path, x_axis: str) -> Path:
    """Plot training loss and main metric of runs of fine-tuning: a colour per run, a line per trial."""
    from matplotlib.lines import Line2D

    trials = {run: _trials(run) for run in dict.fromkeys(runs)}
    results = {run: _json(_folder(run) / "results.json") for run in trials}
    metrics = {str(values["metric"]): run for run, values in reversed(results.items()) if "metric" in values}
    if len(metrics) > 1:
        (one, first), (two, second) = list(reversed(metrics.items()))[:2]
        raise UserError(f"{first}: its metric is {one}, and that of {second} {two}; plot runs of one metric at a time")
    files = {run: file for run, of_run in trials.items() if (file := _first_file(of_run)) is not None}
    metric = next(iter(metrics), None)
    with figure_file(out, 11 if files and metric else 5.5, 4.2) as figure:
        axes = figure.subplots(1, 2 if files and metric else 1, squeeze=False, sharex=True)[0]
        handles = []
        for index, (run, name) in enumerate(zip(trials, _names(list(trials)), strict=True)):
            style = line_style(index)
            handles.append(Line2D([], [], **style, label=name))
            for lines in trials[run].values():
                _plot(axes[0], _losses(lines, x_axis), "", **{**style, "marker": "", "linewidth": 1.1})
                if metric is not None and run in files:
                    _plot(axes[1], _scores(lines, files[run], metric, x_axis), "", **style)
        axes[0].set(title="training loss", ylabel="loss")
        handles += _draw_baselines(axes[0], [(run, CONSTANT, x.get("constant_loss")) for run, x in results.items()])
        if metric is not None and files:
            names = list(dict.fromkeys(files.values()))
            axes[1].set(title=f"{metric} on {names[0] if len(names) == 1 else f'{len(names)} files'}", ylabel=metric)
            stored = {run: _stored_baselines(_folder(run), file, metric) for run, file in files.items()}
            baselines = [(run, name, value) for run, values in stored.items() for name, value in values.items()]
            handles += _draw_baselines(axes[1], baselines, len(handles) - len(trials))
        for panel in axes:
            _label_x(panel, x_axis)
            finish_axes(panel)
        legend_below(figure, handles)
    return out


def _trials(run: Path) -> dict[tuple[float, ...], list[Record]]:
    """Return the lines of metrics.jsonl of each trial. Raises `UserError` for a run without metrics."""
    records = read_records(_folder(run) / "metrics.jsonl", _trial_line)
    if not records:
        raise UserError(f"{run}: no metrics to plot; a run's folder holds a metrics.jsonl")
    trials: dict[tuple[float, ...], list[Record]] = {}
    for record in records:
        trials.setdefault(tuple(record[key] for key in TRIAL_KEYS), []).append(record)
    return trials


@dataclass(frozen=True)
class _TrialLine:
    """What plots need of a line of a trial's metrics.jsonl."""

    step: int
    split: Literal["train", "validation"]
    tokens: int
    seconds: float
    lr: float
    batch_size: int
    epochs: float
    seed: int
    loss: float | None
    scores: dict[str, Any] | None


def _trial_line(values: Record) -> Record:
    """Return a line of a trial. Raises `TypeError` for another line."""
    line = typed(_TrialLine, {field.name: values.get(field.name) for field in fields(_TrialLine)})
    scores = line.scores or {}
    values_of = [of_file.values() if isinstance(of_file, dict) else [""] for of_file in scores.values()]
    undrawable = any(isinstance(value, str | list | dict) for values in values_of for value in values)
    if undrawable or None in (line.seconds, line.lr, line.epochs) or (line.split == "validation" and not scores):
        raise TypeError("not a trial's line")
    return values


def _first_file(trials: Mapping[tuple[float, ...], Sequence[Record]]) -> str | None:
    """Return the first evaluation file of a run, None before the first evaluation."""
    records = (record for lines in trials.values() for record in lines if record["split"] == "validation")
    return next((next(iter(record["scores"])) for record in records), None)


def _losses(lines: Sequence[Record], x_axis: str) -> list[tuple[float, float]]:
    """Return position and training loss of a trial's steps."""
    return [(line[x_axis], line["loss"]) for line in lines if line["split"] == "train" and line["loss"] is not None]


def _draw_bars(axes: Any, trials: Sequence[Sequence[tuple[float, float]]], names: Sequence[str]) -> None:
    """Draw the only score of each trial as a bar with its value."""
    few = len(trials) <= MAX_LEGEND
    for index, points in enumerate(trials):
        for step, value in points:
            axes.bar(index, value, 0.6, **bar_style(index if few else 0))
            text = f"{value:.4g}\nstep {step:,}" if few else f"{value:.3g}"
            style = {"ha": "center", "fontsize": 8, "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.5}}
            axes.annotate(text, (index, value), (0, 4), textcoords="offset points", **style)
    if not any(trials):
        axes.text(0.5, 0.5, "undefined so far", ha="center", transform=axes.transAxes)
        axes.set_yticks([])
    slanted = {"rotation": 20, "rotation_mode": "anchor", "ha": "right"} if len(trials) > 2 else {}
    axes.set_xticks(range(len(trials)), names, fontsize=8, **slanted)
    axes.set_xlim(-1, len(trials))
    axes.margins(y=0.15)
    axes.set_xlabel("one evaluation" if len(trials) == 1 else f"one evaluation of each of {len(trials)} trials")


def _scores(lines: Sequence[Record], file: str, metric: str, x_axis: str = "step") -> list[tuple[float, float]]:
    """Return the positions at which a trial was evaluated and the scores, without undefined ones."""
    validations = [line for line in lines if line["split"] == "validation"]
    points = [(line[x_axis], line["scores"].get(file, {}).get(metric)) for line in validations]
    return [(step, value) for step, value in points if value is not None and math.isfinite(value)]


def _points(records: Sequence[Metrics], x_axis: str, field: str) -> list[tuple[float, float]]:
    """Return position and value of the records that have the field."""
    points = [(getattr(record, x_axis), getattr(record, field)) for record in records]
    return [point for point in points if point[1] is not None]


def _plot(axes: Any, points: Sequence[tuple[float, float]], label: str, *, newest: bool = False, **style: Any) -> None:
    """Plot a series, a single point as a marker; `newest` adds the last value to the label."""
    if not points:
        return
    if len(points) == 1 and not style.get("marker"):
        style["marker"] = "o"
    if label and newest:
        label = f"{label} ({points[-1][1]:.3g})"
    axes.plot(*zip(*points), **style, label=label or None)


def _label_x(axes: Any, x_axis: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

    axes.set_xlabel(X_AXES[x_axis])
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.xaxis.set_major_formatter(EngFormatter() if x_axis == "tokens" else StrMethodFormatter("{x:,.0f}"))


def _draw_baselines(axes: Any, values: Sequence[tuple[Path, str, object]], first: int = 0) -> list[Any]:
    """Draw the baselines of runs, (run, name, value), once where name and value are the same to three digits, and with
    the run's name where the values of a name differ; return the lines. Values that are no finite number are skipped;
    `first` is the number of baselines in other panels."""
    distinct: dict[tuple[str, str], tuple[Path, float]] = {}
    for run, name, value in values:
        if _is_number(value):
            distinct.setdefault((name, f"{value:.3g}"), (run, float(value)))
    counts = Counter(name for name, _ in distinct)
    return [
        draw_baseline(axes, value, f"{name}, {_names([run])[0]}" if counts[name] > 1 else name, first + index)
        for index, ((name, _), (run, value)) in enumerate(distinct.items())
    ]


def _draw_reference(
    axes: Any, run: Path, history: Sequence[Metrics], x_axis: str, compare: str | None, values: Mapping[str, Any]
) -> Any | None:
    """Draw the expected losses of a run as a band, at the positions of its own metrics; return the band, None where
    nothing is compared, or word frequencies are not known."""
    flags = _json(_folder(run) / "config.json").get("run")
    flags = flags if isinstance(flags, dict) else {}
    stored, unigram = flags.get("compare"), values.get("unigram_cross_entropy")
    if compare and not _is_number(unigram):
        raise UserError(
            f"--compare {compare}: {run} does not hold the cross-entropy of word frequencies until it is finished;"
            " leave --compare out until then"
        )
    if not (compare or stored) or not _is_number(unigram):
        return None
    objective = str(flags.get("objective") or "mlm+nsp")
    try:
        reference = find_reference(str(compare or stored), objective)
    except UserError:
        if compare:
            raise
        return None  # a run that was compared with one that is gone
    points = [
        (getattr(record, x_axis), *losses)
        for record in history
        if (losses := reference.losses(record.tokens, unigram)) is not None
    ]
    if not points:
        return None
    x, low, high = zip(*sorted(points), strict=True)
    return axes.fill_between(x, low, high, color="0.6", alpha=0.35, linewidth=1.5, label=f"expected ({reference.name})")


def _folder(run: Path) -> Path:
    """Return the folder of a run that is named by itself or by its metrics.jsonl."""
    return run if run.is_dir() else run.parent


def _is_finetuned(run: Path) -> bool:
    folder = _folder(run)
    return (folder / "results.json").is_file() or "finetune" in _json(folder / "config.json")


def _finished(run: Path) -> dict[str, Any]:
    """Return what a finished run of pre-training has recorded in its config.json."""
    finished = _json(_folder(run) / "config.json").get("finished")
    return finished if isinstance(finished, dict) else {}


def _stored_baselines(folder: Path, file: str, metric: str) -> dict[str, float]:
    """Return baseline -> value of a metric on a file, as a run's results.json holds them."""
    by_file = _json(folder / "results.json").get("baselines")
    baselines = by_file.get(file) if isinstance(by_file, dict) else None
    if not isinstance(baselines, dict):
        return {}
    values = {name: scores.get(metric) for name, scores in baselines.items() if isinstance(scores, dict)}
    return {name: float(value) for name, value in values.items() if _is_number(value)}


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty where there is none: a baseline is an addition to a plot, not its condition."""
    try:
        values = read_json_file(path) if path.exists() else {}
    except (CheckpointError, OSError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _names(runs: Sequence[Path]) -> list[str]:
    """Return the runs' folder names, or their paths where names repeat."""
    names = [run.name or str(run) for run in runs]
    names = names if len(set(names)) == len(names) else [str(run) for run in runs]
    return [name if len(name) <= MAX_NAME else f"...{name[-MAX_NAME:]}" for name in names]


def _legend_of_runs(figure: Any, names: Sequence[str], baselines: Sequence[Any], hollow: Sequence[str]) -> None:
    """Draw a legend below the panels: each run's colour, line and marker, then the kinds of series, and baselines."""
    from matplotlib.lines import Line2D

    grey = {"color": "0.4", "marker": "o", "markersize": 4.5}
    kinds = {TRAINING: {**grey, **_FAINT}, VALIDATION: grey}
    kinds |= {name: {**grey, **_HOLLOW} for name in hollow}
    styles = {name: line_style(index) for index, name in enumerate(names)} | kinds
    legend_below(figure, [*(Line2D([], [], **style, label=name) for name, style in styles.items()), *baselines])


def _name(key: Sequence[float], trials: Sequence[Sequence[float]]) -> str:
    """Return the hyper-parameters in which a trial differs from the others."""
    differing = [i for i in range(len(TRIAL_KEYS)) if len({other[i] for other in trials}) > 1]
    return ", ".join(f"{TRIAL_KEYS[i].replace('_', ' ')} {key[i]:.10g}" for i in differing)
