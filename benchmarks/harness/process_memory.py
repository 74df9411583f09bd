"""The resident memory of a process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

CLEAR = Path("/proc/self/clear_refs")


def resident(process: int | None = None) -> int | None:
    """Return the resident bytes of a process, by default of this one; None except on Linux, and if it has ended."""
    return _status("VmRSS", process)


def high_water() -> int | None:
    """Return the peak resident bytes of this process since `forget_high_water`; None except on Linux."""
    return _status("VmHWM")


def forget_high_water() -> bool:
    """Reset the high-water mark; return False if the system does not allow it."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _status(field: str, process: int | None = None) -> int | None:
    try:
        text = Path(f"/proc/{process or 'self'}/status").read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) << 10 if match else None
