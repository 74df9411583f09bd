"""Write a checkpoint: hashed while it is written, flushed to the disk, and renamed to its final name last."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from fastbert.checkpoints.formats.safetensors_stream import stream_safetensors, stream_size
from fastbert.errors import CheckpointError
from fastbert.io.atomic_write import replace_synced, sync
from fastbert.models.finite import first_non_finite_tensor
from fastbert.ops.dropout.arguments import DRAWS_FORMAT
from fastbert.training.checkpoint import FORMAT_VERSION, LATEST, MANIFEST, MODEL, OPTIMIZER, STATE, digest
from fastbert.training.snapshot import Snapshot

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHUNK = 4 << 20
_READ_BACK = 64 << 20  # larger files are compared by their size alone
_RESERVE = 1 << 20  # for folders, names and what the run writes meanwhile
_METADATA = {"format": "pt"}


class NoSpaceError(CheckpointError):
    """A checkpoint was not written, since the disk is too full for it."""


class Cancelled(Exception):
    """The writing of a checkpoint was given up on request."""


def state_text(state: Mapping[str, Any]) -> str:
    """Return the text of state.json."""
    formats = {"format_version": FORMAT_VERSION, "dropout_draws": DRAWS_FORMAT, "torch": torch.__version__}
    return json.dumps({**formats, **state}, indent=2) + "\n"


def check_space(folder: Path, source: Snapshot, state: str) -> None:
    """Raise OSError where the disk of a folder has no space for a checkpoint."""
    needed = stream_size(source.model, _METADATA) + stream_size(source.optimizer) + len(state.encode()) + _RESERVE
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"it needs {needed:,} bytes, and {free:,} are free")


def write_checkpoint(
    partial: Path, final: Path, source: Snapshot, state: str, cancelled: Callable[[], bool] = lambda: False
) -> None:
    """Write the files of a checkpoint to the folder `partial`, and rename it to `final`; all is flushed to the disk.

    Raises OSError, `Cancelled` as soon as `cancelled()` is true, and `CheckpointError` for a NaN or an infinity, with
    which a run could not go on.
    """
    for file, tensors in ((MODEL, source.model), (OPTIMIZER, source.optimizer)):
        name = first_non_finite_tensor(tensors.items())
        if name is not None:
            raise CheckpointError(
                f"{final}: was not written, since {name} of {file} holds NaN or infinity; those before it are whole:"
                " continue from them with --resume"
            )
    partial.mkdir()
    hashes = {
        MODEL: write_hashed(partial / MODEL, stream_safetensors(source.model, _METADATA), cancelled),
        OPTIMIZER: write_hashed(partial / OPTIMIZER, stream_safetensors(source.optimizer), cancelled),
        STATE: write_hashed(partial / STATE, [memoryview(state.encode())], cancelled),
    }
    manifest = json.dumps({"format_version": FORMAT_VERSION, "sha256": hashes}, indent=2)
    write_hashed(partial / MANIFEST, [memoryview(manifest.encode())], cancelled)
    sync(partial)
    partial.rename(final)
    sync(final.parent)


def write_latest(final: Path) -> None:
    """Make the file `latest` beside a durable checkpoint name it, atomically. Raises OSError."""
    partial = final.with_name(f".{LATEST}.partial")
    partial.write_text(f"{final.name}\n", encoding="ascii")
    replace_synced(partial, final.with_name(LATEST))


def write_hashed(path: Path, parts: Iterable[memoryview], cancelled: Callable[[], bool] = lambda: False) -> str:
    """Write a new file, flush it to the disk, and return the SHA-256 of its bytes, which another thread computes.

    Hashing and writing release the GIL. Raises OSError, also for a file that holds other bytes than were written: small
    files are read again, of large ones the size is compared.
    """
    sha256, size = hashlib.sha256(), 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with ThreadPoolExecutor(1) as hasher:
            for part in parts:
                for start in range(0, len(part), _CHUNK):
                    if cancelled():
                        raise Cancelled
                    chunk = part[start : start + _CHUNK]
                    size += len(chunk)
                    hashed = hasher.submit(sha256.update, chunk)
                    while chunk:
                        chunk = chunk[os.write(descriptor, chunk) :]
                    hashed.result()
        os.fsync(descriptor)
        stored = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if stored != size or (size <= _READ_BACK and not _holds(path, sha256.hexdigest())):
        raise OSError(errno.EIO, f"{path.name} has other bytes than were written to it")
    return sha256.hexdigest()


def _holds(path: Path, sha256: str) -> bool:
    try:
        return digest(path) == sha256
    except CheckpointError as error:
        raise OSError(errno.EIO, str(error)) from None
