"""`--profile`: record a few steps after the warm-up with torch.profiler; a Chrome trace and a table of operations.

with StepProfiler.of(config, folder, device, reporter.on_message, steps_left=100) as profiler:
    for ...:
        with profiler.step():
            train_step()
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from fastbert.io.atomic_write import replace_synced
from fastbert.training.tracking_flags import TrackingFlags

FILE = "profile.json.gz"
WAIT, WARM = 10, 1  # steps before the first that is recorded: allocations and compilation; and the profiler's own start
ROWS, WIDTH = 15, 48  # of the table of operations
STEP = "fastbert.step"


@dataclass(frozen=True)
class Operation:
    """An operation of the recorded steps: times per step in milliseconds, without the operations that it calls."""

    name: str
    calls: float
    milliseconds: float
    share: float


class StepProfiler:
    """Profiles steps `WAIT + WARM + 1` and on of a process; inert if it is switched off, or done."""

    def __init__(self, path: Path | None, device: torch.device, steps: int, on_message: Callable[[str], None]) -> None:
        """`path` is the trace to write, None to switch the profiler off; `steps` are recorded."""
        self.path = path
        self.device = device
        self.steps = steps
        self.on_message = on_message
        self.wait: int = WAIT
        self._profiler: Any = None
        self._seconds: list[float] = []
        self._done, self._writes = path is None, True

    @classmethod
    def of(
        cls,
        flags: TrackingFlags,
        folder: Path,
        device: torch.device,
        on_message: Callable[[str], None],
        *,
        steps_left: float = math.inf,
        writes: bool = True,
    ) -> StepProfiler:
        """Return the profiler of a run in `folder`; it waits less where few steps are left. Of several processes, the
        one that `writes` is profiled."""
        profiler = cls(folder / FILE if flags.profile and writes else None, device, flags.profile_steps, on_message)
        profiler.wait = int(max(0, min(WAIT, steps_left - WARM - flags.profile_steps)))
        if flags.profile and steps_left < WARM + flags.profile_steps:
            profiler.steps = int(max(1, steps_left - WARM))
        return profiler

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        profiler, self._profiler, self._done = self._profiler, None, True
        self._writes = kind is None and len(self._seconds) > WARM
        if profiler is not None:
            with contextlib.suppress(RuntimeError):
                profiler.stop()  # calls `_write` with the steps that there are
            if kind is None and not self._writes:
                self.on_message("--profile: the run ended before a step was recorded; there is no trace")

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Wrap a step of the optimiser, with the wait for its data."""
        if self._done:
            yield
            return
        if self.wait > 0:
            self.wait -= 1
            yield
            return
        if self._profiler is None:
            self._profiler = self._new()
            self._profiler.start()
        began = time.perf_counter()
        with torch.profiler.record_function(STEP):
            yield
        self._seconds.append(time.perf_counter() - began)
        self._profiler.step()  # calls `_write` after the last
        if len(self._seconds) == WARM + self.steps:
            profiler, self._profiler, self._done = self._profiler, None, True
            profiler.stop()

    def _new(self) -> Any:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        schedule = torch.profiler.schedule(wait=0, warmup=WARM, active=self.steps, repeat=1)
        return torch.profiler.profile(
            activities=activities, schedule=schedule, on_trace_ready=self._write, acc_events=True
        )

    def _write(self, profiler: Any) -> None:
        """Write the trace and report the slowest operations."""
        assert self.path is not None
        if not self._writes:
            return
        partial = self.path.with_name(f"partial-{self.path.name}")  # the ending tells the format
        try:
            profiler.export_chrome_trace(str(partial))
            replace_synced(partial, self.path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            self.on_message(f"--profile: the trace could not be written ({error}); the run continues")
            return
        seconds = self._seconds[WARM:] or self._seconds
        operations = slowest(profiler, len(seconds), on_gpu=self.device.type == "cuda")
        for line in table(operations):
            self.on_message(line)
        mean = 1000 * sum(seconds) / len(seconds)
        self.on_message(
            f"profile of {len(seconds)} step{'s' * (len(seconds) != 1)} of {mean:,.1f} ms: {self.path} (for"
            " chrome://tracing or ui.perfetto.dev)"
        )


def slowest(profiler: Any, steps: int, *, on_gpu: bool) -> list[Operation]:
    """Return the operations of a finished profile by their own time, the slowest first.

    On a CPU, the step itself stands for all that is no operation of PyTorch: fastbert's kernels that are called
    directly, and Python. On a GPU the times are those of kernels.
    """
    field = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    rows = [
        (event.key, event.count, getattr(event, field))
        for event in profiler.key_averages()
        if not event.key.startswith("ProfilerStep")
    ]
    total = sum(microseconds for _, _, microseconds in rows) or 1.0
    names = {STEP: "direct kernels and Python"}
    operations = [
        Operation(names.get(name, name), count / steps, microseconds / 1000 / steps, microseconds / total)
        for name, count, microseconds in rows
        if microseconds > 0
    ]
    return sorted(operations, key=lambda operation: -operation.milliseconds)[:ROWS]


def table(operations: Sequence[Operation]) -> list[str]:
    """Return operations as lines of a table."""
    lines = [f"{'operation':<{WIDTH}}  calls/step    ms/step  share"]
    for operation in operations:
        name = operation.name if len(operation.name) <= WIDTH else f"{operation.name[: WIDTH - 3]}..."
        calls = f"{operation.calls:,.0f}" if operation.calls >= 1 else f"{operation.calls:.1f}"
        lines.append(f"{name:<{WIDTH}}  {calls:>10}  {operation.milliseconds:>9,.2f}  {operation.share:>5.1%}")
    return lines
