"""The files in a run's folder: lock the folder, and remove what an earlier run has written there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastbert.errors import UserError
from fastbert.io.folder_exchange import remove
from fastbert.io.locking import locked_folder


@contextmanager
def locked_run(out: Path) -> Iterator[None]:
    """Lock a run's folder. Raises `UserError` for a file, and while another process writes to the folder."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out}: is a file; give a folder")
    with locked_folder(out, "wait for it to end, or choose another --out"):
        yield


def remove_run(out: Path, names: Sequence[str]) -> None:
    """Remove the named files and folders of a run's folder, and nothing else.

    config.json, which marks the folder as a run's, is removed last, so that an interrupted removal can be repeated.
    """
    for name in sorted(names, key="config.json".__eq__):
        remove(out / name, ignore_errors=True)


def check_spared(out: Path, names: Sequence[str], inputs: Iterable[tuple[str, Path | None]]) -> None:
    """Raise `UserError` if removing the named files would remove an input of the new run, given by flag and path."""
    removed = [out.resolve() / name for name in names]
    for flag, path in inputs:
        if path is not None and any(path.resolve().is_relative_to(target) for target in removed):
            raise UserError(f"{flag} {path}: belongs to the run that --overwrite removes; copy it elsewhere first")
