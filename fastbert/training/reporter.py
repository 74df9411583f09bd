"""Hooks through which pre-training, fine-tuning and the demonstration report to whoever started them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]
"""A line of metrics.jsonl."""


@dataclass
class Reporter:
    """The hooks of a run; each may be left out."""

    on_step: Callable[[Record, float], None] = field(default=lambda record, progress: None)
    """After each optimiser step: its own metrics, and the finished fraction of the run or trial."""
    on_validation: Callable[[Record], None] = field(default=lambda record: None)
    """After each validation: its line."""
    on_line: Callable[[Record], None] = field(default=lambda record: None)
    """After each line of metrics.jsonl: means since the one before, or a validation."""
    on_message: Callable[[str], None] = field(default=lambda message: None)
    on_stage: Callable[..., Callable[[float], None]] = field(default=lambda *stage: lambda done: None)
    """A stage of preparation begins: its name, its size, and optionally the size's unit, by default bytes. Returns a
    function to call with the number done."""
    on_trial: Callable[[int, int, str], None] = field(default=lambda number, total, name: None)
    """A trial of fine-tuning begins: its number from 1, the number of trials, and its description."""
    on_prediction: Callable[[str, int, float], None] = field(default=lambda file, rows, done: None)
    """During an evaluation of fine-tuning: the name of the file, the rows done, and the finished fraction of it."""
    on_rollback: Callable[[int], None] = field(default=lambda step: None)
    """The run goes back to a step, with --on-spike rollback: what followed it is computed and reported again."""
