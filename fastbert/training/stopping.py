"""A clean way to stop: the first SIGINT or SIGTERM lets a step end, a second SIGINT stops at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType


class Stopped(Exception):
    """A signal asked the run to stop; its state is saved. `signal` is the signal's number."""

    def __init__(self, number: int, saved: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}; continue with --resume")
        self.signal = number
        self.saved = saved


class StopRequest:
    """What signals have asked of a run: `number` is the one that asked it to stop, None while it may go on."""

    def __init__(self, on_message: Callable[[str], None]) -> None:
        self.number: int | None = None
        self._on_message = on_message

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to signals for as long as the block lasts."""
        try:
            previous = {number: signal.signal(number, self._asked) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # signals belong to the main thread; elsewhere the caller stops the run
            yield
            return
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
        self._on_message("stopping after this step, saving a checkpoint")
