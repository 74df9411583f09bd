"""RUN/tracking/runs.json: the identity that each tracker gave a run or trial, and the last line that it was given.

A tracker that was given up, or whose process was killed, gets the lines after that one when the run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from fastbert.errors import CheckpointError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.log import logger
from fastbert.io.untrusted_input import read_json_object
from fastbert.training.reporter import Record

FOLDER, FILE = "tracking", "runs.json"
"""The folder of trackers in a run's folder, and the file in it."""


class Position(NamedTuple):
    """The place of a line in metrics.jsonl. A validation comes after the line of its step ("train" < "validation"), and
    after it a second one, that of averaged weights."""

    step: int
    split: str
    repetition: int = 0


NOTHING = Position(-1, "")
"""Before all lines."""


def behind(step: int) -> Position:
    """Return the place after all lines of a step."""
    return Position(step + 1, "")


@dataclass
class Positions:
    """Gives the lines of a run their positions, one after the other."""

    last: Position = NOTHING

    def of(self, line: Record) -> Position:
        """Return the position of the next line."""
        step, split = int(line["step"]), str(line["split"])
        again = (step, split) == self.last[:2]
        self.last = Position(step, split, self.last.repetition + 1 if again else 0)
        return self.last

    def restart(self) -> None:
        """Begin anew: lines that were written may be written again."""
        self.last = NOTHING


def placed(lines: Iterable[Record]) -> Iterator[tuple[Position, Record]]:
    """Yield each line of a run or trial with its position."""
    positions = Positions()
    return ((positions.of(line), line) for line in lines)


@dataclass(frozen=True)
class Known:
    """What a tracker has of a run or trial."""

    identity: str
    last: Position
    """The last line that it was given."""

    @classmethod
    def of(cls, values: Any) -> Self | None:
        """Read the entry of a run or trial; return None for one that cannot be read."""
        try:
            step, split, repetition = values["last"]
            return cls(str(values["identity"]), Position(int(step), str(split), int(repetition)))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


@dataclass
class Progress:
    """The entries of runs.json in the folder of a run, by tracker and by run or trial."""

    out: Path
    entries: dict[str, dict[str, Known]] = field(default_factory=dict)

    @classmethod
    def read(cls, out: Path) -> Self:
        """Read the file; a damaged one is reported, and counts as none."""
        path = out / FOLDER / FILE
        try:
            values: Mapping[str, Any] = read_json_object(path) if path.exists() else {}
        except (CheckpointError, OSError) as error:
            logger.warning("%s; trackers begin new curves", error)
            return cls(out)
        return cls(
            out,
            {
                name: {str(key): known for key, entry in runs.items() if (known := Known.of(entry)) is not None}
                for name, runs in values.items()
                if isinstance(runs, dict)
            },
        )

    def get(self, tracker: str, key: str) -> Known | None:
        """Return the entry of a run or trial in a tracker."""
        return self.entries.get(tracker, {}).get(key)

    def set(self, tracker: str, key: str, known: Known) -> None:
        """Change an entry; `write` stores it."""
        self.entries.setdefault(tracker, {})[key] = known

    def write(self) -> None:
        """Replace the file atomically. Raises OSError."""
        (self.out / FOLDER).mkdir(parents=True, exist_ok=True)
        values = {
            name: {key: {"identity": known.identity, "last": list(known.last)} for key, known in runs.items()}
            for name, runs in self.entries.items()
        }
        write_json_atomic(self.out / FOLDER / FILE, values)
