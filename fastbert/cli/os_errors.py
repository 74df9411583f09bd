"""Describe errors of the operating system: the flag whose file or folder they are about, and the cure."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from fastbert.flags import flag

OUTPUTS = ("out", "json", "report", "chart")
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


def describe(error: OSError, config: Any) -> str:
    """Return one line for an error while a command ran with the flags in `config`.

    A temporary file is that of the output that it would have become. An error without a file name, which is how `write`
    reports a full disk, is about the first output.
    """
    reason = error.strerror or type(error).__name__
    failed = None if error.filename is None else Path(str(error.filename))
    for name, path in _paths(config):
        if failed is None and error.errno in _FULL_DISK and name in OUTPUTS:
            return f"{flag(name)} {path}: {reason}; {_cure(error.errno, is_output=True)}"
        if failed is not None and _is_of(failed.absolute(), path.absolute(), is_output=name in OUTPUTS):
            cure = _cure(error.errno, is_output=name in OUTPUTS)
            return f"{flag(name)} {path}: {reason}" + (f"; {cure}" if cure else "")
    if failed is None:
        return str(error) or type(error).__name__
    return f"{failed}: {reason}"


def _paths(config: Any) -> Iterator[tuple[str, Path]]:
    """Yield the paths among the flags by their names, outputs first."""
    names = [item.name for item in fields(config)]
    for name in sorted(names, key=lambda name: name not in OUTPUTS):
        value = getattr(config, name)
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Path) or (isinstance(each, str) and each):
                yield name, Path(each)


def _is_of(failed: Path, path: Path, *, is_output: bool) -> bool:
    """Return True for the path itself, and if it is an output for what is inside of it or a temporary file of it."""
    if failed == path or not is_output:
        return failed == path
    return path in failed.parents or failed in path.parents or _is_temporary(failed, path)


def _is_temporary(failed: Path, path: Path) -> bool:
    return failed.parent == path.parent and failed.name.lstrip(".").startswith(f"{path.name}.")


def _cure(number: int | None, *, is_output: bool) -> str:
    if number in _FULL_DISK:
        return "free some space, or name a place on another disk"
    if number in _NOT_ALLOWED or (number == errno.ENOENT and is_output):
        return "name a place that you may write to" if is_output else "name a file that you may read"
    return ""
