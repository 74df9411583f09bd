"""Replace a folder so that its name always leads to a complete one, the old or the new.

Linux exchanges two names in one step (renameat2 with RENAME_EXCHANGE; ext4, XFS, Btrfs, tmpfs, overlayfs and others).
Where that is not supported, the old folder is first renamed to `.NAME.old`; if the process is killed between the two
renames, `recover_folder` restores the old folder at the next start.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

from fastbert.io.atomic_write import sync

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
UNSUPPORTED = frozenset(
    {
        errno.EACCES,
        errno.EBUSY,
        errno.EINVAL,
        errno.EMLINK,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.EROFS,
        errno.EXDEV,
    }
)
"""Errors of a file system that does not exchange names, or does not link files."""


def replace_folder(new: Path, target: Path) -> None:
    """Rename the folder `new` to `target`, in the same parent folder, and remove the folder that was there.

    The new name is flushed to disk; the files of `new` should have been before.

    If the process is killed, `target` is the old folder or the new one, and the other one may be left at `new`. Only
    where names cannot be exchanged is `target` missing for a moment; call `recover_folder` before the next write.
    """
    old = new
    if not os.path.lexists(target):
        os.rename(new, target)
    elif not exchange(new, target):
        old = _old_name(target)
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(new, target)
    # The old files are needed until the disk has the new name.
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover_folder(target: Path) -> None:
    """Finish or undo a replacement that was killed between two renames."""
    old = _old_name(target)
    if not os.path.lexists(old):
        return
    if os.path.lexists(target):
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(old, target)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two files or folders in one step; return False where that is not supported."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if function is None:
        return False
    names = [ctypes.c_char_p(os.fsencode(path)) for path in (first, second)]
    if function(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    code = ctypes.get_errno()
    if code in UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), os.fspath(first), None, os.fspath(second))


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder as hard links to its files; sub-folders are new and have the attributes of the old ones.

    Raises OSError where files cannot be linked, with `target` incomplete.
    """
    if source.is_symlink() or not source.is_dir():
        os.link(source, target, follow_symlinks=False)
        return
    os.mkdir(target)
    for entry in source.iterdir():
        link_tree(entry, target / entry.name)
    copy_attributes(source, target)


def copy_attributes(source: Path, target: Path) -> None:
    """Copy mode, times, extended attributes and owner from one folder to another. Raises OSError if not permitted."""
    old, new = source.stat(), target.stat()
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(target, old.st_uid, old.st_gid)
    shutil.copystat(source, target)


def remove(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a file, a link or a folder with its content, of which `ignore_errors` leaves what cannot be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


def _old_name(target: Path) -> Path:
    return target.with_name(f".{target.name}.old")
