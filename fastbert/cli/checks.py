"""Check the paths that a command was given, before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fastbert.checkpoints.source import find_source
from fastbert.errors import UserError
from fastbert.io.text import plain_name
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

    None and standard input pass. FOLDER#SPLIT is a split of a folder of `datasets`, FILE.json#SPLIT one of CLINC150.
    """
    if path is None or str(path) == STDIN:
        return
    source = _without_split(str(path))
    is_folder = Path(source).is_dir()
    if not is_folder:
        check_file(flag, source)
    if task is not None:
        from fastbert.tasks.registry import task_class

        task_class(task).check_suffix(str(path) if is_folder else source)


def _without_split(path: str) -> str:
    """Return FOLDER of FOLDER#SPLIT and FILE.json of FILE.json#SPLIT, else the path."""
    source, sign, _ = path.rpartition("#")
    is_split = sign and not Path(path).exists() and (Path(source).is_dir() or plain_name(source).endswith(".json"))
    return source if is_split else path


def check_all_examples(flag: str, paths: Iterable[Path], task: str | None) -> None:
    """Check several files of examples."""
    for path in paths:
        check_examples(flag, path, task)
