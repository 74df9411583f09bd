"""Units of a check in a child process, so that one that crashes is a failure with its number."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection

from torture.ledger import Figures, merged


def in_child(attempt: Callable[[int], Figures], numbers: range) -> Figures:
    """Call `attempt` with each number, in a fork of this process, and return the merged figures.

    Raises AssertionError with the number if the child dies, or with its error if `attempt` fails.
    """
    reached = mmap.mmap(-1, 8)  # shared with the child
    receiver, sender = multiprocessing.Pipe(duplex=False)
    sys.stdout.flush()
    child = os.fork()
    if not child:
        _run(attempt, numbers, reached, sender)
    sender.close()
    try:
        figures, error = receiver.recv()
    except EOFError:
        figures, error = None, None
    _, status = os.waitpid(child, 0)
    number = int.from_bytes(reached[:8], "little")
    if os.WIFSIGNALED(status):
        raise AssertionError(f"number {number}: the process died of {signal.Signals(os.WTERMSIG(status)).name}")
    assert figures is not None, f"number {number}: {error}"
    return figures


def _run(attempt: Callable[[int], Figures], numbers: range, reached: mmap.mmap, sender: Connection) -> None:
    status = 1
    try:
        all_figures = []
        for number in numbers:
            reached[:8] = number.to_bytes(8, "little")
            all_figures.append(attempt(number))
        sender.send((merged(all_figures), None))
        status = 0
    except BaseException:  # noqa: BLE001 - any error is the parent's
        sender.send((None, traceback.format_exc()))
    finally:
        sender.close()
        os._exit(status)
