"""The measured device: a GPU with events and queues, or a CPU in its place in a dry run."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fastbert.benchmarks.harness import records
from fastbert.errors import UserError
from fastbert.ops import dispatch

CYCLES_PER_SECOND = 2e9  # of a multiprocessor, approximately: the sleep need not be exact
LONGEST_SLEEP = 0.05


@dataclass(frozen=True)
class Sample:
    """Seconds per call on the device, seconds to queue it on the host, and whether the device waited."""

    seconds: float
    host_seconds: float
    host_bound: bool


class Device:
    """A CPU in place of a GPU."""

    dry_run = True
    l2_bytes: int = 1 << 10

    def __init__(self) -> None:
        self.torch_device: torch.device = torch.device("cpu")

    def synchronize(self) -> None:
        """Wait until all queued work is done."""

    def sample(self, calls: Sequence[Callable[[], Any]], asleep: float = 0.0) -> Sample:
        """Time calls in a row. With `asleep` the device first idles for that many seconds while the host queues, so
        that the result is device time and not Python's."""
        del asleep
        began = time.perf_counter()
        for call in calls:
            call()
        seconds = (time.perf_counter() - began) / len(calls)
        return Sample(seconds, seconds, False)

    def free(self) -> None:
        """Release unused memory of a GPU."""

    def peak_bytes(self, call: Callable[[], Any]) -> int | None:
        """Return the peak memory of a call beyond what was allocated before, its results included; None if the device
        does not count it."""
        call()
        return None

    def properties(self) -> dict[str, Any]:
        """Return the properties of the device."""
        return {"name": "cpu", "dry_run": True}


class Cuda(Device):
    """The current GPU of torch."""

    dry_run = False

    def __init__(self) -> None:
        require_gpu()
        self.torch_device: torch.device = torch.device("cuda", torch.cuda.current_device())
        self.l2_bytes: int = int(
            getattr(torch.cuda.get_device_properties(self.torch_device), "L2_cache_size", 60 << 20)
        )

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
        properties = torch.cuda.get_device_properties(self.torch_device)
        return {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "architecture": f"sm_{properties.major}{properties.minor}",
            "l2_bytes": self.l2_bytes,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }


def require_gpu() -> None:
    """Raise UserError, in one line, without a GPU that torch can use and that has bf16."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        # torch says there what is wrong with the driver.
        told = [" ".join(str(message.message).split()) for message in messages]
        reason = told[0] if told else "no driver, or no GPU"
        raise UserError(f"torch {torch.__version__} finds no GPU that it can use: {reason}; --dry-run needs none")
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = f"{properties.major}.{properties.minor}"
        raise UserError(
            f"{properties.name} (compute capability {capability}) has no bf16 arithmetic, in which everything here is"
            " measured: use a GPU of compute capability 8.0 or newer"
        )


def own_backend(device: Device, operation: str) -> dispatch.BackendName | None:
    """Return the backend to force: None on a GPU, where fastbert's choice is measured; in a dry run Triton, if it is
    interpreted here."""
    interpreted = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
    return "triton" if device.dry_run and interpreted and operation in dispatch.supported_by("triton") else None


def open_device(dry: bool) -> Device:
    """Return the device to measure on."""
    return Device() if dry else Cuda()


def tuned() -> dict[str, Any]:
    """Return the measured table of kernel configurations that is in use, its entries by GPU and kernel."""
    if importlib.util.find_spec("triton") is None:
        return {"reason": "triton is not installed"}
    tables = importlib.import_module("fastbert.kernels.tuning.tables")
    path = tables.saved_path()
    if not os.path.exists(path):
        return {"reason": "no measured table: the default configurations"}
    try:
        table = tables.load(path)
    except UserError as error:
        return {"reason": str(error)}
    return {
        "entries": {gpu: {kernel: sorted(shapes) for kernel, shapes in rows.items()} for gpu, rows in table.items()}
    }


def describe(dry: bool) -> dict[str, Any]:
    """Return GPU, machine, versions, commit, and the backend of every operation."""
    device = open_device(dry)
    return {
        "gpu": device.properties(),
        "machine": records.machine(),
        "versions": records.versions(),
        "commit": records.commit(),
        "tuning": tuned(),
        "backends": [asdict(choice) for choice in dispatch.report(device.torch_device)],
    }
