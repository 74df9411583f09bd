"""What a run costs: model FLOPs utilisation, memory, and the time it waits for data, validations and checkpoints.

The loop holds one `RunMeters` and asks it for the optional fields of `Metrics`:

    with meters.timed("data"):
        batches = fetch(step)
    ...
    Metrics(..., **meters.fields(flops=flops_of_the_window, seconds=seconds_of_the_window, gradient_norm=norm))
"""

from __future__ import annotations

import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from fastbert.errors import CheckpointError
from fastbert.ops.linear.op import linear

Activity = Literal["data", "validation", "checkpoint"]
ACTIVITIES: tuple[Activity, ...] = ("data", "validation", "checkpoint")
_TRIALS, _TOKENS, _WIDTH = 5, 2048, 1024  # of the matmul that measures a CPU's peak

# Dense bf16 and fp16 FLOP/s of tensor cores without sparsity, and fp32 (tf32 off), from the vendors' data sheets.
_GPU_PEAKS: tuple[tuple[str, float, float], ...] = (
    (r"B200|GB200", 2250e12, 80e12),
    (r"H100 PCIe", 756e12, 51e12),
    (r"H100|H200|GH200|H800", 989e12, 67e12),
    (r"A100|A800", 312e12, 19.5e12),
    (r"L40S", 362e12, 91.6e12),
    (r"L4\b", 121e12, 30.3e12),
    (r"A10G", 70e12, 35e12),
    (r"A10\b", 125e12, 31.2e12),
    (r"A40\b", 149.7e12, 37.4e12),
    (r"A6000", 154.8e12, 38.7e12),
    (r"RTX 4090", 165.2e12, 82.6e12),
    (r"RTX 3090", 71e12, 35.6e12),
    (r"V100", 125e12, 15.7e12),
    (r"T4\b", 65e12, 8.1e12),
)


class RunMeters:
    """The costs of a run, in the fields of `Metrics`."""

    def __init__(
        self,
        device: torch.device,
        *,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`peak_flops` is the device's peak in FLOP/s for the dtype of the run's matmuls (see `peak_flops`); without it
        there is no `mfu`."""
        self.device, self.peak_flops, self.clock = device, peak_flops, clock
        self.seconds: dict[Activity, float] = dict.fromkeys(ACTIVITIES, 0.0)
        self.skipped_steps = 0

    @contextmanager
    def timed(self, activity: Activity) -> Iterator[None]:
        """Count the time of the block, also if it raises, as waiting for data, validation or saving."""
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[activity] += self.clock() - began

    def skip(self) -> None:
        """Count a step that updated no weight."""
        self.skipped_steps += 1

    def mfu(self, flops: float, seconds: float) -> float | None:
        """Return the fraction of the device's peak at which `flops` of the model took `seconds`; None without a peak,
        and for no time."""
        if not self.peak_flops or seconds <= 0.0:
            return None
        return flops / seconds / self.peak_flops

    def fields(
        self, *, flops: float | None = None, seconds: float = 0.0, gradient_norm: float | None = None
    ) -> dict[str, Any]:
        """Return the optional fields of a line of metrics.jsonl, without those that are not known.

        Args:
            flops: of the model, forward and backward, since the line before.
            seconds: of training since the line before.
            gradient_norm: of the line's last step, before clipping.
        """
        mfu = None if flops is None else self.mfu(flops, seconds)
        values: dict[str, Any] = {
            "gradient_norm": gradient_norm,
            "mfu": None if mfu is None else round(mfu, 4),
            "memory_bytes": peak_memory(self.device),
            "skipped_steps": self.skipped_steps or None,
            **{f"{activity}_seconds": round(self.seconds[activity], 3) for activity in ACTIVITIES},
        }
        return {name: value for name, value in values.items() if value is not None}

    def to_state(self) -> dict[str, Any]:
        """Return the totals as JSON can store them, for a checkpoint's state."""
        return {"skipped_steps": self.skipped_steps, **{f"{name}_seconds": self.seconds[name] for name in ACTIVITIES}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the totals that `to_state` stored; missing ones, of an older checkpoint, begin at zero. Raises
        `CheckpointError`."""
        skipped = state.get("skipped_steps", 0)
        seconds = {name: state.get(f"{name}_seconds", 0.0) for name in ACTIVITIES}
        if type(skipped) is not int or not all(type(value) in (int, float) for value in seconds.values()):
            raise CheckpointError("the meters in the checkpoint's state are not numbers")
        self.skipped_steps, self.seconds = skipped, {name: float(value) for name, value in seconds.items()}


def peak_memory(device: torch.device) -> int | None:
    """Return the largest number of bytes that the process held at a time: resident on a CPU, allocated on a GPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak FLOP/s of a device for matmuls in `dtype`; None for a GPU that is not in the table.

    That of a GPU is the vendor's for dense matmuls; that of a CPU is the best rate of a large matmul with the present
    number of threads, which takes a fraction of a second to measure.
    """
    if device.type == "cuda":
        return gpu_peak(torch.cuda.get_device_name(device), dtype)
    return _measured_peak(dtype)


def gpu_peak(name: str, dtype: torch.dtype) -> float | None:
    """Return the vendor's peak FLOP/s of a GPU, from the name that its driver gives; None for an unknown one."""
    for pattern, half, single in _GPU_PEAKS:
        if re.search(pattern, name):
            return single if dtype == torch.float32 else half
    return None


@torch.no_grad()
def _measured_peak(dtype: torch.dtype) -> float:
    """Return the best FLOP/s of a large matmul, with the kernels that a run's layers use."""
    x = torch.full((_TOKENS, _WIDTH), 0.5, dtype=torch.float32, device="cpu").to(dtype)
    weight = torch.full((_WIDTH, _WIDTH), 0.5, dtype=torch.float32, device="cpu").to(dtype)
    best = 0.0
    for _ in range(_TRIALS):
        began = time.perf_counter()
        linear(x, weight)
        best = max(best, 2.0 * _TOKENS * _WIDTH * _WIDTH / (time.perf_counter() - began))
    return best
