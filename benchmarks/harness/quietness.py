"""Check whether other processes use the cores that a benchmark is about to measure.

load = measure_load()
if load is not None and load.busy:
    print(describe(load))
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

STATISTICS = Path("/proc/stat")
BUSY_SHARE = 0.1  # of the cores' time: a quiet system's own services stay below a few per cent
SECONDS, BRIEF_SECONDS = 2.0, 0.5
# Columns of /proc/stat behind a core's name, from `man proc`: user, nice, system, idle, iowait, irq, softirq, steal.
_WORKING, _STOLEN, _COLUMNS = (0, 1, 2, 5, 6), 7, 8
UNCHECKED = "whether other processes use the cores cannot be checked here (no /proc/stat)"


@dataclass(frozen=True, kw_only=True)
class Load:
    """What this process cannot have of its cores."""

    cores: int
    """The cores that this process may use."""
    busy_cores: float
    """Those that other processes kept busy, on average."""
    stolen_cores: float
    """Those that the hypervisor withheld, on average."""
    load_average: float
    """The system's load average over a minute, this process included."""

    @property
    def share(self) -> float:
        """Return the share of the cores' time that was not available, from 0 to 1."""
        return (self.busy_cores + self.stolen_cores) / self.cores

    @property
    def busy(self) -> bool:
        """Return whether measurements would be disturbed."""
        return self.share >= BUSY_SHARE

    def setting(self) -> dict[str, float]:
        """Return the load as the settings of a record hold it."""
        return {name: round(value, 2) for name, value in asdict(self).items()}


def measure_load(seconds: float = SECONDS, pause: Callable[[float], None] = time.sleep) -> Load | None:
    """Return what other processes take of this one's cores over `seconds`; None where the system does not tell.

    The processor time of this process in the meantime does not count.
    """
    before, own = _ticks(), time.process_time()
    if before is None:
        return None
    pause(seconds)
    after, own = _ticks(), time.process_time() - own
    cores = [core for core in before if after is not None and core in after]
    passed = {core: [new - old for new, old in zip(after[core], before[core], strict=True)] for core in cores}
    if after is None or not any(map(sum, passed.values())):
        return None  # some sandboxes have the file, but no ticks in it
    # Ticks per core since the last call, rather than the clock: the kernel updates the file at its own times.
    elapsed = sum(map(sum, passed.values())) / len(cores)
    working = sum(ticks[column] for ticks in passed.values() for column in _WORKING) / elapsed
    stolen = sum(ticks[_STOLEN] for ticks in passed.values()) / elapsed
    return Load(
        cores=len(cores),
        busy_cores=max(0.0, working - own / seconds),
        stolen_cores=stolen,
        load_average=os.getloadavg()[0],
    )


def describe(load: Load) -> str:
    """Return the figures of a load in a line."""
    stolen = f" (and {load.stolen_cores:.2f} were withheld by the hypervisor)" if load.stolen_cores >= 0.01 else ""
    return (
        f"other processes use {load.busy_cores:.2f} of {load.cores} cores{stolen}, load average {load.load_average:.2f}"
    )


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Return the load that a record's settings hold, in words."""
    busy = setting["busy_cores"] + setting["stolen_cores"]
    return f"other processes used {busy:.2g} of {setting['cores']:g} cores"


def warn(say: Callable[[str], None], threads: int | None = None) -> None:
    """Pass a line to `say` if there are fewer cores than threads, and one about the load if the machine is busy, after
    half a second."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads is not None and threads > cores:
        say(f"--threads {threads}: the process may use {cores} cores; threads will wait for each other")
    load = measure_load(BRIEF_SECONDS)
    if load is not None and load.busy:
        say(f"the machine is busy: {describe(load)}; figures and ratios will be disturbed")


def _ticks() -> dict[str, list[int]] | None:
    """Return the clock ticks of each core that this process may use, by column; None without them."""
    try:
        lines = STATISTICS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    usable = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    rows = {words[0]: words[1:] for line in lines if (words := line.split()) and words[0] in usable}
    return {core: [int(word) for word in words[:_COLUMNS]] for core, words in rows.items()} or None
