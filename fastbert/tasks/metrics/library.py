"""The libraries that measure: optional, imported when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fastbert.errors import UserError

# The packages that are not called as their modules are.
PACKAGES = {"sklearn": "scikit-learn", "rouge_score": "rouge-score"}


def library(name: str) -> Any:
    """A module of the extra `tasks`. Raises UserError, with the package to install, where it is missing."""
    package = PACKAGES.get(name.partition(".")[0], name.partition(".")[0])
    try:
        return import_module(name)
    except ImportError:
        raise UserError(
            f"this metric needs the package {package}: `pip install {package}` (the extra `tasks` has all of them)"
        ) from None
