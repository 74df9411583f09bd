"""Open files that a user names, without waiting for a pipe or reading a device without end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from fastbert.errors import UserError

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def require_regular_file(path: str | os.PathLike[str], error: type[UserError] = UserError) -> None:
    """Raise `error` if `path` is a folder, a pipe, a socket or a device.

    Links are followed. Raises OSError where the path cannot be examined, FileNotFoundError for one that does not exist.
    """
    _check(path, os.stat(path).st_mode, error)


def open_regular(path: str | os.PathLike[str], error: type[UserError] = UserError) -> IO[bytes]:
    """Open a regular file for reading, buffered.

    The check does not open anything that is not a regular file, and a path that is exchanged for a pipe after the check
    does not block: it is examined once more when it is open.

    Raises:
        error: the path is a folder, a pipe, a socket or a device.
        OSError: it cannot be opened.
    """
    require_regular_file(path, error)
    # Closed by whoever asked for it.
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115
    try:
        _check(path, os.fstat(file.fileno()).st_mode, error)
    except UserError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most: int, error: type[UserError] = UserError) -> bytes:
    """Read a regular file of at most `most` bytes; raises as `open_regular` does, and `error` for a larger file."""
    with open_regular(path, error) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if size > most or len(data) > most:
        raise error(f"{path}: has {max(size, len(data)):,} bytes, and at most {most:,} are read; name a smaller file")
    return data


def _open_at_once(path: str, flags: int) -> int:
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it. It has no effect on regular files.
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _check(path: str | os.PathLike[str], mode: int, error: type[UserError]) -> None:
    if stat.S_ISREG(mode):
        return
    kind = next((name for matches, name in _KINDS if matches(mode)), "a special file")
    raise error(f"{Path(path)}: is {kind}, not a regular file; name a file on disk")
