"""Required flags."""

from __future__ import annotations

from typing import Any

from fastbert.errors import UserError


def require(value: Any, flag: str, meaning: str) -> Any:
    """Return a flag's value. Raises UserError, with the flag's meaning, if it was left out."""
    if value is None or value == ():
        raise UserError(f"{flag} is missing: {meaning}")
    return value
