"""Settings that every task has. Imports no torch: command lines are generated from such classes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of a table's columns, or keys of JSON objects, that differ from the ones readers look for."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None
    id: str | None = None


@dataclass(frozen=True, kw_only=True)
class TaskSettings:
    """Settings of rows and predictions. A task adds its own flags in a subclass."""

    max_length: int = 128
    """Tokens per row, special ones included."""
    strict: bool = False
    """Stop at the first example that cannot be used, instead of counting such examples."""
    skip_bad: bool | None = False
    """Skip rows of a file that cannot be read and report how many, instead of refusing the file; None refuses it, too,
    and the message names no flag."""
    columns: Columns = field(default_factory=Columns)
    metric: str | None = None
    """The metric that chooses models, if it is not the task's default."""
