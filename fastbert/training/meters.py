"""What a run costs: model FLOPs utilisation, memory, and the time it waits for data, validations and checkpoints.

The loop holds one `RunMeters` and asks it for the optional fields of `Metrics`:

    with meters.timed("data"):
        batches = fetch(step)
    ...
    meters.count(meters.flops_of(batches))  # of each step
    ...
    Metrics(..., **meters.fields(seconds=seconds_since_the_last_line, gradient_norm=norm))
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Self

import torch

from fastbert.config import BertConfig
from fastbert.errors import CheckpointError, UserError
from fastbert.packing import PackedBatch
from fastbert.planning.flops import BatchStatistics, ModelFlops
from fastbert.planning.peak import peak_flops

Activity = Literal["data", "validation", "checkpoint"]
ACTIVITIES: tuple[Activity, ...] = ("data", "validation", "checkpoint")
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class RunMeters:
    """The costs of a run, in the fields of `Metrics`."""

    def __init__(
        self,
        device: torch.device,
        *,
        model: ModelFlops | None = None,
        peak: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`model` counts the FLOPs of its steps, and `peak` returns the device's peak in FLOP/s; it is called once,
        when the first utilisation is due. Without either there is no `mfu`."""
        self.device = device
        self.model = model
        self.clock = clock
        self._find_peak, self._peak = peak, (None if model is None else -1.0)
        self.seconds: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self.flops: float = 0.0
        """Of the model, since the last line."""

    @classmethod
    def of_model(
        cls,
        config: BertConfig,
        objective: str,
        device: torch.device,
        dtype: torch.dtype,
        generator_size: float | None = None,
        devices: int = 1,
        *,
        tf32: bool = False,
    ) -> Self:
        """Return the meters of a run that pre-trains a model on several devices; `dtype` is that of its matmuls; with
        `tf32`, fp32 operands are rounded on a GPU. A model whose operations cannot be counted has no `mfu`."""
        try:
            model: ModelFlops | None = ModelFlops(config, objective, generator_size)
        except UserError:
            model = None

        def peak() -> float | None:
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
            element = _DTYPES.get(dtype, "fp32")
            rate = peak_flops(device.type, "tf32" if tf32 and element == "fp32" else element, name)
            return None if rate is None else rate * devices

        return cls(device, model=model, peak=peak)

    @contextmanager
    def timed(self, activity: Activity) -> Iterator[None]:
        """Count the time of the block, also if it raises, as waiting for data, validation or saving."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[activity] += self.clock() - began

    def flops_of(self, batches: Sequence[PackedBatch]) -> float:
        """Return the model FLOPs of a step of these micro-batches, forward and backward; 0 where they are unknown."""
        return 0.0 if self.model is None else self.model.of(BatchStatistics.of(batches, self.model.windows))

    def count(self, flops: float) -> None:
        """Count the FLOPs of a step that has been computed."""
        self.flops += flops

    def mfu(self, flops: float, seconds: float) -> float | None:
        """Return the fraction of the device's peak at which `flops` of the model took `seconds`; None without a peak,
        and for no time."""
        if self._peak is not None and self._peak < 0:
            self._peak = self._find_peak()
        return flops / seconds / self._peak if self._peak and flops and seconds > 0.0 else None

    def fields(self, *, seconds: float = 0.0, gradient_norm: float | None = None, skipped: int = 0) -> dict[str, Any]:
        """Return the optional fields of a line of metrics.jsonl, without those that are not known; the FLOPs counted
        begin anew.

        Args:
            seconds: of training since the line before.
            gradient_norm: of the line's last step, before clipping.
            skipped: steps without an update since the run began.
        """
        flops, self.flops = self.flops, 0.0
        mfu = self.mfu(flops, seconds)
        values: dict[str, Any] = {
            "gradient_norm": gradient_norm,
            "mfu": None if mfu is None else round(mfu, 4),
            "memory_bytes": peak_memory(self.device),
            "skipped_steps": skipped or None,
            **{f"{activity}_seconds": round(self.seconds[activity], 3) for activity in ACTIVITIES},
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_state(self) -> dict[str, Any]:
        """Return the totals as JSON can store them, for a checkpoint's state."""
        return {"flops": self.flops, **{f"{name}_seconds": self.seconds[name] for name in ACTIVITIES}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the totals that `to_state` stored; missing ones, of an older checkpoint, begin at zero. Raises
        `CheckpointError`."""
        names = ("flops", *(f"{name}_seconds" for name in ACTIVITIES))
        values = [state.get(name, 0.0) for name in names] if isinstance(state, Mapping) else [None]
        if not all(type(value) in (int, float) for value in values):
            raise CheckpointError("the meters in the checkpoint's state are not numbers")
        self.flops = float(values[0])
        self.seconds = {name: float(value) for name, value in zip(ACTIVITIES, values[1:], strict=True)}


def peak_memory(device: torch.device) -> int | None:
    """Return the largest number of bytes that the process held at a time: resident on a CPU, allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
