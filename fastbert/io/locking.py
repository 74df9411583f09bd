"""Keep a second process out of a folder that one is writing to."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fastbert.errors import UserError

logger = logging.getLogger("fastbert")
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
    descriptor = _open_and_lock(folder, cure)
    try:
        yield
    finally:
        if created:
            with suppress(OSError):  # it holds files, as it should
                folder.rmdir()
        os.close(descriptor)


def _open_and_lock(folder: Path, cure: str) -> int:
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still(folder, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(f"{folder}: another process is writing there; {cure}") from None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                unlocked = "%s: its file system has no locks (%s); never let two processes write there"
                logger.warning(unlocked, folder, error.strerror)
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # removed by its last holder before it was locked here


def _is_still(folder: Path, descriptor: int) -> bool:
    """Tell whether an open folder is the one that a path leads to."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except FileNotFoundError:
        return False
