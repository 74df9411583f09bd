"""Disk space: how many checkpoints fit, checked when a run begins and before each save."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from fastbert.io.sizes import size_text

BYTES_PER_PARAMETER = 12  # fp32 weights and both moments of AdamW; --ema and --param-dtype bf16 add to them
MARGIN = 64 << 20  # bytes beside a checkpoint: logs, the loss curve and the folders themselves


@dataclass(frozen=True)
class DiskSpace:
    """The room of a run's folder for checkpoints.

    A save needs room for one more checkpoint than are kept: the oldest is removed after the newest is complete.
    """

    free: int
    """Bytes that this user may still write."""
    size: int
    """Bytes of the next checkpoint."""
    keep: int
    """Checkpoints that are kept."""
    present: int = 0
    """Complete checkpoints that are there, at most `keep` of which stay."""
    trained_model: int = 0
    """Bytes of the trained model's own folder, which the end of the run writes."""

    @property
    def fit(self) -> int:
        """Return the number of further checkpoints for which there is room now."""
        return max(0, self.free - MARGIN) // max(self.size, 1)

    @property
    def next_fits(self) -> bool:
        """Return whether the next checkpoint fits."""
        return self.fit >= 1

    @property
    def needed(self) -> int:
        """Return the bytes that the run still needs at its fullest: `keep` checkpoints and the one being written, and
        at the end the trained model."""
        more = max(self.keep + 1 - self.present, 1)
        return max(more * self.size, (more - 1) * self.size + self.trained_model) + MARGIN

    def message_at_start(self, folder: Path) -> str | None:
        """Return a warning about a run that will fill its disk, None where there is room."""
        if self.free >= self.needed:
            return None
        return (
            f"{folder}: {size_text(self.free)} are free, and the run needs {size_text(self.needed)}:"
            f" {self.keep} checkpoints of {size_text(self.size)}, one being written, and the trained model; there is"
            f" room for {self.fit}. Free some disk space, lower --keep-checkpoints (now {self.keep}), or choose another"
            " --out"
        )

    def message_before_save(self, folder: Path) -> str | None:
        """Return a warning that the next checkpoint does not fit, None where it does."""
        if self.next_fits:
            return None
        return (
            f"{folder}: the next checkpoint of {size_text(self.size)} does not fit on the disk, of which"
            f" {size_text(self.free)} are free; those before it stay whole. Free some disk space"
        )


def checkpoint_bytes(parameters: int, last: Path | None = None, each: int = BYTES_PER_PARAMETER) -> int:
    """Return the size of the next checkpoint: that of the last one, or an estimate of `each` bytes per parameter."""
    if last is not None:
        try:
            size = sum(path.stat().st_size for path in last.iterdir() if path.is_file())
        except OSError:
            size = 0  # removed in the meantime
        if size:
            return size
    return parameters * each


def free_bytes(folder: Path) -> int:
    """Return the bytes that this user may write to the disk of a folder, which need not exist yet.

    A quota that the file system does not report is not known here. Raises OSError.
    """
    for existing in (folder, *folder.absolute().parents):
        if os.path.lexists(existing):
            return shutil.disk_usage(existing).free
    raise FileNotFoundError(folder)


def disk_space(
    folder: Path,
    *,
    parameters: int,
    keep: int,
    present: int = 0,
    last: Path | None = None,
    each: int = BYTES_PER_PARAMETER,
) -> DiskSpace | None:
    """Measure the room for a run's checkpoints in `folder`; None where the system does not tell.

    Args:
        folder: of the run.
        parameters: of the model, for the size of the first checkpoint.
        keep: checkpoints that are kept.
        present: complete checkpoints that are there.
        last: the folder of the newest of them, whose size the next one has.
        each: bytes per parameter of a checkpoint.
    """
    try:
        free = free_bytes(folder)
    except OSError:
        return None
    size = checkpoint_bytes(parameters, last, each)
    return DiskSpace(free=free, size=size, keep=keep, present=min(present, keep), trained_model=4 * parameters)
