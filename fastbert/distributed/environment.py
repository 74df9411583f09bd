"""What torchrun tells a process by its environment. Imports no torch."""

from __future__ import annotations

import os


def is_launched() -> bool:
    """Return True if torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ


def is_main_process() -> bool:
    """Return True for the process that checks, writes and prints: the first of several, or the only one."""
    return not is_launched() or os.environ["RANK"] == "0"
