"""Files of what `fastbert doctor --tune` measured on this machine: where they lie, how they are read and written."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeVar

from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.untrusted_input import require_regular_file

CURE = "`fastbert doctor --tune` writes a new one"
Table = TypeVar("Table")
logger = logging.getLogger("fastbert")


def cpu_model() -> str:
    """Return the model name of the processor, by which tables measured on it are found."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def place(variable: str, name: str) -> Path:
    """The file that the environment variable names, or `name` in the user's cache folder."""
    named = os.environ.get(variable)
    if named:
        return Path(named)
    # A user without a home, as in many containers, leaves "~" as it stands: a path that is not there.
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "fastbert" / name


def read(path: Path, kind: str, version: int, parse: Callable[[dict[str, Any]], Table]) -> Table:
    """What `parse` makes of a file of format `version`; `kind` is what messages call it.

    Raises UserError where the file cannot be read, or `parse` raises ValueError, KeyError, TypeError or AttributeError.
    """
    try:
        require_regular_file(path)
        document = json.loads(path.read_text(encoding="utf-8"))
        found, table = document["format"], parse(document)
    except OSError as error:
        raise UserError(f"cannot read the {kind} {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no {kind} ({type(error).__name__}: {error}): {CURE}") from error
    if found != version:
        raise UserError(f"{path} has format {found!r}, this version reads {version}: {CURE}")
    return table


def read_or_empty(path: Path, load: Callable[[Path], dict[str, Any]], instead: str) -> dict[str, Any]:
    """What `load` reads, or nothing; a file that it refuses is named in the log, with what is used `instead`."""
    # Unlike Path.exists, False for a folder that may not be entered.
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
    """Find out before anything is measured that a file can be written. Raises UserError."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
