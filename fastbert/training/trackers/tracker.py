"""What all trackers share: the interface, the description of a run, and the numbers in a line of metrics.jsonl."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from fastbert.training.reporter import Record

PROJECT = "fastbert"
"""The project or experiment of runs for which the environment names none."""
POSITIONS = ("step", "split")  # of a line
TRIAL = ("lr", "batch_size", "epochs", "seed")  # of a line of fine-tuning: hyper-parameters, the same in each


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """A run, or a trial of one, as trackers name and describe it."""

    name: str
    group: str = ""
    """The run that a trial belongs to; empty for a run without trials."""
    key: str = ""
    """The name of a trial under which its progress is noted; empty for a run without trials."""
    folder: Path
    """For the tracker's files, shared by all runs that are tracked there."""
    settings: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Flags, shape of the model and versions."""
    step: int = 0
    """The step after which the run continues; 0 at its start."""


class Tracker(ABC):
    """A run as one tracker shows it. All methods may raise whatever the tracker's package raises."""

    name: ClassVar[str]
    rewrites: ClassVar[bool] = False
    """True if the tracker replaces what it had after the step at which a resumed run continues."""
    identity: str
    """What a resumed run needs to continue the same curves."""
    continues: bool
    """Whether these are the curves of an earlier start of the run."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Record numbers, by names such as `train/loss`, at a step of the optimiser."""

    @abstractmethod
    def close(self, *, finished: bool) -> None:
        """Flush everything; `finished` is False for a run that was stopped or failed."""


def numbers(record: Record) -> dict[str, float]:
    """Return the finite numbers in a line of metrics.jsonl by their names in trackers: `train/loss`, and for the scores
    of fine-tuning `validation/dev.tsv/accuracy`."""
    split = record["split"]
    values: dict[str, Any] = {
        f"{split}/{name}": value for name, value in record.items() if name not in (*POSITIONS, *TRIAL, "scores")
    }
    by_file = record.get("scores")
    for file, scores in by_file.items() if isinstance(by_file, Mapping) else ():
        if isinstance(scores, Mapping):
            values |= {f"{split}/{file}/{name}": value for name, value in scores.items()}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def flat_settings(values: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Return nested settings as plain values by dotted names; what is not set is left out."""
    flat: dict[str, bool | int | float | str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            if value:
                flat[f"{prefix}{name}"] = " ".join(map(str, value))
        elif isinstance(value, bool | int | float | str):
            flat[f"{prefix}{name}"] = value
        elif value is not None:
            flat[f"{prefix}{name}"] = str(value)
    return flat
