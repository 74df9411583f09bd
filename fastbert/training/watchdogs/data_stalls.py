"""Stalled data: how long the steps wait for their batches, beside the time that they compute.

`DataWatch.waiting()` wraps the loop's only wait for a batch; a batch that does not arrive at all is reported while the
loop still waits.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

LEAST_SECONDS = 30.0  # of steps, before their share of waiting is judged
HIGHEST_SHARE = 0.1  # of the time, spent waiting, from which it is worth a message
SILENCE = 60.0  # seconds without a batch until a message


class DataWatch:
    """Reports, once per cause, that batches arrive too late."""

    def __init__(
        self,
        on_message: Callable[[str], None],
        cures: Sequence[str] = (),
        *,
        silence: float = SILENCE,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`cures` are flags with which batches may arrive sooner, named in the message."""
        self.on_message = on_message
        self.cures: tuple[str, ...] = tuple(cures)
        self.silence = silence
        self.clock = clock
        self.waited: float = 0.0
        self.computed: float = 0.0
        self.told_share: bool = False
        self._watcher: threading.Thread | None = None
        self._wait: tuple[int, float] | None = None
        """The step that waits, and since when."""

    @contextmanager
    def waiting(self, step: int) -> Iterator[None]:
        """Count the time of the block as waiting for the batches of `step`; report it if it does not end."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=_watch, args=(weakref.ref(self), self.silence), daemon=True)
            self._watcher.start()
        began = self.clock()
        self._wait = (step, time.monotonic())
        try:
            yield
        finally:
            self._wait = None
            self.waited += self.clock() - began

    def count(self, computed: float) -> str | None:
        """Count the seconds that a step computed; return the message if the waits have become long, else None.

        The totals begin anew with each judgement, so that a slow start does not hide what follows, and a run that
        stalls after hours is told so.
        """
        self.computed += computed
        total = self.waited + self.computed
        if total < LEAST_SECONDS:
            return None
        message = stall_message(self.waited, self.computed, self.cures)
        self.waited = self.computed = 0.0
        if message is None or self.told_share:
            return None
        self.told_share = True
        self.on_message(message)
        return message

    def look(self) -> bool:
        """Report a wait that has lasted `silence` seconds; return True once that has been done."""
        wait = self._wait
        if wait is None or time.monotonic() - wait[1] < self.silence:
            return False
        self.on_message(
            f"step {wait[0]:,} has waited {self.silence:.0f} s for its batches: the disk, the network or a worker that"
            " reads the data is stalled"
        )
        return True


def _watch(watch: weakref.ref[DataWatch], silence: float) -> None:
    """Look for a silence until it has been reported or the watch is gone. One thread looks now and then: a timer per
    step would take half a millisecond of each."""
    while True:
        time.sleep(silence / 16)
        alive = watch()
        if alive is None or alive.look():
            return
        del alive


def stall_message(waited: float, computed: float, cures: Sequence[str] = ()) -> str | None:
    """Return a message where steps spent more than a tenth of their time waiting for batches, None otherwise.

    Args:
        waited, computed: seconds of waiting and of computing over the same steps.
        cures: flags with which batches may arrive sooner.
    """
    total = waited + computed
    if total <= 0.0 or waited / total <= HIGHEST_SHARE:
        return None
    advice = f"; {' or '.join(cures)} may help" if cures else ""
    return (
        f"data is too slow: {waited / total:.0%} of the last {total:.0f} s were spent waiting for batches"
        f" ({waited:.0f} s), not computing{advice}"
    )
