"""Files of a folder that appear together, when all of them are written."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

from fastbert.checkpoints.manifest import carry_over
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_folder import REFUSED, copy_attributes, exchange, link_tree, remove
from fastbert.io.untrusted_input import read_json_file

# In place, without them a folder is no model: they go first and come last, so that one which is half replaced does not
# load.
_CONFIGS = ("config.json", "bert_config.json")
_PARTIAL = ".fastbert-partial"
_NEW, _PLAN = "new", "plan.json"
# What a sub-folder may hold to be replaced by one of the same name.
_REPLACEABLE = ("config.json", "model.safetensors", "README.md")
# More files than these are not linked into a new folder.
MOST_LINKED = 10_000


@contextmanager
def whole_folder(out: Path, superseded: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder to write to; at the end its files appear in `out`, all at once, and an interrupt before that
    leaves `out` as it was.

    Other files in `out` stay, except those that match `superseded` and are not written anew: readers would prefer them
    to the new ones. A new folder is made of the new files and of hard links to those that stay, and exchanged with
    `out` in one step; what a killed process leaves beside it is removed by the next call. Where that is impossible (no
    hard links, no exchange of names, a mount point, the current directory, a parent that cannot be written to, more
    than 10,000 files) files are moved one by one, config.json last.

    Raises `UserError`, with `out` as it was, where a folder would take a file's name or a file a folder's, where a
    folder in `out` holds anything but a module's files, and while another process writes to `out`.
    """
    target = Path(os.path.realpath(out))
    work, handle = _locked_work_folder(target, out)
    new = work / _NEW
    try:
        new.mkdir()
        yield new
        _put_in_place(work, target, out, superseded)
    finally:
        _settle(work, target)
        with suppress(OSError):  # what could not be removed now is removed by the next call
            work.rmdir()
        os.close(handle)


def _locked_work_folder(target: Path, out: Path) -> tuple[Path, int]:
    """Make the empty folder, beside `target` or in it, that this process alone works in, and lock it."""
    beside = target.with_name(f".{target.name}{_PARTIAL}")
    inside = target.is_dir() and (target.is_mount() or _holds_current(target))
    work = target / _PARTIAL if inside else beside
    while True:
        try:
            work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in REFUSED or work.parent == target or not target.is_dir():
                raise
            work = target / _PARTIAL
            continue
        try:
            handle = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed by the process that made it
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise UserError(f"--out {out}: another process is writing there; wait for it") from None
        if work.exists() and os.fstat(handle).st_ino == work.stat().st_ino:
            break
        os.close(handle)  # removed by the process that held it
    _settle(work, target)
    if work.parent != target:
        shutil.rmtree(target / _PARTIAL, ignore_errors=True)
    return work, handle


def _holds_current(target: Path) -> bool:
    """Whether the current directory is in the folder: a shell in it would stay in the old one."""
    try:
        return Path.cwd().is_relative_to(target)
    except FileNotFoundError:
        return False


def _put_in_place(work: Path, target: Path, out: Path, superseded: Sequence[str]) -> None:
    new = work / _NEW
    if not os.path.lexists(target):
        new.rename(target)
        return
    if not target.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    names = sorted(path.name for path in new.iterdir())
    for name in names:
        _check_replaceable(new / name, target / name, out)
    matches = {path.name for pattern in superseded for path in target.glob(pattern) if not path.is_dir()}
    removed = sorted(matches - set(names))
    carry_over(target, new, {path.name for path in target.iterdir()}.difference(names, removed))
    if not _exchanged(work, target, [*names, *removed]):
        _move_files(new, target, names, removed)


def _exchanged(work: Path, target: Path, replaced: Sequence[str]) -> bool:
    """Complete the new folder with links to what stays, and exchange it with the old one."""
    new = work / _NEW
    files = chain.from_iterable(names for _, _, names in os.walk(target))
    if work.parent == target or next(islice(files, MOST_LINKED, None), None) is not None:
        return False
    kept = [path.name for path in target.iterdir() if path.name not in replaced]
    try:
        for name in kept:
            link_tree(target / name, new / name)
        copy_attributes(target, new)
    except OSError as error:
        if error.errno not in REFUSED:
            raise
    else:
        info = new.stat()
        plan = {"device": info.st_dev, "inode": info.st_ino, "replaced": list(replaced)}
        (work / _PLAN).write_text(json.dumps(plan), encoding="utf-8")
        if exchange(new, target):
            return True
        (work / _PLAN).unlink()
    for name in kept:
        remove(new / name)
    return False


def _move_files(new: Path, target: Path, names: Sequence[str], removed: Sequence[str]) -> None:
    """Move the new files over the old ones, one by one."""
    for path in [target / name for name in _CONFIGS if name in names]:
        path.unlink(missing_ok=True)
    for name in removed:
        (target / name).unlink()
    for name in sorted(names, key=_CONFIGS.__contains__):
        if (new / name).is_dir() and (target / name).is_dir():
            shutil.rmtree(target / name)  # looked at before: a module's few files
        (new / name).replace(target / name)


def _settle(work: Path, target: Path) -> None:
    """Empty the work folder: of files that never got their names, or of the old folder after an exchange.

    A file that somebody put into the old folder while it was being replaced is moved to the new one.
    """
    if (work / _PLAN).exists():
        try:
            plan = read_json_file(work / _PLAN)
        except CheckpointError:  # killed while it was written
            plan = None
        info = target.stat() if target.exists() and (work / _NEW).is_dir() else None
        said = (plan.get("device"), plan.get("inode")) if isinstance(plan, dict) else None
        if info is not None and (info.st_dev, info.st_ino) == said:
            _move_late(work / _NEW, target, plan.get("replaced", ()))
    for left in sorted(work.iterdir(), key=lambda path: path.name == _PLAN):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _move_late(old: Path, target: Path, replaced: Sequence[str]) -> None:
    for path in old.iterdir():
        there = target / path.name
        if path.name in replaced:
            continue
        if not os.path.lexists(there):
            path.rename(there)
        elif path.is_dir() and not path.is_symlink() and there.is_dir():
            _move_late(path, there, ())


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
