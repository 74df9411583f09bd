"""Values that follow the progress of a run: the learning rate, and piecewise linear schedules of any other number.

All are pure functions of the finished fraction of the run, so that a resumed run has the values of an uninterrupted
one. Imports no torch: flags are checked with this module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fastbert.errors import UserError

Schedule = Literal["linear", "cosine", "wsd", "constant"]
DECAY_FRACTION = 0.2
"""Default length of wsd's decay; Hägele et al. 2024 (figure 6) find little gain from a longer one."""
_SHOWN = 60  # characters of a malformed schedule in an error message


def learning_rate_factor(
    progress: float,
    warmup: float,
    schedule: Schedule = "linear",
    *,
    decay_fraction: float = DECAY_FRACTION,
    min_ratio: float = 0.0,
) -> float:
    """Return the learning rate at `progress` (0 to 1) as a fraction of the peak.

    Linear warm-up from zero over the first `warmup` of the run, then:

    - linear, cosine: decay over the rest of the run;
    - constant: no decay;
    - wsd (warm-up, stable, decay): constant until the last `decay_fraction` of the run, then decay with 1 - sqrt(x),
      where x is the finished fraction of the decay (Hägele et al. 2024, section 4; ModernBERT's decay, Warner et al.
      2024, section 3).

    Decays end at `min_ratio`.
    """
    if progress < warmup:
        return progress / warmup
    if schedule == "constant":
        return 1.0
    if schedule == "wsd":
        remaining = 1.0 - math.sqrt(max(1.0 - (1.0 - progress) / decay_fraction, 0.0))
    else:
        remaining = (1.0 - progress) / (1.0 - warmup)
        if schedule == "cosine":
            remaining = 0.5 - 0.5 * math.cos(math.pi * remaining)
    return min_ratio + (1.0 - min_ratio) * remaining


@dataclass(frozen=True)
class Segment:
    """A part of a schedule, up to the finished fraction `end` of the run: linear from `first` to `last`."""

    end: float
    first: float
    last: float


@dataclass(frozen=True)
class ScheduledValue:
    """A number that follows the progress of a run: linear segments, one after the other.

    Written as segments separated by commas, each `value` or `from:to`, and `@end` behind all but the last, the finished
    fraction of the run at which the segment ends:

    - `0.3`: constant;
    - `0.3:0.15`: linear from 0.3 at the beginning of the run to 0.15 at its end;
    - `0.3@0.8,0.15`: 0.3 in the first 80 % of the run, then 0.15;
    - `64:512@0.1,512`: linear from 64 to 512 in the first 10 % of the run, then 512.
    """

    segments: tuple[Segment, ...]

    @classmethod
    def parse(cls, text: str | float, name: str = "schedule") -> ScheduledValue:
        """Return the schedule that `text` describes. Raises `UserError`, which begins with `name`, such as a flag."""
        pieces = str(text).split(",")
        start = 0.0
        segments: list[Segment] = []
        for number, piece in enumerate(pieces, start=1):
            values, at, end_text = piece.partition("@")
            ends_run = number == len(pieces)
            if not ends_run and not at:
                raise _error(name, text, f"part {number} needs @ and the fraction of the run at which it ends")
            end = _number(end_text, name, text) if at else 1.0
            if not start < end <= 1.0 or ends_run != (end == 1.0):
                raise _error(
                    name, text, "the fractions behind @ must increase, between 0 and 1, and the last part has none"
                )
            first, colon, last = values.partition(":")
            first_value = _number(first, name, text)
            segments.append(Segment(end, first_value, _number(last, name, text) if colon else first_value))
            start = end
        return cls(tuple(segments))

    def at(self, progress: float) -> float:
        """Return the value at `progress`, 0 to 1; where a segment ends, the next one's first value."""
        start = 0.0
        for segment in self.segments[:-1]:
            if progress < segment.end:
                break
            start = segment.end
        else:
            segment = self.segments[-1]
        if segment.first == segment.last:
            return segment.first
        share = min(max((progress - start) / (segment.end - start), 0.0), 1.0)
        return (1.0 - share) * segment.first + share * segment.last

    @property
    def smallest(self) -> float:
        """Return the smallest value of the run."""
        return min(min(segment.first, segment.last) for segment in self.segments)

    @property
    def largest(self) -> float:
        """Return the largest value of the run."""
        return max(max(segment.first, segment.last) for segment in self.segments)

    @property
    def mean(self) -> float:
        """Return the mean over the run."""
        starts = (0.0, *(segment.end for segment in self.segments))
        return sum(
            (segment.end - start) * (segment.first + segment.last) / 2
            for start, segment in zip(starts, self.segments, strict=False)
        )

    @property
    def is_constant(self) -> bool:
        """Return whether the value is the same in the whole run."""
        return self.smallest == self.largest

    def __str__(self) -> str:
        """Return the text that `parse` reads as this schedule."""
        pieces = []
        for segment in self.segments:
            rising = "" if segment.first == segment.last else f":{segment.last!r}"
            pieces.append(f"{segment.first!r}{rising}" + (f"@{segment.end!r}" if segment.end < 1.0 else ""))
        return ",".join(pieces)


def _number(digits: str, name: str, text: str | float) -> float:
    """Return a finite number of a schedule."""
    try:
        value = float(digits)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _error(name, text, f"{_shortened(digits)!r} is not a number")
    return value


def _error(name: str, text: str | float, reason: str) -> UserError:
    return UserError(
        f"{name} {_shortened(str(text))}: {reason}; write 0.3 (constant), 0.3:0.15 (linear over the run), or"
        " 0.3@0.8,0.15 (0.3 in the first 80 % of the run, then 0.15)"
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
