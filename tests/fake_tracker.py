"""A tracker that remembers its lines beyond a run, as a server does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import pytest

from fastbert.training import tracking_flags
from fastbert.training.trackers import recording
from fastbert.training.trackers.tracker import TrackedRun, Tracker


class Fake(Tracker):
    """A tracker that remembers its lines beyond the process, as a server does."""

    name = "wandb"
    runs: ClassVar[dict[str, list[tuple[int, dict[str, float]]]]] = {}
    closed: ClassVar[list[bool]] = []
    opened: ClassVar[list[TrackedRun]] = []
    fails_at: ClassVar[int | None] = None

    def __init__(self, run: TrackedRun, identity: str | None) -> None:
        self.continues = identity is not None
        self.identity = identity or f"id-{len(self.runs)}"
        self.runs.setdefault(self.identity, [])
        self.opened.append(run)

    def log(self, values: Mapping[str, float], step: int) -> None:
        if step == self.fails_at:
            raise ConnectionError("the server\nis gone")
        self.runs[self.identity].append((step, dict(values)))

    def close(self, *, finished: bool) -> None:
        self.closed.append(finished)


def install(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """Put a fresh fake in the place of W&B, whose package then counts as installed."""
    kind = type("FreshFake", (Fake,), {"runs": {}, "closed": [], "opened": []})
    monkeypatch.setitem(recording.KINDS, "wandb", kind)
    monkeypatch.setattr(tracking_flags, "find_spec", lambda name: object() if name == "wandb" else None)
    return kind
