"""Check the files and folders that a command will write, before any work. Imports no torch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from fastbert.errors import UserError
from fastbert.io.atomic_write import refuse_present

VECTORS = (".npy", ".parquet", ".jsonl")
RAGGED = (".safetensors", ".parquet")
FEATURES = (".npy", ".npz", ".safetensors", ".parquet", ".jsonl")


def check_output(path: Path, suffixes: Sequence[str], overwrite: bool, name: str = "") -> None:
    """Raise `UserError` for an unknown suffix, a folder that is missing or read-only, and a file that exists unless
    `overwrite`; `name` is the file's flag."""
    if path.suffix not in suffixes:
        raise UserError(f"{name} {path}: must end in {', '.join(suffixes)}".lstrip())
    refuse_present(path, overwrite, name)
    check_writable(path, name)


def check_writable(path: Path, name: str = "") -> None:
    """Raise `UserError` for a path that cannot be created, by creating an unnamed file in the nearest folder above it
    that exists: permissions alone do not tell about read-only and special file systems. `name` is the path's flag."""
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"{name} {path}: cannot be created below a file, {folder}; name another folder".lstrip())
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"{name} {path}: cannot be written to {folder} ({error.strerror}); name another folder".lstrip()
        ) from None
