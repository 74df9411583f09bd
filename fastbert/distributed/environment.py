"""What torchrun tells a process by its environment. Imports no torch."""

from __future__ import annotations

import os


def is_launched() -> bool:
    """Return True if torchrun started this process as one of several."""
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1") and "RANK" in os.environ


def is_main_process() -> bool:
    """Return True for the process that checks, writes and prints: the first of several, or the only one."""
    return not is_launched() or os.environ["RANK"] == "0"


def processes() -> int:
    """Return the number of processes that torchrun started, 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if is_launched() else 1


def launcher() -> list[str]:
    """Return the words of a command line that start as many processes as these, none without torchrun. A run on several
    machines also needs their own flags of the rendezvous."""
    if not is_launched():
        return []
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or processes())
    machines = [] if here == processes() else [f"--nnodes={processes() // here}"]
    return ["torchrun", "--no-python", *machines, f"--nproc-per-node={here}"]
