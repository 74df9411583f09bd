"""The checkpoints of a run: saved at once or in the background, pruned, and read again.

A background save copies the tensors to memory in the call, and a thread of lower priority writes the copy. At most one
is in flight: the next one waits for it. A run whose disk is full goes on once with the checkpoint before.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fastbert.errors import CheckpointError
from fastbert.io.atomic_write import make_folder
from fastbert.io.log import logger
from fastbert.training import checkpoint
from fastbert.training.checkpoint import FILES, Checkpoint, State, find, step_of
from fastbert.training.checkpoint_writing import (
    NO_SPACE,
    Cancelled,
    NoSpaceError,
    check_space,
    state_text,
    write_checkpoint,
    write_latest,
)
from fastbert.training.saving_flags import AsyncSave
from fastbert.training.snapshot import Snapshot, SnapshotBuffers, available_memory

SMALL = 32 << 20
"""Bytes below which a snapshot is written at once by default."""
# Added to the thread's niceness: a third of the share of a step's threads, which still ends on a busy machine.
_NICENESS = 5
_LONG_WAIT = 1.0  # seconds

Flush = Iterable[Callable[[], object]]


@dataclass(frozen=True)
class _InFlight:
    """A save in the background: the name of its checkpoint, its end, and the request to give it up."""

    name: str
    end: Future[None]
    cancelled: threading.Event


class Checkpoints:
    """The checkpoints of a run; the `keep` newest whole ones are kept, and for ever those of multiples of `keep_every`
    steps.

    Used as a context, it completes the save in flight at the end of the block. Not for several threads.
    """

    def __init__(self, root: Path, keep: int, *, keep_every: int | None = None, background: AsyncSave = "off") -> None:
        """`background` tells whether `save_async` writes in the background: `auto` does, unless the tensors are small
        or memory is short."""
        self.root = root
        self.keep = keep
        self.keep_every = keep_every
        self.background = background
        # Sizes and times of the files of verified checkpoints.
        self._whole: dict[str, tuple[tuple[int, int], ...]] = {}
        self._buffers = SnapshotBuffers()
        self._thread: ThreadPoolExecutor | None = None
        self._in_flight: _InFlight | None = None
        self._lacked_space = False
        self._waited = False

    def save(self, snapshot: Snapshot, state: Mapping[str, Any], flush: Flush = ()) -> Path:
        """Write `step-<state["step"]>` and remove old checkpoints; return its folder, which is durable.

        `flush` is called first, for files that the checkpoint's state refers to. Raises `CheckpointError` for a full or
        read-only disk; earlier checkpoints stay whole.
        """
        self.wait()
        final = self.folder(state["step"])
        self._save(final, snapshot, state_text(state), tuple(flush))
        self._lacked_space = False
        return final

    def save_async(
        self, snapshot: Snapshot, state: Mapping[str, Any], flush: Flush = (), *, owned: bool = False
    ) -> Path:
        """Save the tensors and the state as they are now, behind the following steps; return the checkpoint's folder.

        The folder appears when it is complete. `flush` is called by the thread that writes, before it writes. `owned`
        tensors, such as gathered ones, are not copied: they must not change. Waits for the save before, if that is in
        flight, and raises its error, a `CheckpointError`; that of this save is raised by `check`, `wait` or the next
        save. The first of several saves in a row that lack disk space is reported, and the run continues.
        """
        self.wait()
        final, text, calls = self.folder(state["step"]), state_text(state), tuple(flush)
        copy = self._copy(snapshot, owned=owned) if self._in_background(snapshot, owned=owned) else None
        if copy is None:
            self._tolerate(lambda: self._save(final, snapshot, text, calls))
            return final

        cancelled = threading.Event()

        def write() -> None:
            self._buffers.wait()
            self._save(final, copy, text, calls, cancelled.is_set)

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "fastbert checkpoint", _lower_priority)
        self._in_flight = _InFlight(final.name, self._thread.submit(write), cancelled)
        return final

    def check(self) -> None:
        """Raise the error of a save that has ended in the background; returns at once, also while one is in flight."""
        if self._in_flight is not None and self._in_flight.end.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the save in flight is durable; raises its error."""
        in_flight = self._in_flight
        if in_flight is None:
            return
        started = time.monotonic()
        wait([in_flight.end])
        self._in_flight = None
        self._report_wait(in_flight.name, time.monotonic() - started)
        self._tolerate(in_flight.end.result)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Complete the save in flight, or give it up after a KeyboardInterrupt; an error of the block comes first."""
        if self._in_flight is not None and isinstance(error, KeyboardInterrupt):
            self._in_flight.cancelled.set()
        try:
            self.wait()
        except (CheckpointError, Cancelled) as failed:
            if error is None:
                raise
            if not isinstance(failed, Cancelled):
                logger.warning("%s", failed)

    def load_last(
        self, read_state: Callable[[dict[str, Any]], State], at_most: int | None = None
    ) -> tuple[Checkpoint, State] | None:
        """Load the newest whole checkpoint, of step `at_most` or before, and its state as `read_state` returns it; see
        `checkpoint.load_last`."""
        self.wait()
        loaded = checkpoint.load_newest(self.root, read_state, at_most)
        if loaded is not None:
            self._whole[loaded[0].folder.name] = _file_stats(loaded[0].folder)
        return loaded

    def keeps(self, step: int) -> bool:
        """Return True if the checkpoint of a step is kept for ever."""
        return self.keep_every is not None and step % self.keep_every == 0

    def folder(self, step: int) -> Path:
        """Return the folder of a step's checkpoint."""
        return self.root / f"step-{step:08d}"

    def names(self) -> list[str]:
        """Return the names of the checkpoints, oldest first, that in flight included."""
        in_flight = [] if self._in_flight is None else [self._in_flight.name]
        names = {folder.name: folder for folder in find(self.root)}
        return sorted({*names, *in_flight}, key=lambda name: step_of(self.root / name))

    def _in_background(self, snapshot: Snapshot, *, owned: bool) -> bool:
        if self.background != "auto":
            return self.background == "on"
        if snapshot.nbytes < SMALL:
            return False
        if owned or self._buffers.nbytes >= snapshot.nbytes:
            return True
        available = available_memory()
        return available is None or available >= 2 * snapshot.nbytes

    def _copy(self, snapshot: Snapshot, *, owned: bool) -> Snapshot | None:
        """Return a copy of a snapshot that is not owned; None, from now on, where there is no memory for it."""
        try:
            return snapshot if owned else self._buffers.copy(snapshot)
        except MemoryError as error:
            self.background = "off"
            logger.warning("no memory for a copy of the checkpoint (%s): steps wait until it is written", error)
            return None

    def _tolerate(self, save: Callable[[], None]) -> None:
        """Save; report the first of several failures in a row for lack of space, and raise others."""
        try:
            save()
        except NoSpaceError as error:
            if self._lacked_space:
                raise
            self._lacked_space = True
            logger.warning("%s. The run goes on, and ends if the next checkpoint cannot be written either", error)
        else:
            self._lacked_space = False

    def _report_wait(self, name: str, seconds: float) -> None:
        if seconds > _LONG_WAIT and not self._waited:
            self._waited = True
            logger.info(
                "waited %.1f s until %s was written: raise --checkpoint-every if this happens often", seconds, name
            )

    def _save(
        self,
        final: Path,
        source: Snapshot,
        state: str,
        flush: Iterable[Callable[[], object]],
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Write a checkpoint, then move `latest`, then prune. Raises `CheckpointError` and `Cancelled`."""
        partial = self.root / f".{final.name}.partial"
        try:
            for call in flush:
                call()
            make_folder(self.root)
            for leftover in self.root.glob(".step-*"):  # of a killed run
                shutil.rmtree(leftover, ignore_errors=True)
            if final.exists():
                if self._is_whole(final):
                    return
                self._remove(final)
            check_space(self.root, source, state)
            write_checkpoint(partial, final, source, state, cancelled)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            kind = NoSpaceError if error.errno in NO_SPACE else CheckpointError
            raise kind(
                f"{final}: the checkpoint could not be written ({error}); those before it are whole."
                " Free some disk space and continue with --resume"
            ) from error
        except Cancelled:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._whole[final.name] = _file_stats(final)
        try:
            write_latest(final)
        except OSError as error:
            logger.warning("%s: could not name %s (%s); the run continues", self.root / checkpoint.LATEST, final, error)
            return  # it names a checkpoint that pruning might remove
        self._prune()

    def _is_whole(self, folder: Path) -> bool:
        """Verify a checkpoint, unless its files are unchanged since they were written or verified."""
        try:
            if self._whole.get(folder.name) != (now := _file_stats(folder)):
                checkpoint.check(folder)
                self._whole[folder.name] = now
        except (CheckpointError, OSError):
            return False
        return True

    def _prune(self) -> None:
        """Remove all but the `keep` newest whole checkpoints and those that are kept for ever; report failures."""
        whole = 0
        for folder in reversed(find(self.root)):
            if whole < self.keep:
                whole += self._is_whole(folder)
                continue
            if self.keeps(step_of(folder)):
                continue
            try:
                self._remove(folder)
            except OSError as error:
                logger.warning("%s: an old checkpoint could not be removed (%s); the run continues", folder, error)

    def _remove(self, folder: Path) -> None:
        self._whole.pop(folder.name, None)
        removed = folder.with_name(f".{folder.name}.gone")
        folder.rename(removed)
        shutil.rmtree(removed)


def _lower_priority() -> None:
    """Lower the priority of the calling thread, on systems where a thread has one of its own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + _NICENESS)


def _file_stats(folder: Path) -> tuple[tuple[int, int], ...]:
    """Return the sizes and times of a checkpoint's files."""
    stats = [os.stat(folder / name) for name in FILES]
    return tuple((stat.st_size, stat.st_mtime_ns) for stat in stats)
