"""Check the name of a file of vectors before it is written. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fastbert.errors import UserError
from fastbert.io.atomic_write import refuse_present

VECTORS = (".npy", ".parquet", ".jsonl")
FEATURES = (".npy", ".npz", ".safetensors", ".parquet", ".jsonl")


def check_output(path: Path, suffixes: Sequence[str], overwrite: bool) -> None:
    """Raise `UserError` for an unknown suffix, a missing folder, and a file that exists unless `overwrite`."""
    if path.suffix not in suffixes:
        raise UserError(f"{path}: must end in {', '.join(suffixes)}")
    refuse_present(path, overwrite)
