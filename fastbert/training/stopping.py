"""Signals: after the first SIGINT or SIGTERM the current step ends, a second SIGINT stops at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from fastbert.io.locations import Location


class Stopped(Exception):
    """A signal stopped the run, with its state saved. `signal` is the signal's number, `saved` the place."""

    def __init__(self, number: int, saved: Location) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with --resume")
        self.signal = number
        self.saved = saved


def signal_flags(number: int | None) -> list[float]:
    """Return the signal that a process has received as numbers that processes can sum; None stands for none."""
    return [float(number == signal.SIGINT), float(number == signal.SIGTERM)]


def agreed_signal(flags: Sequence[float]) -> int | None:
    """Return the signal that any process has received, from the sum of their `signal_flags`."""
    return signal.SIGINT if flags[0] else signal.SIGTERM if flags[1] else None


class StopRequest:
    """The request to stop a run: `number` is the signal received, None if there was none."""

    def __init__(self, on_message: Callable[[str], None]) -> None:
        self.number: int | None = None
        self._on_message = on_message

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals within the block."""
        try:
            previous = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: the caller handles signals
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        self._on_message("stopping after this step, saving a checkpoint")
