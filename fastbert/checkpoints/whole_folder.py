"""Files of a folder that appear together, when all of them are written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fastbert.errors import UserError

# Without them a folder is no model: they go first and come last, so that one which is half replaced does not load.
_CONFIGS = ("config.json", "bert_config.json")
_PARTIAL = ".fastbert-partial"
# What a sub-folder may hold to be replaced by one of the same name.
_REPLACEABLE = ("config.json", "model.safetensors", "README.md")


@contextmanager
def whole_folder(out: Path, superseded: Sequence[str] = ()) -> Iterator[Path]:
    """A folder to write to; what it holds at the end is moved to `out`, and an interrupt before that leaves nothing.

    Files of `out` that match `superseded`, and are not written anew, go: readers would prefer them to the new ones.
    Raises `UserError`, with `out` as it was, where a folder would take a file's name or a file a folder's, and where
    a folder in `out` holds anything but a module's files.
    """
    target = out.absolute()
    partial = target / _PARTIAL if target.is_dir() else target.with_name(f".{target.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        if not target.exists():
            partial.rename(target)
            return
        names = sorted(path.name for path in partial.iterdir())
        for name in names:
            _check_replaceable(partial / name, target / name, out)
        old = [path for pattern in superseded for path in target.glob(pattern) if path.name not in names]
        for path in [target / name for name in _CONFIGS if name in names]:
            path.unlink(missing_ok=True)
        for path in old:
            if not path.is_dir():
                path.unlink()
        for name in sorted(names, key=_CONFIGS.__contains__):
            if (partial / name).is_dir() and (target / name).is_dir():
                shutil.rmtree(target / name)  # looked at above: a module's few files
            (partial / name).replace(target / name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_replaceable(new: Path, old: Path, out: Path) -> None:
    """Refuse what is not of the same kind, links to folders, and folders that hold what is not a module's."""
    if not old.is_symlink() and not old.exists():
        return
    if new.is_dir() != old.is_dir() or (new.is_dir() and old.is_symlink()):
        raise UserError(f"--out {out}: {old.name} is in the way; move it, or name another folder")
    if new.is_dir():
        strange = [path.name for path in old.iterdir() if path.name not in _REPLACEABLE or path.is_dir()]
        if strange:
            raise UserError(f"--out {out}: {old.name} holds {strange[0]!r}, which is not ours to replace; move it away")
