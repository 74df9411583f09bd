"""Write several files of a folder so that all of them appear together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

from fastbert.checkpoints.manifest import merge_manifest
from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import sync, sync_tree
from fastbert.io.folder_exchange import UNSUPPORTED, copy_attributes, exchange, link_tree, remove
from fastbert.io.locking import lock_folder
from fastbert.io.untrusted_input import read_json_file

# A folder without its configuration is not a model. Where files are replaced one by one, these go first and come last,
# so that a half-replaced folder does not load.
_CONFIGS = ("config.json", "bert_config.json")
_PARTIAL = ".fastbert-partial"
_NEW, _PLAN = "new", "plan.json"
# A sub-folder that holds nothing else is a module of sentence-transformers and may be replaced.
_MODULE_FILES = ("config.json", "model.safetensors", "README.md")
# Larger folders are not linked; their files are moved one by one.
MAX_LINKED_FILES = 10_000
# The folders that blocks write to now.
_yielded: set[Path] = set()


@contextmanager
def atomic_folder(out: Path, superseded: Sequence[str] = ()) -> Iterator[Path]:
    """Yield a folder to write to; at the end of the block its files appear in `out`, all at once.

    If the block raises, the process is killed or power fails, `out` stays as it was. Other files in `out` stay, except
    those that match a pattern in `superseded` and are not written again: readers would prefer them to the new files. A
    folder of the new files and hard links to those that stay is exchanged with `out` in one step; what a killed process
    leaves beside it is removed by the next call. Where that is impossible (no hard links, no exchange of names,
    a mount point, the current directory, a parent folder without write permission, more than 10,000 files) files are
    moved one by one, config.json last. A block for the folder of another block writes to that folder.

    Raises `UserError`, with `out` as it was, where a folder would replace a file or a file a folder, where a sub-folder
    of `out` that would be replaced holds anything but a module's files, and while another process writes to `out`.
    """
    target = Path(os.path.realpath(out))
    if target in _yielded:
        yield target
        return
    work, descriptor = _lock_work_folder(target, out)
    new = work / _NEW
    try:
        new.mkdir()
        _yielded.add(new)
        yield new
        _publish(work, target, out, superseded)
        sync(target.parent)
    finally:
        _yielded.discard(new)
        _clean_up(work, target)
        with suppress(OSError):  # the next call removes what could not be removed now
            work.rmdir()
        os.close(descriptor)


def _lock_work_folder(target: Path, out: Path) -> tuple[Path, int]:
    """Create and lock an empty folder to work in, beside `target` or in it."""
    inside = target.is_dir() and (target.is_mount() or _holds_current_directory(target))
    work = target / _PARTIAL if inside else target.with_name(f".{target.name}{_PARTIAL}")
    message = f"--out {out}: another process is writing there; wait for it"
    try:
        descriptor = lock_folder(work, message)
    except OSError as error:
        if error.errno not in UNSUPPORTED or work.parent == target or not target.is_dir():
            raise
        work = target / _PARTIAL
        descriptor = lock_folder(work, message)
    _clean_up(work, target)
    if work.parent != target:
        shutil.rmtree(target / _PARTIAL, ignore_errors=True)
    return work, descriptor


def _holds_current_directory(target: Path) -> bool:
    """Return whether the current directory is in the folder: a shell in it would stay in the old one."""
    try:
        return Path.cwd().is_relative_to(target)
    except FileNotFoundError:
        return False


def _publish(work: Path, target: Path, out: Path, superseded: Sequence[str]) -> None:
    new = work / _NEW
    if not os.path.lexists(target):
        sync_tree(new)
        new.rename(target)
        return
    if not target.is_dir():
        raise UserError(f"--out {out}: is a file; name a folder")
    names = sorted(path.name for path in new.iterdir())
    for name in names:
        _check_replaceable(new / name, target / name, out)
    matches = {path.name for pattern in superseded for path in target.glob(pattern) if not path.is_dir()}
    removed = sorted(matches - set(names))
    merge_manifest(target, new, {path.name for path in target.iterdir()}.difference(names, removed))
    sync_tree(new)
    if not _exchange_folders(work, target, [*names, *removed]):
        _move_files(new, target, names, removed)


def _exchange_folders(work: Path, target: Path, replaced: Sequence[str]) -> bool:
    """Link the files that stay into the new folder and exchange it with the old one; return False if unsupported."""
    new = work / _NEW
    files = chain.from_iterable(names for _, _, names in os.walk(target))
    if work.parent == target or next(islice(files, MAX_LINKED_FILES, None), None) is not None:
        return False
    remaining = [path.name for path in target.iterdir() if path.name not in replaced]
    try:
        for name in remaining:
            link_tree(target / name, new / name)
        copy_attributes(target, new)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    else:
        info = new.stat()
        plan = {"device": info.st_dev, "inode": info.st_ino, "replaced": list(replaced)}
        (work / _PLAN).write_text(json.dumps(plan), encoding="utf-8")
        sync_tree(new, files=False)
        if exchange(new, target):
            return True
        (work / _PLAN).unlink()
    for name in remaining:
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
            shutil.rmtree(target / name)  # checked before: it holds a module's files only
        (new / name).replace(target / name)
    sync_tree(target, files=False)


def _clean_up(work: Path, target: Path) -> None:
    """Empty the work folder of unpublished files, or of the old folder after an exchange.

    A file that another program put into the old folder while it was being replaced is moved to the new one.
    """
    if (work / _PLAN).exists():
        try:
            plan = read_json_file(work / _PLAN)
        except CheckpointError:  # killed while it was written
            plan = None
        info = target.stat() if target.exists() and (work / _NEW).is_dir() else None
        planned = (plan.get("device"), plan.get("inode")) if isinstance(plan, dict) else None
        if info is not None and (info.st_dev, info.st_ino) == planned:
            _move_late_files(work / _NEW, target, plan.get("replaced", ()))
    for left in sorted(work.iterdir(), key=lambda path: path.name == _PLAN):
        remove(left, ignore_errors=True)


def _move_late_files(old: Path, target: Path, replaced: Sequence[str]) -> None:
    for path in old.iterdir():
        destination = target / path.name
        if path.name in replaced:
            continue
        if not os.path.lexists(destination):
            path.rename(destination)
        elif path.is_dir() and not path.is_symlink() and destination.is_dir():
            _move_late_files(path, destination, ())


def _check_replaceable(new: Path, old: Path, out: Path) -> None:
    """Refuse to replace a file by a folder or the reverse, links to folders, and folders with other files."""
    if not old.is_symlink() and not old.exists():
        return
    if new.is_dir() != old.is_dir() or (new.is_dir() and old.is_symlink()):
        raise UserError(f"--out {out}: {old.name} is in the way; move it, or name another folder")
    if new.is_dir():
        foreign = [path.name for path in old.iterdir() if path.name not in _MODULE_FILES or path.is_dir()]
        if foreign:
            raise UserError(f"--out {out}: {old.name} holds {foreign[0]!r}, which is not fastbert's; move it away")
