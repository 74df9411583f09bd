"""Write one HTML page that compares runs: all their metrics, settings and last values, with nothing from the network.

The page holds the numbers as JSON and draws them with a script of its own. Names of runs and files come from anyone, so
they reach the page through `textContent` alone, and its content security policy allows no other script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.figures import COLORS
from fastbert.io.text import whole_characters
from fastbert.io.untrusted_input import read_json_file
from fastbert.training.metrics import read_records
from fastbert.training.model_card import UNRECORDED
from fastbert.training.reporter import Record
from fastbert.training.trackers.tracker import TRIAL, flat_settings, numbers

AXES = ("step", "tokens", "seconds", "epoch")
MOST_POINTS = 2_000  # of a curve; longer ones keep evenly spaced points and the extremes between them
FLAGS = ("run", "finetune")  # where config.json holds the flags of a run
FIRST = ("mlm_loss", "loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy", "rtd_loss", "rtd_accuracy")
"""The metrics whose charts come first; all others follow in alphabetical order."""
TRAINING_ONLY = ("tokens_per_second", "learning_rate")
BLACK_ON_DARK = "#8c96a1"  # of a series that is black in print


def write_page(runs: Sequence[Path], out: Path, *, x_axis: str = "step") -> Path:
    """Write the page of `runs`, folders of pre-training or fine-tuning or their metrics.jsonl, to `out`; return it.

    `x_axis` is chosen when the page opens: `"step"`, `"tokens"` or `"seconds"`. Raises `UserError` for a run without
    metrics, and for lines that are not a run's.
    """
    described = [_run(run) for run in dict.fromkeys(runs)]
    if not described:
        raise UserError("no runs to show; name the folder of one")
    names = _names([run["path"] for run in described])
    for run, name in zip(described, names, strict=True):
        run["name"] = name
    settings = [run.pop("settings") for run in described]
    last = [run.pop("last") for run in described]
    metrics = {name for run in described for curve in run["curves"] for name in curve["y"]}
    axes = [axis for axis in AXES if any(axis in curve["x"] for run in described for curve in run["curves"])]
    lines = sum(len(curve["x"]["step"]) for run in described for curve in run["curves"])
    content = {
        "runs": described,
        "metrics": sorted(metrics, key=_order),
        "axes": axes,
        "x": x_axis,
        "colors": [BLACK_ON_DARK if color == "#000000" else color for color in COLORS],
        "settings": _table(settings, sorted({name for values in settings for name in values})),
        "last": _table(last, sorted({name for values in last for name in values}, key=_order)),
        "about": f"{len(described)} run{'s' * (len(described) != 1)}, {lines:,} points. Point at a chart for values,"
        " drag in it to zoom, double-click for the whole range; dotted lines are baselines.",
    }
    title = f"{names[0]}: training curves" if len(names) == 1 else f"{len(names)} runs: training curves"
    write_atomic(out, _page(title, content))
    return out


def _page(title: str, content: Mapping[str, Any]) -> str:
    """Return the markup, with the script's hash in its content security policy."""
    folder = resources.files(__package__)
    markup, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Within a script element, only "<" can begin something else; the two separators end lines in old readers.
    text = json.dumps(_finite(content), ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Template(markup).substitute(
        title=html.escape(title),
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
        data=whole_characters(text),
    )


def _run(run: Path) -> dict[str, Any]:
    """Return a run's curves, settings, last values and baselines."""
    folder = run if run.is_dir() else run.parent
    lines = read_records(folder / "metrics.jsonl" if run.is_dir() else run)
    if not lines:
        raise UserError(f"{run}: no metrics to show; a run's folder holds a metrics.jsonl")
    curves: dict[tuple[str, str], list[Record]] = {}
    differing = [key for key in TRIAL if len({str(line.get(key)) for line in lines}) > 1]
    for number, line in enumerate(lines, start=1):
        if line.get("split") not in ("train", "validation") or not isinstance(line.get("step"), int):
            raise UserError(f"{run}: line {number} of metrics.jsonl is not a metrics record")
        curves.setdefault((_label(line, differing), line["split"]), []).append(line)
    drawn = [_curve(label, split, lines) for (label, split), lines in curves.items()]
    config, results = _json(folder / "config.json"), _json(folder / "results.json")
    flags: dict[str, Any] = next((config[name] for name in FLAGS if isinstance(config.get(name), dict)), {})
    settings = {name: value for name, value in flags.items() if name not in UNRECORDED}
    model = config.get("model")
    return {
        "path": str(run),
        "curves": drawn,
        "baselines": _baselines(config, results),
        "settings": flat_settings({**settings, **({"model": model} if isinstance(model, dict) else {})}),
        "last": _last_values(lines),
    }


def _label(line: Record, differing: Sequence[str]) -> str:
    """Return the hyper-parameters in which a line's trial differs from the others, empty in pre-training."""
    return ", ".join(f"{key.replace('_', ' ')} {line.get(key)}" for key in differing)


def _curve(label: str, split: str, lines: Sequence[Record]) -> dict[str, Any]:
    """Return the numbers of a split as columns, thinned out if there are too many to draw."""
    columns: dict[str, list[float | None]] = {}
    values = [{name.partition("/")[2]: value for name, value in numbers(line).items()} for line in lines]
    if split == "validation":  # its rate is that of forward passes, and the learning rate is shown once
        values = [{name: row[name] for name in row if name not in TRAINING_ONLY} for row in values]
    for index, row in enumerate(values):
        for name, value in row.items():
            columns.setdefault(name, [None] * len(lines))[index] = value
    axes = {"step": [float(line["step"]) for line in lines]}
    axes |= {name: columns.pop(name) for name in AXES[1:] if name in columns}  # type: ignore[misc]
    kept = _thinned(columns, len(lines))
    return {
        "label": label,
        "split": split,
        "x": {name: [column[i] for i in kept] for name, column in axes.items()},
        "y": {name: [column[i] for i in kept] for name, column in columns.items()},
    }


def _thinned(columns: Mapping[str, Sequence[float | None]], count: int) -> list[int]:
    """Return the indices to draw: all, or evenly spaced ones and the extremes of loss and gradient between them."""
    if count <= MOST_POINTS:
        return list(range(count))
    stride = math.ceil(count / (MOST_POINTS // 4))
    kept = {0, count - 1, *range(0, count, stride)}
    for name in ("mlm_loss", "loss", "gradient_norm"):
        column = columns.get(name, ())
        for begin in range(0, len(column), stride):
            bucket = [(value, i) for i in range(begin, min(begin + stride, count)) if (value := column[i]) is not None]
            if bucket:
                kept |= {min(bucket)[1], max(bucket)[1]}
    return sorted(kept)


def _last_values(lines: Sequence[Record]) -> dict[str, float]:
    """Return the newest value of each metric of a run, by split."""
    last: dict[str, float] = {}
    for line in lines:
        last["step"] = line["step"]
        last |= {
            name: value
            for name, value in numbers(line).items()
            if line["split"] == "train" or name.partition("/")[2] not in (*TRAINING_ONLY, *AXES)
        }
    return last


def _baselines(config: Mapping[str, Any], results: Mapping[str, Any]) -> dict[str, float]:
    """Return the values to draw as lines: word frequencies in pre-training, a constant output in fine-tuning."""
    finished = config.get("finished")
    stored = finished if isinstance(finished, dict) else {}
    values = {
        "mlm_loss": stored.get("unigram_cross_entropy"),
        "mlm_accuracy": stored.get("most_frequent_share"),
        "loss": results.get("constant_loss"),
    }
    by_file = results.get("baselines")
    for file, baselines in (by_file if isinstance(by_file, dict) else {}).items():
        majority = baselines.get("majority") if isinstance(baselines, dict) else None
        for metric, value in (majority if isinstance(majority, dict) else {}).items():
            values[f"{file}/{metric}"] = value
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


def _table(columns: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[list[Any]]:
    """Return rows of a name and its value in each column, None where a column lacks it."""
    return [[name, [column.get(name) for column in columns]] for name in names]


def _order(name: str) -> tuple[int, str]:
    inner = name.partition("/")[2] if name.startswith(("train/", "validation/")) else name
    rank = FIRST.index(inner) if inner in FIRST else len(FIRST) + ("/" not in inner)
    return rank, name


def _names(paths: Sequence[str]) -> list[str]:
    """Return the names of the runs' folders, with as much of their paths as tells them apart."""
    parts = [Path(path).absolute().parts for path in paths]
    parts = [part[:-1] if part[-1] == "metrics.jsonl" else part for part in parts]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]).replace("//", "/") for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(part[-1:])} ({number})" for number, part in enumerate(parts, start=1)]


def _finite(value: Any) -> Any:
    """Return a value as JSON has it: what is not a finite number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _json(path: Path) -> dict[str, Any]:
    """Return a JSON object, empty where there is none: the curves are shown without it."""
    try:
        values = read_json_file(path) if path.exists() else {}
    except (CheckpointError, OSError):
        return {}
    return values if isinstance(values, dict) else {}
