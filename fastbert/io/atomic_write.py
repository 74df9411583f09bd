"""Write files atomically: after a kill or a power failure, a file has its old content or its new one.

The content is written to `NAME.*.partial` beside the file, flushed to disk, and renamed. Each write has a temporary
name of its own, so of several at the same time the last to finish wins, whole.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fastbert.errors import UserError

_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ABANDONED_SECONDS = 86_400.0  # without a change: the temporary file of a killed process


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield the temporary path to write to; at the end of the block the file there replaces `path`.

    If the block raises, the temporary file is removed and `path` stays as it was. Nested blocks finish inside out: the
    outermost file appears last. A device or a pipe, such as /dev/stdout, is written to directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    partial = partial_path(path)
    try:
        yield partial
        replace_synced(partial, path)
    except BaseException as error:
        name_full_disk(error, path)
        with suppress(OSError):
            partial.unlink()
        raise


def refuse_present(path: Path, overwrite: bool, name: str = "") -> None:
    """Raise UserError if a file at `path` cannot be written or, without `overwrite`, exists; `name` is its flag."""
    named = f"{name} {path}".lstrip()
    if path.is_dir() or not path.absolute().parent.is_dir():
        problem = "is a folder" if path.is_dir() else "cannot be created: its folder is missing"
        raise UserError(f"{named} {problem}; name a file")
    if path.exists() and not overwrite:
        raise UserError(f"{named} exists; give another name, or --overwrite to replace it")


def name_full_disk(error: BaseException | None, path: Path) -> None:
    """Add the file's path to the error of a full disk: unlike open(), write() raises it without one."""
    if isinstance(error, OSError) and error.filename is None and error.errno in _FULL_DISK:
        error.filename = str(path)


def write_atomic(path: Path, text: str) -> None:
    """Replace a text file (UTF-8) atomically. Raises OSError."""
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json_atomic(path: Path, content: Any, *, ensure_ascii: bool = True) -> None:
    """Replace a JSON file atomically, indented by two spaces. Raises OSError."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=ensure_ascii) + "\n")


def partial_path(path: Path) -> Path:
    """Return a new temporary path beside `path`; remove those of processes that were killed a day ago or earlier."""
    for left in path.parent.glob(f"{glob.escape(path.name)}.*.partial"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                left.unlink()
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")


def replace_synced(partial: Path, path: Path) -> None:
    """Flush a finished file to disk and rename it to `path`, in the same folder."""
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def make_folder(path: Path) -> None:
    """Create a folder with its parents, and flush the new names to disk; does nothing if it exists. Raises OSError."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to disk. A folder that may not be read is left out."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:
        if not path.is_dir():
            raise
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems do not flush folders.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder: Path, *, files: bool = True) -> None:
    """Flush a folder, its sub-folders and, unless `files` is False, all of their files to disk; links are left out."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if not path.is_symlink() and (path.is_dir() or (files and path.is_file())):
            sync(path)
    sync(folder)


def write_synced(path: Path, text: str) -> None:
    """Write a text file (UTF-8) in place and flush it to disk; use it in a folder that is renamed when complete."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
