"""What a run reports while it goes: one JSON object a line in metrics.jsonl, and hooks for whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.training.metrics import line_of, read_records

Record = dict[str, Any]


@dataclass
class Reporter:
    """What a run tells whoever watches it; every hook may be left out."""

    on_step: Callable[[Record, float], None] = field(default=lambda record, progress: None)
    """After each optimiser step: its line, and the finished fraction of the trial."""
    on_evaluation: Callable[[Record], None] = field(default=lambda record: None)
    on_trial: Callable[[int, int, str], None] = field(default=lambda number, total, name: None)
    """A trial begins: its number from 1, how many there are, and what it is."""
    on_message: Callable[[str], None] = field(default=lambda message: None)


class Log:
    """Appends to metrics.jsonl. A resumed run first drops the lines of its unfinished trial after `step`."""

    def __init__(self, path: Path, keep: Callable[[Record], bool] | None) -> None:
        self.path = path
        kept = [] if keep is None else [record for record in read_log(path) if keep(record)]
        path.write_text("".join(line_of(record) for record in kept), encoding="utf-8")

    def append(self, record: Record) -> None:
        """Write one line and hand it to the system, so that a killed run loses none."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(record))


def read_log(path: Path) -> list[Record]:
    """The lines of a fine-tuning run's metrics.jsonl."""
    return [record for _, record in read_records(path)]
