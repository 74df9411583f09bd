"""The device that is measured: a GPU with events and queues, or a CPU that stands in for it in a dry run."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastbert.benchmarks.harness import measure as harness
from fastbert.errors import UserError
from fastbert.ops import dispatch

CYCLES_PER_SECOND = 2e9  # of a multiprocessor, about: how long the device sleeps need not be exact
LONGEST_SLEEP = 0.05


@dataclass(frozen=True)
class Sample:
    """Seconds a call on the device, seconds the host needed to queue it, and whether the device had to wait for it."""

    seconds: float
    host_seconds: float
    host_bound: bool


class Device:
    """A CPU in the place of a GPU."""

    dry_run = True
    l2_bytes = 1 << 12

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def sample(self, calls: Sequence[Callable[[], Any]], asleep: float = 0.0) -> Sample:
        """Time some calls in a row. With `asleep` the device first idles for so many seconds while the host queues, so
        that what is measured is the device's time and not Python's."""
        del asleep
        began = time.perf_counter()
        for call in calls:
            call()
        seconds = (time.perf_counter() - began) / len(calls)
        return Sample(seconds, seconds, False)

    def free(self) -> None:
        """Give back memory that nothing uses."""
        gc.collect()

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        """Memory that a call takes at its peak, its results included, beyond what was taken before it; None where
        nobody counts."""
        call()
        return None

    def properties(self) -> dict[str, Any]:
        """What the device is."""
        return {"name": "cpu", "dry_run": True}


class Cuda(Device):
    """The GPU that torch sees first."""

    dry_run = False

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise UserError("torch finds no GPU with a working driver; --dry-run needs none")
        self.torch_device = torch.device("cuda", torch.cuda.current_device())
        self.l2_bytes = int(getattr(torch.cuda.get_device_properties(self.torch_device), "L2_cache_size", 60 << 20))

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def sample(self, calls: Sequence[Callable[[], Any]], asleep: float = 0.0) -> Sample:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if asleep:
            torch.cuda._sleep(int(min(asleep, LONGEST_SLEEP) * CYCLES_PER_SECOND))
        start.record()
        began = time.perf_counter()
        for call in calls:
            call()
        queued = time.perf_counter() - began
        host_bound = bool(start.query())
        end.record()
        end.synchronize()
        return Sample(start.elapsed_time(end) / 1e3 / len(calls), queued / len(calls), host_bound)

    def free(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        self.free()
        self.synchronize()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        before = torch.cuda.memory_allocated(self.torch_device)
        call()
        self.synchronize()
        return int(torch.cuda.max_memory_allocated(self.torch_device) - before)

    def properties(self) -> dict[str, Any]:
        found = torch.cuda.get_device_properties(self.torch_device)
        return {
            "name": found.name,
            "multiprocessors": found.multi_processor_count,
            "memory_gib": round(found.total_memory / 2**30, 1),
            "compute_capability": f"{found.major}.{found.minor}",
            "l2_bytes": self.l2_bytes,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }


def own_backend(device: Device, operation: str) -> dispatch.BackendName | None:
    """Which backend to force: on a GPU none, what fastbert chooses is measured; in a dry run the kernels, if Triton
    interprets them here."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    return "triton" if device.dry_run and interpreted and operation in dispatch.supported_by("triton") else None


def open_device(dry: bool) -> Device:
    """What to measure on."""
    return Device() if dry else Cuda()


def describe(dry: bool) -> dict[str, Any]:
    """Where and with what is measured: GPU, machine, versions, commit, and the backend of every operation."""
    device = open_device(dry)
    return {
        "gpu": device.properties(),
        "machine": harness.machine(),
        "versions": harness.versions(),
        "commit": harness.commit(),
        "backends": [asdict(choice) for choice in dispatch.report(device.torch_device)],
    }
