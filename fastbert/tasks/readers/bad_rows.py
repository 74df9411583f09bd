"""Rows that cannot be used: collected over a whole file, then refused in one error or skipped and reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastbert.errors import UserError
from fastbert.io.log import logger

NAMED = 3  # bad rows that a message describes


class BadRows:
    """Collect the bad rows of a file.

    `skip` is the value of `--skip-bad`, None if the command has no such flag.
    """

    def __init__(self, path: str, *, skip: bool | None = None, unit: str = "row") -> None:
        self.path = path
        self.skip = skip
        self.unit = unit
        self._problems: dict[int, str] = {}

    def add(self, number: int, problem: str) -> None:
        """Record the problem of a row, after its position (`line 3: ...`); only the first problem of a row is kept."""
        self._problems.setdefault(number, problem.removeprefix(f"{self.path}, "))

    @contextmanager
    def row(self, number: int) -> Iterator[None]:
        """Record a `UserError` raised inside as the problem of this row, and continue after the block."""
        try:
            yield
        except UserError as error:
            self.add(number, str(error))

    def numbers(self) -> list[int]:
        """Return the numbers of the bad rows, in order."""
        return sorted(self._problems)

    def settle(self, good: int) -> None:
        """Log the bad rows if they are skipped and `good` rows are left; otherwise raise one UserError."""
        count, unit = len(self._problems), self.unit
        if not count:
            return
        named = [self._problems[number] for number in sorted(self._problems)[:NAMED]]
        # A problem ends with its cure, which several problems may share.
        cures = {problem.partition("; ")[2] for problem in named}
        cure = cures.pop() if len(cures) == 1 else "correct them"
        listed = "; ".join(problem.partition("; ")[0] for problem in named)
        if self.skip and good:
            more = "; ..." if count > NAMED else ""
            skipped = f"{count} bad {unit}{'s' if count > 1 else ''}"
            logger.warning("%s: skipped %s; %d examples are left: %s%s", self.path, skipped, good, listed, more)
            return
        if count > 1 or self.skip:
            left = ", and no good one" if not good else ""
            listed += f" ({count} bad {unit}{'s' if count > 1 else ''} in all{left})"
        skipping = f", or skip such {unit}s with --skip-bad" if self.skip is False and good else ""
        raise UserError(f"{self.path}, {listed}; {cure or 'correct it'}{skipping}")
