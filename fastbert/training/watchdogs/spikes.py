"""Loss spikes: a step whose loss is far above those before it, judged by median and median absolute deviation.

Decisions are a function of the losses alone, and the window travels in checkpoints, so a resumed run decides as an
uninterrupted one does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from fastbert.errors import CheckpointError

NORMAL_DEVIATIONS = 1.4826  # standard deviations of a normal distribution per median absolute deviation

Kind = Literal["normal", "spike", "diverged", "non-finite"]


@dataclass(frozen=True)
class Decision:
    """The judgement of one step's loss."""

    kind: Kind
    loss: float
    median: float | None = None
    """Of the losses before it; None while there are too few to judge."""
    deviations: float = 0.0
    """The distance from the median in robust standard deviations."""

    @property
    def is_spike(self) -> bool:
        """Return True for a step that a run may skip or roll back: its loss is not finite, or far too high."""
        return self.kind != "normal"

    def describe(self, step: int) -> str:
        """Return the decision in one line."""
        if self.kind == "non-finite":
            return f"step {step:,}: the loss is {self.loss}, which is not a finite number"
        if self.kind == "normal":
            return f"step {step:,}: loss {self.loss:.3f}"
        text = f"step {step:,}: the loss {self.loss:.3f} is {self.deviations:.0f} deviations above the recent"
        text += f" {self.median:.3f}"
        if self.kind == "diverged":
            return f"{text} and has stayed there: the run diverges; lower --lr, or lengthen --warmup"
        return text


class SpikeDetector:
    """Judges the loss of each step against those of the steps before it.

    A loss is a spike where it is both `deviations` robust standard deviations and `least` nats above the median of the
    last `window` accepted losses. Losses that fall are never spikes. Spikes do not enter the window, so that one does
    not hide the next; after `patience` of them in a row the losses have moved for good: the run has diverged, and the
    window begins anew.
    """

    def __init__(
        self,
        *,
        window: int = 128,
        warm: int = 32,
        deviations: float = 8.0,
        least: float = 0.3,
        patience: int = 20,
    ) -> None:
        """Below `warm` accepted losses nothing is judged, non-finite ones aside."""
        self.window = window
        self.warm = warm
        self.deviations = deviations
        self.least = least
        self.patience = patience
        self.losses: deque[float] = deque(maxlen=window)
        self.in_a_row: int = 0

    def judge(self, loss: float) -> Decision:
        """Return the decision about the next step's loss, in nats, and remember it."""
        if not math.isfinite(loss):
            return Decision("non-finite", loss)
        if len(self.losses) < self.warm:
            self.losses.append(loss)
            return Decision("normal", loss)
        middle = median(self.losses)
        # A window of equal losses has no deviation; a hundredth of the loss is noise of any batch.
        scale = max(NORMAL_DEVIATIONS * median(abs(other - middle) for other in self.losses), 0.01 * abs(middle), 1e-6)
        distance = (loss - middle) / scale
        if distance < self.deviations or loss - middle < self.least:
            self.losses.append(loss)
            self.in_a_row = 0
            return Decision("normal", loss, middle, distance)
        self.in_a_row += 1
        if self.in_a_row < self.patience:
            return Decision("spike", loss, middle, distance)
        self.reset()
        self.losses.append(loss)
        return Decision("diverged", loss, middle, distance)

    def reset(self) -> None:
        """Forget the losses before: a new phase, with sequences of another length or other masks, has other losses."""
        self.losses.clear()
        self.in_a_row = 0

    def to_state(self) -> dict[str, Any]:
        """Return the window as JSON stores it exactly, for a checkpoint's state."""
        return {"losses": [loss.hex() for loss in self.losses], "in_a_row": self.in_a_row}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with the window that `to_state` stored. Raises `CheckpointError`."""
        try:
            losses = [float.fromhex(loss) for loss in state["losses"]]
            in_a_row = int(state["in_a_row"])
        except (KeyError, TypeError, ValueError, OverflowError):
            raise CheckpointError("the window of the spike detector in the checkpoint's state is damaged") from None
        self.losses = deque(losses, maxlen=self.window)
        self.in_a_row = in_a_row
