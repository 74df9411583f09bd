"""The ledger of the full forms: what has been tried so far, over many runs, commits and processors.

A line of `benchmarks/results/reliability/ledger.jsonl` is a JSON object: consecutive numbers of one check, from `first`
on, that were tried at one commit, on one class of processor, on one day. Each number seeds one unit of the check (a
kill, a flipped bit), so a later run goes on behind the last one, and a failure can be repeated by its number.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LEDGER = Path(__file__).parents[2] / "benchmarks/results/reliability/ledger.jsonl"
Figures = dict[str, float]
# Figures whose names begin so are the largest or the smallest of all units; others are sums.
EXTREMES = {"largest_": max, "longest_": max, "worst_": max, "smallest_": min, "least_": min}


@dataclass
class Entry:
    """`count` units of a check, the numbers from `first` on; `failures` of them contradicted the promise."""

    check: str
    first: int
    count: int
    commit: str
    processor: str
    failures: int = 0
    seconds: float = 0.0
    date: str = field(default_factory=lambda: datetime.date.today().isoformat())
    figures: Figures = field(default_factory=dict)
    note: str = ""

    @property
    def end(self) -> int:
        return self.first + self.count

    def goes_on(self, other: Entry) -> bool:
        """Return True if `other` is the next part of the same run, and neither has failures."""
        names = ("check", "commit", "processor", "date", "note")
        same = all(getattr(self, name) == getattr(other, name) for name in names)
        return same and self.end == other.first and not self.failures and not other.failures


def merged(all_figures: Iterable[Mapping[str, float]]) -> Figures:
    """Return the figures of several parts of a check: sums, and extremes of those that are named so."""
    result: Figures = {}
    for figures in all_figures:
        for name, value in figures.items():
            if name not in result:
                result[name] = value
            else:
                combine = next((known for start, known in EXTREMES.items() if name.startswith(start)), None)
                result[name] = result[name] + value if combine is None else combine(result[name], value)
    return result


def read(path: Path = LEDGER) -> list[Entry]:
    """Return all entries, in the order of their checks and numbers; none if there is no ledger."""
    if not path.exists():
        return []
    entries = [Entry(**json.loads(line)) for line in path.read_text().splitlines()]
    return sorted(entries, key=lambda entry: (entry.check, entry.first, entry.date))


def next_number(entries: Iterable[Entry], check: str) -> int:
    """Return the first number that a check has not passed: those of a failure are tried again."""
    return max((entry.end for entry in entries if entry.check == check and not entry.failures), default=0)


def append(entry: Entry, path: Path = LEDGER) -> None:
    """Add an entry, as a line of its own or to that of the same run that ends where it begins."""
    with _locked(path):
        entries = read(path)
        before = next((known for known in entries if known.goes_on(entry)), None)
        if before is None:
            entries.append(entry)
        else:
            before.count += entry.count
            before.seconds = round(before.seconds + entry.seconds, 1)
            before.figures = merged((before.figures, entry.figures))
        entries.sort(key=lambda known: (known.check, known.first, known.date))
        partial = path.with_suffix(".partial")
        partial.write_text("".join(f"{_line(known)}\n" for known in entries))
        partial.replace(path)


def shortened(error: Exception) -> str:
    """Return the first line of an error, with the folders left out of absolute paths, which say nothing elsewhere."""
    first = f"{type(error).__name__}: {error}".partition("\n")[0]
    return re.sub(r"(?<![\w.])/(?:[\w.-]+/)+", "", first)[:500]


def _line(entry: Entry) -> str:
    content: dict[str, Any] = asdict(entry)
    return json.dumps({name: value for name, value in content.items() if value not in ({}, "")})


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing the ledger."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
