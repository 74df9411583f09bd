"""How a check runs: once in its short form, or in parts of its full form that the ledger counts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torture import ledger
from torture.ledger import Entry, Figures
from torture.scorecard import Check


@dataclass
class Campaign:
    """Runs one check. `first` moves the numbers of the short form; `minutes` bound the full form of this run."""

    check: Check
    full: bool = False
    first: int = 0
    minutes: float = float("inf")
    path: Path = ledger.LEDGER

    def run(self, attempt: Callable[[range], Figures | None]) -> Figures:
        """Call `attempt` with ranges of numbers, each of which seeds a unit, and return the merged figures.

        An attempt raises an exception, which should name the number, if the promise is broken; then the ledger gets
        the numbers of its range as one failure.
        """
        if not self.full:
            return attempt(range(self.first, self.first + self.check.short)) or {}
        end, parts = time.monotonic() + 60 * self.minutes, [Figures()]
        while time.monotonic() < end:
            next_one = ledger.next_number(ledger.read(self.path), self.check.name)
            if next_one >= self.check.full:
                break
            numbers = range(next_one, min(next_one + self.check.chunk, self.check.full))
            parts.append(self._part(attempt, numbers))
            print(f"{self.check.name}: {numbers.stop:,} of {self.check.full:,} {self.check.unit}", flush=True)
        return ledger.merged(parts)

    def _part(self, attempt: Callable[[range], Figures | None], numbers: range) -> Figures:
        from fastbert.benchmarks.harness import records

        commit = records.commit_of(Path(__file__).resolve().parents[2]) or "unknown"
        entry = Entry(self.check.name, numbers.start, len(numbers), commit, records.machine_class(records.machine()))
        begin = time.monotonic()
        try:
            entry.figures = attempt(numbers) or {}
        except Exception as error:
            entry.failures, entry.note = 1, ledger.shortened(error)
            raise
        else:
            return entry.figures
        finally:
            # An interrupted part counts for nothing.
            if entry.failures or sys.exc_info()[0] is None:
                entry.seconds = round(time.monotonic() - begin, 1)
                ledger.append(entry, self.path)
