"""Locations of data: local paths, and URLs of any file system that fsspec opens (s3://, gs://, https://, memory://).

Flags that accept both have the type `str` or `LocationText`: a `Path` collapses the two slashes of a URL. Options of a
file system, such as its endpoint and credentials, come from its own environment variables and configuration files, and
from fsspec's (FSSPEC_S3_ENDPOINT_URL, for example).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NewType

from fastbert.errors import UserError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Location = str | os.PathLike[str]
LocationText = NewType("LocationText", str)
"""A location as a user types it, the type of flags: two that lead to the same files are equal when a run is resumed."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(::|://)")
_LOCAL = re.compile(r"(file|local)://")
_COLLAPSED = re.compile(r"(?!file:|local:)([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "http": "aiohttp", "https": "aiohttp", "gs": "gcsfs", "gcs": "gcsfs"}
_REQUEST_SECONDS = 60.0  # of one HTTP request


def is_remote(location: Location | None) -> bool:
    """Return True for a URL, except those of local files (file://).

    Raises UserError for a URL that has lost one of its slashes, as in a `Path`.
    """
    if location is None:
        return False
    text = os.fspath(location)
    if _COLLAPSED.match(text) and not Path(text).exists():
        raise UserError(f"{text}: is a URL with one slash; write two, and give URLs as strings, not as paths")
    return _URL.match(text) is not None and _LOCAL.match(text) is None


def local_path(location: Location) -> Path:
    """Return the path of a location that is not remote."""
    return Path(_LOCAL.sub("", os.fspath(location)))


def join(location: Location, name: str) -> str:
    """Return the location of a file in a folder, by its relative name."""
    if is_remote(location):
        return f"{os.fspath(location).rstrip('/')}/{name}"
    return str(local_path(location) / name)


def filesystem(url: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, and the path of the URL in it.

    Raises UserError for an unknown kind of URL, for a missing package, and for options that the file system refuses.
    """
    scheme = url.split(":", 1)[0]
    try:
        import fsspec
    except ImportError:
        raise UserError(f"{url}: URLs need the package fsspec: `pip install 'fastbert-engine[remote]'`") from None
    try:
        opened: tuple[Any, str] = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        package = _PACKAGES.get(scheme)
        cure = f"the package {package}: `pip install {package}`" if package else f"another package ({error})"
        raise UserError(f"{url}: {scheme}:// needs {cure}") from None
    except (ValueError, TypeError, OSError) as error:
        if "rotocol not known" in str(error):
            raise UserError(f"{url}: fsspec knows no {scheme}://; check the address") from None
        raise UserError(f"{url}: cannot be opened ({reason_of(error)}); check the address and FSSPEC_*") from None
    return opened


def is_transient(error: BaseException) -> bool:
    """Return True for an error of a file system that may vanish when the call is repeated: a lost connection, a server
    that is overloaded or restarting; not for a missing file, a refusal or a wrong call."""
    status = _status(error)
    if status is not None:
        return status in (408, 425, 429) or status >= 500
    permanent = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
    if isinstance(error, (*permanent, ImportError, TypeError, AttributeError)):
        return False
    return not (isinstance(error, ValueError) or "Credentials" in type(error).__name__)


def reason_of(error: BaseException) -> str:
    """Return one line on why a file system failed: not found, access denied, a status, or the error's own words."""
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status == 404:
        return "not found"
    if isinstance(error, PermissionError) or status in (401, 403):
        return "access denied" + (f" (status {status})" if status else "") + "; check the credentials"
    if status is not None:
        return f"the server answered with status {status}"
    words = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {words[:200]}" if words and name not in words else words[:200] or name


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of aiohttp, requests or botocore."""
    status = getattr(error, "status", None)
    if status is None:
        response = getattr(error, "response", None)
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        status = metadata.get("HTTPStatusCode", getattr(response, "status_code", None))
    return status if isinstance(status, int) and 400 <= status < 600 else None


def _options(scheme: str) -> dict[str, Any]:
    """Return options for a file system: a timeout per request, where the default is none or minutes. Raises ImportError
    without its package."""
    if scheme not in ("http", "https"):
        return {}
    import aiohttp

    return {
        "client_kwargs": {"timeout": aiohttp.ClientTimeout(total=None, sock_connect=20, sock_read=_REQUEST_SECONDS)}
    }
