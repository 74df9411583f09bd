"""Check the paths that a command was given, before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError
from fastbert.io.untrusted_input import require_regular_file

STDIN = "-"


def check_models(*models: str | Path | None) -> None:
    """Raise `UserError` for a model that does not exist; None is none."""
    for model in models:
        if model is not None:
            find_source(model)


def check_file(flag: str, path: str | Path | None) -> None:
    """Raise `UserError` for a missing file, or one that is no regular file; None and standard input pass."""
    if path is None or str(path) == STDIN:
        return
    try:
        require_regular_file(path)
    except FileNotFoundError:
        raise UserError(f"{flag} {path}: no such file") from None


def check_exists(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a missing file or folder; None passes."""
    if path is not None and not path.exists():
        raise UserError(f"{flag} {path}: no such file or folder")


def check_folder(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a missing folder; None passes."""
    if path is not None and not path.is_dir():
        raise UserError(f"{flag} {path}: " + ("is not a folder; name one" if path.exists() else "no such folder"))


def check_new_file(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a file that cannot be written since its folder is missing; None passes."""
    if path is not None and path.is_dir():
        raise UserError(f"{flag} {path}: is a folder; name a file")
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder {path.parent}; make it first")


def check_new_folder(flag: str, path: Path | None) -> None:
    """Raise `UserError` for a folder that cannot be written since a file or no folder is there; None passes."""
    if path is not None and path.exists() and not path.is_dir():
        raise UserError(f"{flag} {path}: is a file; give a folder")
    if path is not None and not path.absolute().parent.is_dir():
        raise UserError(f"{flag} {path}: no such folder {path.parent}; make it first")


def check_examples(flag: str, path: str | Path | None, task: str | None) -> None:
    """Raise `UserError` for examples that are missing, or that a task cannot read by the suffix of their file.

    None and standard input pass; FOLDER#SPLIT is a split of a folder of `datasets`.
    """
    if path is None or str(path) == STDIN:
        return
    if not Path(str(path).partition("#")[0] if "#" in str(path) and not Path(path).exists() else path).is_dir():
        check_file(flag, path)
    if task is not None:
        from fastbert.tasks.registry import task_class

        task_class(task).check_suffix(str(path))


def check_all_examples(flag: str, paths: Iterable[Path], task: str | None) -> None:
    """Check several files of examples."""
    for path in paths:
        check_examples(flag, path, task)
