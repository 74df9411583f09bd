"""Files behind URLs (s3://, https://, memory:// ...), read through fsspec as streams.

Credentials, endpoints and proxies are fsspec's own: environment variables such as AWS_ENDPOINT_URL, and its
configuration files.
"""

from __future__ import annotations

import asyncio
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, NewType
from urllib.parse import unquote, urlsplit

from fastbert.errors import UserError, require_package

Location = NewType("Location", str)
"""A path, a glob pattern or a URL, as a user types it. The type of flags that take all of them: a Path would turn s3://a
into s3:/a."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_WEB = ("http", "https")
_STREAM_BYTES = 1 << 20
# Seconds without a byte after which a server counts as gone; a stream as a whole may take as long as it likes.
_PATIENCE = 60
# The packages that a protocol needs, and their failures, which are no OSError.
_ERRORS = {
    "aiohttp": ("ClientError", "InvalidURL"),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "fsspec.exceptions": ("FSTimeoutError",),
}


def is_url(location: Any) -> bool:
    """Return whether a location is a URL; file:// counts as one."""
    return isinstance(location, str) and _URL.match(location) is not None


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
            system, path = _system(self.url)
            # A stream over HTTP is one request; elsewhere blocks of this size are read ahead.
            block = 0 if _scheme(self.url) in _WEB and not seekable else 5 * _STREAM_BYTES
            return io.BufferedReader(
                _Reported(system.open(path, "rb", block_size=block), self.url, error), _STREAM_BYTES
            )


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
        system, path = _system(url)
        if _scheme(url) in _WEB:
            return [RemoteFile(url, system.info(path).get("size"))]
        if is_file and not _has_magic(path):
            return [RemoteFile(system.unstrip_protocol(path), system.info(path).get("size"))]
        if _has_magic(path):
            listed = system.glob(path, detail=True)
        else:
            listed = system.find(path, detail=True)
        files = {name: info for name, info in listed.items() if info.get("type") != "directory"}
        if not files:
            raise FileNotFoundError(path)
        return [RemoteFile(system.unstrip_protocol(name), files[name].get("size")) for name in sorted(files)]


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
    name = shown_url(url)
    try:
        yield
    except UserError:
        raise
    except ImportError as failure:  # of fsspec, for the package of a protocol
        reason = " ".join(str(failure).split())
        raise error(
            f"{name}: {reason or 'a package is missing'}; `pip install 'fastbert-engine[remote]'` has those of s3://"
            " and https://"
        ) from None
    except _failures() as failure:
        raise error(f"{name}: {_reason(failure)}") from None


def _failures() -> tuple[type[BaseException], ...]:
    """Return what can fail: errors of the system, and those of the packages that are loaded."""
    kinds: list[type[BaseException]] = [OSError, ValueError, EOFError, asyncio.TimeoutError]
    for module, names in _ERRORS.items():
        loaded = sys.modules.get(module)
        kinds += [getattr(loaded, name) for name in names if hasattr(loaded, name)]
    return tuple(kinds)


def _reason(failure: BaseException) -> str:
    if isinstance(failure, FileNotFoundError) and isinstance(failure.__cause__, _failures()):
        failure = failure.__cause__  # of HTTP: whatever went wrong
    status = getattr(failure, "status", None)
    text = " ".join(str(failure).split())[:200]
    if isinstance(failure, FileNotFoundError) or status == 404:
        return "no such file or folder (the server answered not found); correct the URL"
    if isinstance(failure, PermissionError) or status in (401, 403) or "credentials" in text.lower():
        return f"no permission ({text or 'the server refused'}); give the credentials of its service, or another URL"
    if isinstance(failure, asyncio.TimeoutError | TimeoutError) or type(failure).__name__ == "FSTimeoutError":
        return f"no answer within {_PATIENCE} seconds; repeat the command, or copy the file to a disk"
    if isinstance(failure, ValueError) and "rotocol not known" in text:
        return f"an unknown protocol ({text}); name a file, or a URL such as s3:// or https://"
    detail = f"{type(failure).__name__}: {text}" if text else type(failure).__name__
    return f"cannot be read ({detail}); repeat the command, or copy the file to a disk"


def _system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    fsspec = require_package(
        "fsspec", f"{shown_url(url)}: URLs need the package fsspec: `pip install 'fastbert-engine[remote]'`"
    )
    options: dict[str, Any] = {}
    if _scheme(url) in _WEB:
        aiohttp = require_package(
            "aiohttp", f"{shown_url(url)}: needs the package aiohttp: `pip install 'fastbert-engine[remote]'`"
        )
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_PATIENCE, sock_read=_PATIENCE)
        options = {"client_kwargs": {"timeout": timeout}}
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, path


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower()


def _has_magic(path: str) -> bool:
    return any(character in path for character in "*?[")


def _path(url: str) -> PurePosixPath:
    """Return the path of a URL; of HTTP without a query."""
    if _scheme(url) in _WEB:
        return PurePosixPath(unquote(urlsplit(url).path))
    return PurePosixPath(url.partition("://")[2])
