"""The libraries that measure: optional, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastbert.errors import UserError


def library(name: str) -> Any:
    """A module of the extra `tasks`."""
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"this metric needs the package that holds {name!r}: `pip install fastbert-engine[tasks]`"
        ) from None
