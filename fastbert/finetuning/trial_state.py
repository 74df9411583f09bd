"""The state of a trial: its progress, its best model, and what a checkpoint stores of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError
from fastbert.finetuning.config import Trial
from fastbert.io.checksums import sha256
from fastbert.io.untrusted_input import read_json_file
from fastbert.training import checkpoint

Scores = dict[str, dict[str, float]]
"""File -> metric -> value."""
BEST = "best-"


@dataclass
class Progress:
    """The progress of a trial, which checkpoints store beside the tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    best_scores: Scores | None = None
    since_best: int = 0
    """Consecutive evaluations without a better score."""
    skipped: int = 0
    """Steps that changed no weight, in fp16 on a GPU."""
    unlogged: list[float] = field(default_factory=list)
    """Losses since the last line of metrics.jsonl."""
    unlogged_parts: list[list[float]] = field(default_factory=list)
    """Their parts, in the order of `Setting.parts`, per step."""

    @classmethod
    def of(cls, state: dict[str, Any]) -> Progress:
        """Read the progress from a checkpoint's state. Raises `CheckpointError`."""
        none = type(None)
        values = {
            "step": checkpoint.require(state, "step", int),
            "tokens": checkpoint.require(state, "tokens", int),
            "seconds": checkpoint.require(state, "seconds", float),
            "best": checkpoint.require(state, "best", (float, none)),
            "best_step": checkpoint.require(state, "best_step", int),
            "best_scores": checkpoint.require(state, "best_scores", (dict, none)),
            "since_best": checkpoint.require(state, "since_best", int),
            "skipped": checkpoint.require({"skipped": 0, **state}, "skipped", int),
            "unlogged": checkpoint.require(state, "unlogged", list),
            "unlogged_parts": checkpoint.require({"unlogged_parts": [], **state}, "unlogged_parts", list),
        }
        parts = values["unlogged_parts"]
        numbers = [values["unlogged"], *parts]
        if not all(isinstance(row, list) and all(isinstance(loss, float | int) for loss in row) for row in numbers):
            raise CheckpointError("the losses since the last line of metrics.jsonl are not numbers")
        return cls(**values)


@dataclass(frozen=True)
class State:
    """A trial's state in state.json of a checkpoint, with its types checked."""

    trial: Trial
    progress: Progress
    best: dict[str, str]
    """SHA-256 of the files of the best model so far, by their paths in its folder."""
    scaler: dict[str, Any]
    meters: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any]) -> State:
        """Read the state of a checkpoint. Raises `CheckpointError`."""
        trial = checkpoint.require(state, "trial", dict)
        kinds = {"lr": float, "batch_size": int, "epochs": float, "seed": int}
        return cls(
            Trial(**{name: checkpoint.require(trial, name, kind) for name, kind in kinds.items()}),
            Progress.of(checkpoint.require(state, "progress", dict)),
            checkpoint.require(state, "best", dict),
            checkpoint.require(state, "scaler", dict),
            checkpoint.require({"meters": {}, **state}, "meters", dict),
        )

    @classmethod
    def reader(cls, folder: Path) -> Callable[[dict[str, Any]], State]:
        """Return a function that reads a state of the checkpoints in `folder`, and compares the best model that it
        names with its SHA-256. The function raises `CheckpointError`."""

        def read(state: dict[str, Any]) -> State:
            trial_state = cls.of(state)
            if trial_state.best != hashes(best_folder(folder, trial_state.progress.best_step)):
                raise CheckpointError(
                    f"the best model that it names, of step {trial_state.progress.best_step:,}, is missing or damaged"
                )
            return trial_state

        return read


def hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder; nothing for a missing folder."""
    if not folder.is_dir():
        return {}
    return {
        str(path.relative_to(folder)): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def best_folder(folder: Path, step: int) -> Path:
    """Return the folder of a trial's best model, that of a step."""
    return folder / f"{BEST}{step:08d}"


def best_step(folder: Path) -> int | None:
    """Return the best step that a checkpoint names; None if its state cannot be read."""
    try:
        return Progress.of(read_json_file(folder / checkpoint.STATE)["progress"]).best_step
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return None
