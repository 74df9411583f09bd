"""A bounded cache of blocks in local files, which several processes may share.

The cache is set-associative: `WAYS` slots of the file of blocks belong to each set, block n goes to set n mod sets, and
replaces there the block that was used least recently. So the size has a strict bound, nothing is ever moved or scanned,
and a corpus that fits is held whole. There are no locks: a reader gets whatever a slot holds and compares it with the
block's checksum, so that a slot which another process has replaced meanwhile, or left half-written when it was killed,
is the same as an absent block.

    blocks-<slots>.bin    the blocks
    slots-<slots>.bin     per slot two uint64: 1 + the number of its block, and when it was used, in milliseconds
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError
from fastbert.io.log import logger

WAYS = 16
_SLOT = np.dtype("<u8")
_SLOT_BYTES = 2 * _SLOT.itemsize
_USED_AGAIN = 10_000  # milliseconds after which a use is noted again
_FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class BlockCache:
    """Blocks of up to `block_bytes` bytes by their numbers, from 0 to `blocks` - 1, in at most `limit` bytes.

    Raises UserError for a folder that cannot be written to, and OSError for other failures of the file system. A full
    disk is reported once; blocks are not kept then.
    """

    def __init__(self, folder: Path, *, blocks: int, block_bytes: int, limit: int) -> None:
        needed = -(-blocks // WAYS) * WAYS
        self.folder = folder
        self.block_bytes = block_bytes
        self.slots: int = max(WAYS, min(limit // (block_bytes + _SLOT_BYTES) // WAYS * WAYS, needed))
        self.holds_all: bool = self.slots >= needed
        self._sets = self.slots // WAYS
        self._is_full = False
        self._files: list[int] = []
        finalizer = weakref.finalize(self, _close, self._files)
        finalizer.atexit = False  # threads may still read when the interpreter ends
        self.close: Callable[[], object] = finalizer
        """Close the files, which stay; so does the end of this object."""
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for kind in ("blocks", "slots"):
                self._files.append(os.open(self._path(kind), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        except OSError as error:
            self.close()
            raise UserError(
                f"{folder}: the cache cannot be written there ({error.strerror}); name another --cache-dir"
            ) from None
        self._blocks, self._slots = self._files
        self._remove_others()

    def get(self, number: int, size: int) -> bytes | None:
        """Return the content of the slot of a block, to be compared with its checksum; None if it has no slot."""
        tags = self._read_set(number)
        ways = np.flatnonzero(tags[:, 0] == number + 1)
        if not len(ways):
            return None
        slot, now = self._first_slot(number) + int(ways[0]), _now()
        data = os.pread(self._blocks, size, slot * self.block_bytes)
        if now > int(tags[ways[0], 1]) + _USED_AGAIN:
            self._tag(slot, number, now)
        return data if len(data) == size else None

    def has(self, number: int) -> bool:
        """Return True if a block has a slot, whatever that holds."""
        return bool((self._read_set(number)[:, 0] == number + 1).any())

    def put(self, number: int, data: bytes) -> None:
        """Store a block in place of the one of its set that was used least recently."""
        try:
            with self._lock:  # of this process; what another one does at the same time costs a block at worst
                slot = self._first_slot(number) + self._way(number)
                _write(self._blocks, data, slot * self.block_bytes)
                self._tag(slot, number, _now())
        except OSError as error:
            if error.errno not in _FULL_DISK:
                raise
            if not self._is_full:
                self._is_full = True
                logger.warning(
                    "%s: %s; blocks that do not fit are fetched whenever they are needed. Free some space, or give a"
                    " smaller --cache-size or another --cache-dir",
                    self.folder,
                    error.strerror,
                )

    def after_fork(self) -> None:
        """Make a forked process independent of a thread of its parent that was storing a block."""
        self._lock = threading.Lock()

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}-{self.slots}.bin"

    def _first_slot(self, number: int) -> int:
        return number % self._sets * WAYS

    def _way(self, number: int) -> int:
        """Return where in its set a block is, or is to be stored."""
        tags = self._read_set(number)
        ways = np.flatnonzero(tags[:, 0] == number + 1)
        if len(ways):
            return int(ways[0])
        way = number // self._sets % WAYS  # no two blocks of a corpus that fits have the same
        return way if tags[way, 0] == 0 else int(np.where(tags[:, 0] == 0, 0, tags[:, 1]).argmin())

    def _read_set(self, number: int) -> NDArray[np.uint64]:
        """Return the set of a block: uint64 (WAYS, 2), zero where nothing has been written yet."""
        size = WAYS * _SLOT_BYTES
        data = os.pread(self._slots, size, self._first_slot(number) * _SLOT_BYTES)
        return np.frombuffer(data.ljust(size, b"\0"), _SLOT).reshape(WAYS, 2)

    def _tag(self, slot: int, number: int, used: int) -> None:
        _write(self._slots, np.array([number + 1, used], _SLOT).tobytes(), slot * _SLOT_BYTES)

    def _remove_others(self) -> None:
        """Remove the files of an earlier --cache-size, unless a process uses them; mark this one's as used."""
        with suppress(OSError):  # without locks nothing is removed
            fcntl.flock(self._blocks, fcntl.LOCK_SH)
            for blocks in self.folder.glob("blocks-*.bin"):
                if blocks == self._path("blocks"):
                    continue
                descriptor = os.open(blocks, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    blocks.unlink(missing_ok=True)
                    blocks.with_name(blocks.name.replace("blocks", "slots")).unlink(missing_ok=True)
                except BlockingIOError:
                    pass
                finally:
                    os.close(descriptor)


def _close(files: list[int]) -> None:
    while files:
        os.close(files.pop())


def _now() -> int:
    return time.time_ns() // 1_000_000


def _write(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of `data`: a disk that fills up takes a part first."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
