"""The steps that a replay computes, as the command line gives them. Imports no torch."""

from __future__ import annotations

from fastbert.errors import UserError


def parse_steps(text: str) -> tuple[int, int]:
    """Return the first and the last step of "100:110", or of a single number. Raises `UserError`."""
    first, colon, last = text.partition(":")
    numbers = (first, last if colon else first)
    if not all(number.isascii() and number.isdecimal() and len(number) < 19 for number in numbers):
        raise UserError(f"--steps {text}: give the first and the last step, such as 100:110")
    begin, end = map(int, numbers)
    if not 1 <= begin <= end:
        raise UserError(f"--steps {text}: the first step is at least 1, and at most the last one")
    return begin, end
