"""What an earlier run left in its folder, and what of it a new run may remove."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from fastbert.errors import UserError


def remove_run(out: Path, names: Sequence[str]) -> None:
    """Remove the named files and folders of a run's folder, and nothing else.

    config.json, which tells that the rest is a run's, goes last: a removal that was interrupted can be repeated.
    """
    for name in sorted(names, key="config.json".__eq__):
        path = out / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def check_spared(out: Path, names: Sequence[str], given: Iterable[tuple[str, Path | None]]) -> None:
    """Refuse a run that would remove what it is given, by flag and path. Raises `UserError`."""
    removed = [out.resolve() / name for name in names]
    for flag, path in given:
        if path is not None and any(path.resolve().is_relative_to(gone) for gone in removed):
            raise UserError(f"{flag} {path}: belongs to the run that --overwrite removes; copy it elsewhere first")
