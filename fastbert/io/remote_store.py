"""Write whole files to a folder behind a URL (s3://, gs:// and other file systems of fsspec that can be written to)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fastbert.errors import UserError
from fastbert.io.locations import filesystem
from fastbert.io.remote_files import repeated
from fastbert.io.remote_sources import is_web, shown_url

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds for which a failing call is repeated."""
_CALLS_AT_ONCE = 16


class RemoteStore:
    """A folder behind a URL whose files are written, read, listed and removed by their relative names.

    Args:
        url: of a file system that fsspec opens.
        name: the URL's flag, for messages.

    A transient failure is repeated; for others, methods raise UserError with the URL and the reason. A pickle holds the
    arguments only. Raises UserError for a URL without folders.
    """

    def __init__(self, url: str, name: str = "") -> None:
        self.url: str = url.rstrip("/")
        self.name = name
        self._opened: tuple[Any, str] | None = None
        if "::" in url:
            raise UserError(f"{self}: is a chain of URLs; name the one that the files are written to")
        if is_web(url):
            raise UserError(f"{self}: web servers take no files; name a folder, or a URL such as s3://bucket/folder")
        if not url.partition("://")[2].strip("/"):
            raise UserError(f"{self}: names no folder; add its name")

    def __str__(self) -> str:
        """Return the flag and the URL, without a password."""
        return f"{self.name} {shown_url(self.url)}".lstrip()

    def __getstate__(self) -> dict[str, Any]:
        """Return the arguments: each process opens a file system of its own."""
        return {**vars(self), "_opened": None}

    def address(self, name: str) -> str:
        """Return the flag and the URL of a file."""
        return f"{self}/{name}"

    def open(self) -> tuple[Any, str]:
        """Return the file system, and the path of the folder in it. Raises UserError, as `filesystem` does."""
        if self._opened is None:
            try:
                fs, path = filesystem(self.url)
            except UserError as error:
                raise UserError(f"{self.name} {error}".lstrip().replace(self.url, shown_url(self.url))) from None
            self._opened = fs, path.rstrip("/")
        return self._opened

    def sizes(self) -> dict[str, int]:
        """Return the files below the folder, with their sizes in bytes; none if there is no such folder."""
        fs, root = self.open()

        def find() -> Mapping[str, Mapping[str, Any]]:
            fs.invalidate_cache()
            try:
                found: Mapping[str, Mapping[str, Any]] = fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
            return found

        files: dict[str, int] = {}
        for path, info in self._repeated(find, "").items():
            if path == root:
                raise UserError(f"{self}: is a file; name a folder")
            name = path.removeprefix(f"{root}/")
            if name and name != path:  # empty for an object that marks the folder
                files[name] = int(info.get("size") or 0)
        return files

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is missing."""
        fs, root = self.open()

        def cat() -> bytes | None:
            fs.invalidate_cache()
            try:
                content: bytes = fs.cat_file(f"{root}/{name}")
            except FileNotFoundError:
                return None
            return content

        return self._repeated(cat, name)

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of files, without those that are missing."""
        names = list(names)
        return {name: content for name, content in zip(names, self._at_once(self.read, names)) if content is not None}

    def put(self, path: Path, name: str) -> None:
        """Copy a file of this machine there, whole: object stores show it when it is complete."""
        fs, root = self.open()

        def put_file() -> None:
            try:
                fs.put_file(str(path), f"{root}/{name}")
            except FileNotFoundError:
                raise UserError(f"{self}: not found; make the bucket or the disk first, or correct the URL") from None
            except NotImplementedError:
                raise UserError(
                    f"{self}: its file system cannot be written to; name another URL, or a folder"
                ) from None

        self._repeated(put_file, name, "cannot be written")

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, whole."""
        # Unlike pipe_file, put_file also makes the folders of file systems that have some.
        with tempfile.NamedTemporaryFile(prefix="fastbert-") as file:
            file.write(content)
            file.flush()
            self.put(Path(file.name), name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, those that are there."""
        fs, root = self.open()

        def remove(name: str) -> None:
            def call() -> None:
                with suppress(FileNotFoundError):
                    fs.rm_file(f"{root}/{name}")

            self._repeated(call, name, "cannot be removed")

        self._at_once(remove, list(names))

    def _at_once(self, call: Callable[[str], T], names: list[str]) -> list[T]:
        with ThreadPoolExecutor(_CALLS_AT_ONCE, thread_name_prefix="fastbert-store") as pool:
            return list(pool.map(call, names))

    def _repeated(self, call: Callable[[], T], name: str, problem: str = "cannot be read") -> T:
        address = self.address(name) if name else str(self)
        return repeated(call, address, patience=PATIENCE, problem=problem, retry=lambda: None)
