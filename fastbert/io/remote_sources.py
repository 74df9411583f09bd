"""Files behind URLs (s3://, https://, memory:// ...) that are read as streams, from their beginning to their end."""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from fastbert.errors import UserError
from fastbert.io.locations import filesystem, reason_of

_WEB = re.compile(r"https?://", re.IGNORECASE)
_STREAM_BYTES = 1 << 20
# Failures of the packages that file systems need which are no OSError.
_ERRORS = {
    "aiohttp": ("ClientError", "InvalidURL"),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "fsspec.exceptions": ("FSTimeoutError",),
}


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL; `size` in bytes, None if the server does not tell."""

    url: str
    size: int | None = None

    def __str__(self) -> str:
        return shown_url(self.url)

    @property
    def name(self) -> str:
        """Return the last part of the path, without a query."""
        return _path(self.url).name

    @property
    def suffix(self) -> str:
        """Return the suffix of the name, with its dot."""
        return _path(self.url).suffix

    def open(self, *, seekable: bool = False, error: type[UserError] = UserError) -> IO[bytes]:
        """Open the file for reading, from the beginning to the end unless `seekable`. Raises `error`, also while it is
        read."""
        with reported(self.url, error):
            system, path = filesystem(self.url)
            # A stream over HTTP is one request; elsewhere blocks of this size are read ahead.
            block = 0 if is_web(self.url) and not seekable else 5 * _STREAM_BYTES
            file = _Reported(system.open(path, "rb", block_size=block), self.url, error)
            return io.BufferedReader(file, _STREAM_BYTES)


class _Reported(io.RawIOBase):
    """A remote file whose errors name it."""

    def __init__(self, file: Any, url: str, error: type[UserError]) -> None:
        self._file, self._url, self._error = file, url, error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        with reported(self._url, self._error):
            return int(self._file.seek(offset, whence))

    def readinto(self, memory: Any) -> int:
        with reported(self._url, self._error):
            data = self._file.read(len(memory))
        memory[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def find_remote(url: str, *, is_file: bool, error: type[UserError] = UserError) -> list[RemoteFile]:
    """Return the file that a URL names, or all files below a folder or of a pattern, sorted.

    `is_file`: the URL names a file, as its suffix tells; http and https know nothing else. Raises `error`, which names
    the URL, if there is nothing, or it cannot be reached.
    """
    with reported(url, error):
        system, path = filesystem(url)
        if is_web(url):
            return [RemoteFile(url, system.info(path).get("size"))]
        has_magic = any(character in path for character in "*?[")
        if is_file and not has_magic:
            return [RemoteFile(system.unstrip_protocol(path), system.info(path).get("size"))]
        listed = (system.glob if has_magic else system.find)(path, detail=True)
        files = {name: info for name, info in listed.items() if info.get("type") != "directory"}
        if not files:
            raise FileNotFoundError(path)
        return [RemoteFile(system.unstrip_protocol(name), files[name].get("size")) for name in sorted(files)]


def is_web(url: str) -> bool:
    """Return True for a URL of HTTP, where there are neither folders nor patterns."""
    return _WEB.match(url) is not None


def shown_url(url: str) -> str:
    """Return a URL without the user's password and without a query, which may hold a signature."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return url
    return parts._replace(netloc=host, query="", fragment="").geturl() if parts.netloc else url.partition("?")[0]


@contextmanager
def reported(url: str, error: type[UserError]) -> Iterator[None]:
    """Turn what fails with a remote file into an `error` of one line, which names its URL."""
    try:
        yield
    except UserError as failure:
        raise error(str(failure).replace(url, shown_url(url))) from None
    except _failures() as failure:
        if isinstance(failure, FileNotFoundError) and isinstance(failure.__cause__, _failures()):
            failure = failure.__cause__  # of HTTP: whatever went wrong
        raise error(
            f"{shown_url(url)}: {reason_of(failure)}; correct the URL, repeat the command, or copy the file to a disk"
        ) from None


def _failures() -> tuple[type[BaseException], ...]:
    """Return what can fail: errors of the system, and those of the packages that are loaded."""
    kinds: list[type[BaseException]] = [OSError, ValueError, EOFError, asyncio.TimeoutError]
    for module, names in _ERRORS.items():
        loaded = sys.modules.get(module)
        kinds += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(kinds)


def _path(url: str) -> PurePosixPath:
    """Return the path of a URL; of HTTP without a query."""
    if is_web(url):
        return PurePosixPath(unquote(urlsplit(url).path))
    return PurePosixPath(url.partition("://")[2])
