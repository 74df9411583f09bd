"""The position of a pre-training run in state.json of its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastbert.training.checkpoint import require
from fastbert.training.metrics import Totals


@dataclass
class Window:
    """Sums of losses since the last line of metrics.jsonl, and the run's tokens and seconds at that line."""

    totals: Totals
    tokens: int
    seconds: float


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

    @classmethod
    def of(cls, state: dict[str, Any]) -> TrainerState:
        """Read the state that `Trainer.save` wrote. Raises `CheckpointError`."""
        window = require(state, "window", dict)
        return cls(
            step=require(state, "step", int),
            tokens=require(state, "tokens", int),
            seconds=require(state, "seconds", float),
            window=Window(Totals.from_state(window), require(window, "tokens", int), require(window, "seconds", float)),
            vocabulary=require(state, "vocabulary", str),
            data=require(state, "data", str),
            scaler=require(state, "scaler", dict),
        )
