"""GLUE's tasks: their metrics, and their average by the two common conventions.

- `paper`, that of BERT's Table 1: the mean of nine numbers, MNLI's two test sets counted separately and WNLI left out;
  F1 of MRPC and QQP, Spearman of STS-B, Matthews of CoLA, accuracy of the others.
- `official`, that of the leaderboard: the mean over nine tasks, WNLI among them, where a task with two metrics (MRPC
  and QQP: F1 and accuracy; STS-B: Pearson and Spearman) or two test sets (MNLI) counts with their mean. The
  diagnostics, AX, are not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fastbert.errors import UserError

Convention = Literal["paper", "official"]


GLUE = ("CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI", "AX")
# The metrics of a task whose mean counts, where that is not the accuracy.
METRICS: Mapping[Convention, Mapping[str, tuple[str, ...]]] = {
    "paper": {"CoLA": ("matthews",), "MRPC": ("f1",), "STS-B": ("spearman",), "QQP": ("f1",), "AX": ("matthews",)},
    "official": {
        "CoLA": ("matthews",),
        "MRPC": ("f1", "accuracy"),
        "STS-B": ("pearson", "spearman"),
        "QQP": ("f1", "accuracy"),
        "AX": ("matthews",),
    },
}
AVERAGED: Mapping[Convention, tuple[str, ...]] = {
    "paper": tuple(task for task in GLUE if task not in ("WNLI", "AX")),
    "official": tuple(task for task in GLUE if task != "AX"),
}
_PLAIN = {"".join(filter(str.isalnum, name)).lower(): name for name in GLUE}
_PLAIN |= {"stsb": "STS-B", "mnli": "MNLI-m", "mnlimatched": "MNLI-m", "mnlimismatched": "MNLI-mm", "diagnostic": "AX"}


def glue_name(name: str) -> str:
    """Return GLUE's own name of a task in any spelling: `sst2`, `mnli_mm`, `STS-B`. Raises UserError."""
    task = _PLAIN.get("".join(filter(str.isalnum, name)).lower())
    if task is None:
        raise UserError(f"{name!r} is not a task of GLUE, which are: {', '.join(GLUE)}")
    return task


def glue_numbers(
    results: Mapping[str, float | Mapping[str, float]], convention: Convention = "paper"
) -> dict[str, float]:
    """Return one number per task: the mean of its metrics, in percent, or the result itself if it is a number."""
    numbers: dict[str, float] = {}
    for spelling, result in results.items():
        name = glue_name(spelling)
        if name in numbers:
            raise UserError(f"two results for {name}: leave one out")
        if not isinstance(result, Mapping):
            numbers[name] = float(result)
            continue
        metrics = METRICS[convention].get(name, ("accuracy",))
        missing = [metric for metric in metrics if metric not in result]
        if missing:
            raise UserError(
                f"{name}: no {' and no '.join(missing)} among its results ({', '.join(result) or 'none'}), which the"
                f" {convention} average needs"
            )
        numbers[name] = sum(result[metric] for metric in metrics) / len(metrics)
    return numbers


def glue_average(results: Mapping[str, float | Mapping[str, float]], convention: Convention = "paper") -> float:
    """Compute the average over GLUE; `results` maps each task to its metrics or its number, in percent."""
    if convention not in AVERAGED:
        raise UserError(f"convention={convention!r} must be one of {', '.join(AVERAGED)}")
    numbers = glue_numbers(results, convention)
    missing = [task for task in AVERAGED[convention] if task not in numbers]
    if missing:
        raise UserError(f"no result for {', '.join(missing)}: the {convention} average is over all of them")
    if convention == "official":
        numbers["MNLI"] = (numbers.pop("MNLI-m") + numbers.pop("MNLI-mm")) / 2
    counted = [number for name, number in numbers.items() if name in AVERAGED[convention] or name == "MNLI"]
    return sum(counted) / len(counted)
