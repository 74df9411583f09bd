"""Rows that cannot be used: collected over a whole file, then refused in one error or skipped and reported."""

from __future__ import annotations

import logging
from types import TracebackType

from fastbert.errors import UserError

logger = logging.getLogger("fastbert")
NAMED = 3  # bad rows that a message describes


class BadRows:
    """Collect the bad rows of a file.

    `with bad.row(number):` records a `UserError` raised inside as the problem of that row and continues behind the
    block. `skip` is the value of `--skip-bad`, None where the command has no such flag.
    """

    def __init__(self, path: str, *, skip: bool | None = None, unit: str = "row") -> None:
        self.path, self.skip, self.unit = path, skip, unit
        self._problems: dict[int, str] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._problems)

    def __contains__(self, number: object) -> bool:
        return number in self._problems

    def add(self, number: int, problem: str) -> None:
        """Record what is wrong with a row, place first (`line 3: ...`); of several problems the first is kept."""
        self._problems.setdefault(number, problem.removeprefix(f"{self.path}, "))

    def row(self, number: int) -> BadRows:
        """Return the context in which a row is read."""
        self._number = number
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, UserError):
            return False
        self.add(self._number, str(error))
        return True

    def numbers(self) -> list[int]:
        """Return the numbers of the bad rows, in order."""
        return sorted(self._problems)

    def settle(self, good: int) -> None:
        """Report the bad rows where they are skipped and `good` rows are left; raise one UserError otherwise."""
        count = len(self._problems)
        if not count:
            return
        described = [self._problems[number] for number in sorted(self._problems)[:NAMED]]
        if count > 1:
            # One cure for all replaces that of each.
            described = [problem.partition("; ")[0] for problem in described]
        listed = "; ".join(described)
        if self.skip and good:
            logger.warning(
                "%s: skipped %d bad %ss, %d are left: %s%s",
                self.path, count, self.unit, good, listed, "; ..." if count > NAMED else "",
            )  # fmt: skip
            return
        if self.skip:
            listed += f" ({count} bad {self.unit}s in all, and no good one); correct the file or name another"
        elif count > 1:
            cure = "" if self.skip is None else ", or skip them with --skip-bad"
            listed += f" ({count} bad {self.unit}s in all); correct them{cure}"
        elif self.skip is not None:
            listed += f", or skip such {self.unit}s with --skip-bad"
        raise UserError(f"{self.path}, {listed}")
