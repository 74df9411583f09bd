"""Optional libraries of metrics, imported on first use."""

from __future__ import annotations

from typing import Any

from fastbert.errors import require_package

# Packages whose name differs from their module's.
PACKAGES = {"sklearn": "scikit-learn", "rouge_score": "rouge-score"}


def library(name: str) -> Any:
    """Import a module of the extra `tasks`. Raises UserError, naming the package to install, if it is missing."""
    package = PACKAGES.get(name.partition(".")[0], name.partition(".")[0])
    return require_package(
        name, f"this metric needs the package {package}: `pip install {package}` (the extra `tasks` has all of them)"
    )
