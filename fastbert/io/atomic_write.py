"""Write files so that a reader, a killed process or a power cut finds the old content or the new one."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Flush a folder, its sub-folders and all of their files to the disk."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() or path.is_dir():
            sync(path)
    sync(folder)


def write_synced(path: Path, text: str) -> None:
    """Write a text file and wait until it is on the disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, text: str) -> None:
    """Replace a text file as a whole: readers see the old text or the new one."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        write_synced(partial, text)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
