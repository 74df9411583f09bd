"""The resident memory of this process, as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident() -> int | None:
    """Return the resident bytes of this process; None except on Linux."""
    return _status("VmRSS")


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


def _status(field: str) -> int | None:
    if not STATUS.exists():
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    return int(match[1]) << 10 if match else None
