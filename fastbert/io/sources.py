"""Open a file wherever it is: a path on this machine, or a URL behind fsspec."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from fastbert.errors import UserError
from fastbert.io.remote_sources import RemoteFile
from fastbert.io.untrusted_input import open_regular

Source = Path | RemoteFile


def open_source(source: Source, *, seekable: bool = False, error: type[UserError] = UserError) -> IO[bytes]:
    """Open a file for buffered reading, from its beginning to its end unless `seekable`.

    Raises:
        error: a path is not that of a regular file; a URL cannot be opened, or fails while it is read.
        OSError: a file on this machine cannot be opened.
    """
    if isinstance(source, RemoteFile):
        return source.open(seekable=seekable, error=error)
    return open_regular(source, error)


def size_of(source: Source) -> int | None:
    """Return the size in bytes on the disk or the server, None where a server does not tell.

    Raises OSError for a path that does not exist.
    """
    return source.size if isinstance(source, RemoteFile) else source.stat().st_size
