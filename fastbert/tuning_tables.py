"""Locate, read and write the tables that `fastbert doctor --tune` measures on this machine."""

from __future__ import annotations

import errno
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.log import logger
from fastbert.io.untrusted_input import require_regular_file

CURE = "`fastbert doctor --tune` writes a new one"
Table = TypeVar("Table")


def cpu_model() -> str:
    """Return the model name of the processor, by which tables measured on it are found."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def path_of(variable: str, name: str) -> Path:
    """Return the file that an environment variable names, or `name` in the user's cache folder."""
    configured = os.environ.get(variable)
    if configured:
        return Path(configured)
    # For a user without a home, as in many containers, "~" is not expanded: the path does not exist.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "fastbert" / name


def read(path: Path, kind: str, version: int, parse: Callable[[dict[str, Any]], Table]) -> Table:
    """Return `parse` of a file of format `version`; `kind` is the file's name in messages.

    Raises UserError where the file cannot be read, or `parse` raises ValueError, KeyError, TypeError or AttributeError.
    """
    try:
        require_regular_file(path)
        document = json.loads(path.read_text(encoding="utf-8"))
        found_version, table = document["format"], parse(document)
    except OSError as error:
        raise UserError(f"cannot read the {kind} {path}: {error.strerror}; {CURE}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is not a {kind} ({type(error).__name__}: {error}): {CURE}") from error
    if found_version != version:
        raise UserError(f"{path} has format {found_version!r}, this version reads {version}: {CURE}")
    return table


def read_or_empty(path: Path, load: Callable[[Path], dict[str, Any]], instead: str) -> dict[str, Any]:
    """Return what `load` reads, or nothing if the file is missing or refused; a refusal is logged, with what is used
    `instead`."""
    # Unlike Path.exists, False for a folder without search permission.
    if not os.path.exists(path):
        return {}
    try:
        return load(path)
    except UserError as error:
        logger.warning("%s; %s", error, instead)
        return {}


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a file atomically, in a folder that is created if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def require_writable(path: Path) -> None:
    """Raise UserError if a file cannot be written; called before the measurements."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
