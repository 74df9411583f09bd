"""Lock a folder, so that a second process does not write to it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastbert.errors import UserError
from fastbert.io.atomic_write import make_folder
from fastbert.io.log import logger

_UNSUPPORTED = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked_folder(folder: Path, cure: str) -> Iterator[None]:
    """Hold an exclusive lock on a folder, which is created if it does not exist.

    The lock belongs to the kernel: it ends with the process that holds it, however that ends, and leaves no file. A
    folder that was created here and is still empty at the end is removed again. A file system without locks (some
    network mounts) is reported and used unlocked.

    Raises:
        UserError: another process, or another thread of this one, holds the lock; the message names the folder and
            ends in `cure`.
    """
    created = not folder.exists()
    make_folder(folder)
    descriptor = lock_folder(folder, f"{folder}: another process is writing there; {cure}")
    try:
        yield
    finally:
        if created:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        os.close(descriptor)


def lock_folder(folder: Path, message: str) -> int:
    """Create a folder if needed, lock it, and return its descriptor, which holds the lock until it is closed.

    Raises `UserError(message)` if the lock is held, and OSError where the folder cannot be created.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # removed by the process that held it
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(folder, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(message) from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                unlocked = "%s: its file system has no locks (%s); never let two processes write there"
                logger.warning(unlocked, folder, error.strerror)
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed by its last holder before it was locked here


def _is_at(folder: Path, descriptor: int) -> bool:
    """Return whether an open folder still has its path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False


@contextmanager
def awaited_folder(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock on a folder, which is created if it does not exist; wait for a process that holds it.

    A file system without locks is used unlocked. Raises OSError where the folder cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
