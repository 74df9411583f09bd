"""The state of a run in its checkpoints, beside weights and optimiser: read with its types checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import shown
from fastbert.training.checkpoint import require
from fastbert.training.metrics import Totals, Window


@dataclass(frozen=True)
class TrainerState:
    """A checkpoint's state with its types checked."""

    step: int
    tokens: int
    seconds: float
    window: Window
    vocabulary: str
    data: str
    scaler: dict[str, Any]
    samples: tuple[int, ...] | None
    """Samples drawn per phase; None in checkpoints of runs that had as many in each step."""
    skipped: int
    """Steps that changed no weight."""
    meters: dict[str, Any]
    """State of `RunMeters`."""
    spikes: dict[str, Any]
    """State of `SpikeDetector`."""
    omitted: tuple[int, ...]
    """Steps that the run leaves out."""

    @classmethod
    def of(cls, state: dict[str, Any]) -> TrainerState:
        """Read the state that `Trainer.save` wrote. Raises `CheckpointError`."""
        window, samples = require(state, "window", dict), state.get("samples")
        if samples is not None and not (isinstance(samples, list) and all(type(count) is int for count in samples)):
            raise CheckpointError(f"the numbers of samples drawn are {shown(samples)}")
        return cls(
            step=require(state, "step", int),
            tokens=require(state, "tokens", int),
            seconds=require(state, "seconds", float),
            window=Window(Totals.from_state(window), require(window, "tokens", int), require(window, "seconds", float)),
            vocabulary=require(state, "vocabulary", str),
            data=require(state, "data", str),
            scaler=require(state, "scaler", dict),
            samples=None if samples is None else tuple(samples),
            skipped=require({"skipped": 0, **state}, "skipped", int),
            meters=require({"meters": {}, **state}, "meters", dict),
            spikes=require({"spikes": {}, **state}, "spikes", dict),
            omitted=tuple(_steps(state.get("omitted", []))),
        )

    def check(self, source: Path, folder: Path, *, vocabulary: str, data: str, phases: int) -> None:
        """Raise `UserError` if the checkpoint `source` is not one of the run in `folder`, with fingerprints of its
        vocabulary and data, and a number of phases."""
        if self.vocabulary != vocabulary:
            raise UserError(
                f"{source}: was trained with a different vocabulary than {folder / 'tokenizer'};"
                " put the run's own tokenizer back"
            )
        if self.data != data:
            raise UserError(
                f"{source}: was trained on token shards other than those given now;"
                " put the run's own back, or start another run with another --out"
            )
        if self.samples is not None and len(self.samples) != phases:
            raise UserError(f"{source}: is of a run of {len(self.samples)} phases, not {phases}")


def _steps(numbers: Any) -> list[int]:
    """Return the numbers of steps in a checkpoint's state. Raises `CheckpointError` for anything else."""
    if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
        raise CheckpointError(f"the steps that the run leaves out are {shown(numbers)}")
    return numbers
