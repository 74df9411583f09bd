"""Memory of a run on a CPU: what the process holds, against the limits of its container, its shell and the machine.

Linux kills a process that exceeds the memory of its container or of the machine without a message, so a run is warned
before, with the numbers and the flags that lower them.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastbert.io.sizes import size_text

NEAR = 0.9  # of a limit, from which a run is warned
_UNLIMITED = 1 << 60  # bytes: what cgroup v1 reports without a limit is beyond
_CGROUP_V2 = ("memory.max", "memory.current")
_CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


@dataclass(frozen=True)
class MemoryLimit:
    """A limit of memory, and what counts against it."""

    name: str
    """Of the limit in a message: "the container", "ulimit -v" or "this machine"."""
    limit: int
    used: int
    """Bytes in use by all that shares the limit."""

    @property
    def free(self) -> int:
        """Return the bytes until the limit."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True)
class HostMemory:
    """The resident bytes of the process and its limits, the tightest first."""

    resident: int
    limits: tuple[MemoryLimit, ...]

    @property
    def tightest(self) -> MemoryLimit | None:
        """Return the limit that is reached first, None where the system tells none."""
        return min(self.limits, key=lambda limit: limit.free, default=None)


def read_host_memory(root: Path = Path("/")) -> HostMemory | None:
    """Read the memory of this process and its limits from /proc and /sys below `root`; None where the system has
    neither, as macOS."""
    proc = root / "proc"
    status = _table(proc / "self/status")
    resident = status.get("VmRSS")
    if resident is None:
        return None
    limits = []
    cgroup = _cgroup_limit(root)
    if cgroup is not None:
        limits.append(cgroup)
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY and "VmSize" in status:
        limits.append(MemoryLimit("ulimit -v", soft, status["VmSize"]))
    machine = _table(proc / "meminfo")
    if "MemTotal" in machine and "MemAvailable" in machine:
        total = machine["MemTotal"]
        limits.append(MemoryLimit("this machine", total, total - machine["MemAvailable"]))
    return HostMemory(resident, tuple(limits))


def advice(memory: HostMemory, cures: Sequence[str], *, more: int = 0) -> str | None:
    """Return a warning in one line if a limit is near, None otherwise.

    Args:
        memory: as `read_host_memory` returns it.
        cures: flags with which the run needs less, the most useful first.
        more: bytes that the next step or save will need beyond what is in use.
    """
    limit = memory.tightest
    if limit is None or limit.used + more < NEAR * limit.limit:
        return None
    needs = f", {size_text(more)} more will be needed" if more else ""
    lower = f": use {' or '.join(cures)}" if cures else ": use a smaller --micro-batch or --model"
    return (
        f"memory is nearly full: {size_text(limit.used)} of {size_text(limit.limit)} of {limit.name} are in use"
        f" ({size_text(memory.resident)} by this process){needs}. The system ends a process that exceeds the limit"
        f"{lower}"
    )


class MemoryWatch:
    """Warns once that memory is nearly full; a call reads a few small files, in some milliseconds."""

    def __init__(
        self,
        on_message: Callable[[str], None],
        cures: Sequence[str] = (),
        read: Callable[[], HostMemory | None] = read_host_memory,
    ) -> None:
        self.on_message = on_message
        self.cures: tuple[str, ...] = tuple(cures)
        self.read = read
        self.told: bool = False

    def check(self, more: int = 0) -> str | None:
        """Return the message if it is due now, None otherwise; `more` bytes are needed beyond those in use."""
        memory = None if self.told else self.read()
        message = None if memory is None else advice(memory, self.cures, more=more)
        if message is not None:
            self.told = True
            self.on_message(message)
        return message


def _cgroup_limit(root: Path) -> MemoryLimit | None:
    """Return the tightest limit of the process's control groups and those above them, v2 or v1; None without one."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    folders: list[tuple[Path, Path, tuple[str, str]]] = []
    for line in lines:
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        inner = path.lstrip("/")
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
            folders.append((mount, mount / inner, _CGROUP_V2))
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            folders.append((mount, mount / inner, _CGROUP_V1))
    limits = []
    for mount, folder, names in folders:
        # In a container, the path is that of the host, and the mount itself holds the limit.
        for level in dict.fromkeys((folder, *folder.parents, mount)):
            if level.is_relative_to(mount):
                values = [_number(level / name) for name in names]
                if values[0] is not None and values[1] is not None and values[0] < _UNLIMITED:
                    cache = _reclaimable(level / "memory.stat")
                    limits.append(MemoryLimit("the container", values[0], max(0, values[1] - cache)))
    return min(limits, key=lambda limit: limit.free, default=None)


def _reclaimable(path: Path) -> int:
    """Return the bytes of a control group that are caches of files, which the system drops before it ends a process."""
    values: Mapping[str, int] = {}
    try:
        pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        values = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return 0
    return sum(values.get(name, 0) for name in ("inactive_file", "active_file"))


def _number(path: Path) -> int | None:
    """Return the number in a file of a control group, None for "max", and where there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _table(path: Path) -> dict[str, int]:
    """Return the sizes in a file of /proc with lines such as "VmRSS: 1234 kB", in bytes."""
    values = {}
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB" and words[0].isdigit():
            values[name] = int(words[0]) * 1024
    return values
