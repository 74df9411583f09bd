"""The watchdogs of a pre-training run, behind the few calls that its loop makes: memory, stalled data, disk space and
loss spikes. Each reports through messages; what to do about a spike is the loop's decision."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from fastbert.training.checkpoint import find
from fastbert.training.config import PretrainConfig
from fastbert.training.watchdogs.data_stalls import DataWatch
from fastbert.training.watchdogs.disk_space import BYTES_PER_PARAMETER, DiskSpace, disk_space
from fastbert.training.watchdogs.host_memory import MemoryWatch
from fastbert.training.watchdogs.spikes import SpikeDetector

MEMORY_SECONDS = 5.0  # between looks at the memory
SPIKE_STEPS = 50  # after a message about a spike, without another one


class Monitors:
    """The watchdogs of a run, but for the plateau doctor, which reads the lines of metrics.jsonl (`watching`)."""

    def __init__(
        self,
        config: PretrainConfig,
        folder: Path,
        device: torch.device,
        parameters: int,
        on_message: Callable[[str], None],
    ) -> None:
        self.config = config
        self.folder = folder
        self.parameters = parameters
        self.on_message = on_message
        self.data: DataWatch = DataWatch(on_message, ["--loader-workers"])
        cures = ["--micro-batch", *([] if config.checkpoint_activations else ["--checkpoint-activations"])]
        self.memory: MemoryWatch | None = MemoryWatch(on_message, cures) if device.type == "cpu" else None
        self.spikes: SpikeDetector = SpikeDetector()
        self._looked = -math.inf
        self._phase = 0
        self._told_space = False
        self._quiet_until = 0

    def begin(self) -> None:
        """Report a disk that the run will fill."""
        space = self._space()
        message = None if space is None else space.message_at_start(self.folder)
        if message is not None:
            self.on_message(message)

    def waiting(self, step: int) -> AbstractContextManager[None]:
        """Count the time of the block as waiting for the batches of a step."""
        return self.data.waiting(step)

    def computed(self, seconds: float) -> None:
        """Count the seconds that a step computed."""
        self.data.count(seconds)

    def judge(self, step: int, loss: float, phase: int) -> str | None:
        """Judge the loss of a step, in nats, against those before it in its phase; report a spike, or return it in
        words if the run is to be rolled back."""
        if phase != self._phase:
            self._phase = phase
            self.spikes.reset()
        if self.config.on_spike == "ignore":
            return None
        decision = self.spikes.judge(loss)
        if not decision.is_spike or decision.kind == "non-finite":  # whose gradient is handled by --on-nan
            return None
        if self.config.on_spike == "rollback" and decision.kind == "spike":
            return decision.describe(step)
        if decision.kind == "diverged" or step >= self._quiet_until:
            self._quiet_until = step + SPIKE_STEPS
            self.on_message(decision.describe(step))
        return None

    def to_state(self) -> dict[str, Any]:
        """Return the window of losses and its phase, for a checkpoint's state."""
        return {**self.spikes.to_state(), "phase": self._phase}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with what `to_state` stored. Raises `CheckpointError`."""
        self.spikes.restore(state)
        phase = state.get("phase", 0)
        self._phase = phase if isinstance(phase, int) else 0

    def line(self) -> None:
        """Look at the memory, at a line of metrics.jsonl, but not at each of quick steps."""
        if self.memory is not None and time.monotonic() - self._looked >= MEMORY_SECONDS:
            self.memory.check()
            self._looked = time.monotonic()

    def before_save(self) -> None:
        """Report, once, a disk that has no room for the next checkpoint."""
        space = None if self._told_space else self._space()
        message = None if space is None else space.message_before_save(self.folder)
        if message is not None:
            self._told_space = True
            self.on_message(message)

    def _space(self) -> DiskSpace | None:
        present = find(self.folder / "checkpoints")
        return disk_space(
            self.folder,
            parameters=self.parameters,
            keep=self.config.keep_checkpoints,
            present=len(present),
            last=present[-1] if present else None,
            each=BYTES_PER_PARAMETER + 4 * (self.config.ema is not None) + 2 * (self.config.param_dtype == "bf16"),
        )
