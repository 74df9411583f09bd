"""A recorder for devices without graphs: a "replay" runs the function again on the same buffers, into the same results.

It stands where CUDA's graphs stand, so that all but the capture itself is tested on a CPU.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from fastbert.graphs import CaptureError


class Rerun:
    """Counts what it is asked for; `failing` is the message of every capture, which then raises."""

    def __init__(self, failing: str | None = None) -> None:
        self.failing = failing
        self.captures = self.replays = self.forgotten = 0

    def warm_up(self, run: Callable[[], Any]) -> Any:
        return run()

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        self.captures += 1
        if self.failing is not None:
            raise CaptureError(self.failing)
        return Again(self, run).replay

    def forget(self) -> None:
        self.forgotten += 1


class Again:
    """One function, whose results keep their addresses from its first replay on."""

    def __init__(self, recorder: Rerun, run: Callable[[], Any]) -> None:
        self.recorder, self.run, self.results = recorder, run, None

    def replay(self) -> Any:
        self.recorder.replays += 1
        results = self.run()
        if self.results is None:
            self.results = results
        elif is_dataclass(results):
            for field in fields(results):
                value = getattr(results, field.name)
                if isinstance(value, torch.Tensor):
                    getattr(self.results, field.name).copy_(value)
        return self.results
