"""The progress of each step of a run by the clock, in schedule.jsonl, so that a resumed or replayed run repeats it.

With --hours, the learning rate of a step depends on how fast the machine was. A resumed run takes the progress of the
steps after its checkpoint from this log, and goes by the clock where the log ends. The first line holds the format, and
each further line a step.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError
from fastbert.io.atomic_write import atomic_write
from fastbert.io.log import logger
from fastbert.io.untrusted_input import UntrustedFile, shown

FILE = "schedule.jsonl"
FORMAT_VERSION = 1
_CHUNK = 1 << 16
_MAX_LINE = 1 << 12


@dataclass(frozen=True)
class ScheduledStep:
    """A line of schedule.jsonl: a step (from 1), the finished fraction of the run that its schedule follows, 0 to 1,
    and further finite numbers by name, such as seconds of training."""

    step: int
    progress: float
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Any) -> ScheduledStep:
        """Return the step that a line holds. Raises ValueError."""
        if not isinstance(record, dict):
            raise ValueError(f"{shown(record)} is not an object")
        values = dict(record)
        step, progress = values.pop("step", None), values.pop("progress", None)
        if not isinstance(step, int) or isinstance(step, bool) or step < 1:
            raise ValueError(f"step {shown(step)}")
        for name, value in {"progress": progress, **values}.items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
                raise ValueError(f"{name} {shown(value)} is not a finite number")
        if not 0 <= progress <= 1:
            raise ValueError(f"progress {progress} is not from 0 to 1")
        return cls(step, float(progress), values)

    def line(self) -> str:
        """Return the step as a line; floats are read back to the bit."""
        return json.dumps({"step": self.step, "progress": self.progress, **self.values}) + "\n"


class ScheduleLog:
    """Appends a line per step to a schedule.jsonl, without gaps.

    A killed process loses no line; a power failure loses at most those since the last `sync`. A last line that was cut
    short is dropped when the log is opened. Not for several threads, except `sync`.
    """

    def __init__(self, path: Path, after: int | None = None, *, replay: bool = True) -> None:
        """Start an empty log, or continue that of a run which resumes after step `after`.

        Lines of later steps are kept, up to the first gap, and returned by `recorded`; without `replay`, as for a run
        with another --hours, they are dropped. Raises `CheckpointError` for a file of a newer format, or one that
        cannot be written.
        """
        self.path = path
        self._replayed = dict[int, ScheduledStep]()
        self.last_step: int = after or 0
        """The last step in the log, or before it."""
        try:
            with atomic_write(path) as partial, partial.open("w", encoding="utf-8") as file:
                file.write(json.dumps({"format_version": FORMAT_VERSION}) + "\n")
                for step in _kept(path, after, replay=replay) if after else ():
                    file.write(step.line())
                    if after is not None and step.step > after:
                        self._replayed[step.step], self.last_step = step, step.step
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._failed(error) from None
        self._size = os.fstat(self._file).st_size

    def recorded(self, step: int) -> ScheduledStep | None:
        """Return the line of a step after the one that the run resumed from; None where the clock decides."""
        return self._replayed.get(step)

    def append(self, step: int, progress: float, **values: float) -> None:
        """Append the line of a step and pass it to the system; a replayed step is in the log already.

        Raises `CheckpointError` for a full disk, and `ValueError` for a step that does not follow the last one, numbers
        that are not finite, or a replayed step whose progress differs.
        """
        scheduled = ScheduledStep.of({"step": step, "progress": progress, **values})
        replayed = self._replayed.pop(step, None)
        if replayed is not None:
            if replayed.progress != scheduled.progress:
                raise ValueError(f"step {step} is replayed with progress {progress}, not {replayed.progress}")
            return
        if step != self.last_step + 1:
            raise ValueError(f"step {step} does not follow step {self.last_step} in {self.path}")
        data = scheduled.line().encode()
        try:
            if os.write(self._file, data) != len(data):
                raise OSError("the line was cut short")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise self._failed(error) from None
        self._size += len(data)
        self.last_step = step

    def values(self, from_step: int) -> Iterator[ScheduledStep]:
        """Yield the lines of the log from a step on, up to the first gap."""
        return scheduled_steps(self.path, from_step)

    def sync(self) -> None:
        """Flush all lines to the disk, as a checkpoint requires for those up to its step. Raises OSError."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file; nothing can be appended afterwards."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> ScheduleLog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _failed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: cannot be written ({error}); free some disk space and continue with --resume"
        )


def scheduled_steps(path: Path, from_step: int = 1) -> Iterator[ScheduledStep]:
    """Yield the steps of a schedule.jsonl from `from_step` on, without gaps; nothing where that step is missing.

    Memory does not grow with the file. Raises `CheckpointError` for a missing file and one of a newer format.
    """
    expected = from_step
    for step in _lines(path):
        if step is None or step.step < expected:
            continue
        if step.step != expected:
            return
        yield step
        expected += 1


def _kept(path: Path, after: int, *, replay: bool) -> Iterator[ScheduledStep]:
    """Yield the steps of an earlier start up to `after`, and with `replay` those that follow it without a gap."""
    if not path.exists():
        return
    last, damaged = 0, 0
    for step in _lines(path):
        if step is None or step.step <= last:
            damaged += 1
            continue
        if step.step > after and (not replay or step.step != max(last, after) + 1):
            break
        last = step.step
        yield step
    if damaged:
        logger.warning("%s: %d line(s) are not steps of a schedule, or repeat one; they are dropped", path, damaged)


def _lines(path: Path) -> Iterator[ScheduledStep | None]:
    """Yield the steps of a file in its order, None for a line that holds none."""
    for number, line in enumerate(_bounded_lines(path)):
        try:
            record = json.loads(line)
            version = record.get("format_version") if number == 0 and isinstance(record, dict) else None
            if isinstance(version, int) and version > FORMAT_VERSION:
                raise CheckpointError(f"{path}: written by a newer fastbert (format {shown(version)}); update fastbert")
            if version != FORMAT_VERSION:
                yield ScheduledStep.of(record)
        except CheckpointError:
            raise
        except (ValueError, RecursionError):
            yield None


def _bounded_lines(path: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file; a longer one than the log writes is cut, and holds no step."""
    rest = b""
    with UntrustedFile(path) as file:
        for offset in range(0, file.size, _CHUNK):
            *lines, rest = (rest + file.read(offset, min(_CHUNK, file.size - offset))).split(b"\n")
            yield from (line[:_MAX_LINE] for line in lines)
            rest = rest[: _MAX_LINE + 1]
