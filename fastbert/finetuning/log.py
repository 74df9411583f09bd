"""What a run reports while it goes: one JSON object a line in metrics.jsonl, and hooks for whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.training.metrics import LineLog, read_records

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


class Log(LineLog):
    """The metrics.jsonl of a fine-tuning run."""

    def append(self, record: Record) -> None:
        """Write one line."""
        self.write(record)


def read_log(path: Path) -> list[Record]:
    """The lines of a fine-tuning run's metrics.jsonl."""
    return [record for _, record in read_records(path)]
