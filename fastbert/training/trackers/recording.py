"""Feed trackers with the lines of metrics.jsonl, on a thread of their own.

Training never waits for a tracker: lines are put in a queue, and a worker thread passes them on, each once, and notes
which was the last (`progress`). A tracker that fails while a run or trial trains is reported once, and left out until
the next trial begins or the run is resumed. Only the first process of a distributed run opens trackers; the caller
sees to that.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.training.metrics import read_records
from fastbert.training.reporter import Record, Reporter
from fastbert.training.trackers.ml_flow import MLflow
from fastbert.training.trackers.progress import FOLDER, NOTHING, Known, Position, Positions, Progress, behind, placed
from fastbert.training.trackers.tensorboard import TensorBoard
from fastbert.training.trackers.tracker import TRIAL, TrackedRun, Tracker, numbers
from fastbert.training.trackers.weights_and_biases import WeightsAndBiases
from fastbert.training.tracking_flags import TrackingFlags, check_tracking

MOST_WAITING = 10_000  # lines in the queue
LONGEST_CLOSE = 120.0  # seconds that the end of a run waits for its trackers
KINDS: dict[str, Callable[[TrackedRun, str | None], Tracker]] = {
    TensorBoard.name: TensorBoard,
    WeightsAndBiases.name: WeightsAndBiases,
    MLflow.name: MLflow,
}


def logged_lines(flags: TrackingFlags, out: Path) -> list[Record]:
    """Return the lines that an earlier start of a run has written, none for a run without trackers. Call it before the
    metrics.jsonl is opened, which cuts it at the newest checkpoint."""
    if not flags.track:
        return []
    try:
        lines = read_records(out / "metrics.jsonl")
    except UserError as error:
        logger.warning("%s; trackers do not get the lines before", error)
        return []
    return [line for line in lines if isinstance(line.get("step"), int) and isinstance(line.get("split"), str)]


@contextlib.contextmanager
def tracked(
    flags: TrackingFlags,
    out: Path,
    reporter: Reporter,
    settings: Mapping[str, bool | int | float | str],
    *,
    step: int = 0,
    logged: Sequence[Record] = (),
    trial: Mapping[str, Any] | None = None,
    alone: bool = False,
    required: bool = True,
) -> Iterator[Reporter]:
    """Yield hooks that also feed the trackers of `flags.track`; close those at the end of the block.

    Args:
        flags: those of the run.
        out: the run's folder.
        reporter: the hooks of the run without trackers.
        settings: flags, shape of the model and versions (see `tracker.flat_settings`).
        step: after which the run or trial continues, 0 at its start.
        logged: the lines of metrics.jsonl of an earlier start, as `logged_lines` reads them.
        trial: the hyper-parameters of a trial of fine-tuning (`tracker.TRIAL`).
        alone: whether that is the only trial, which has the run's name.
        required: whether a tracker that cannot be opened is an error; else it is reported and left out.

    Raises `UserError` for a required tracker that cannot be opened.
    """
    if not flags.track:
        yield reporter
        return
    if required:
        check_tracking(flags)
    run = _described(flags, out, settings, step, trial, alone)
    lines = _lines_of(logged, trial) if step else []
    kept = [position for position, _ in placed(lines) if position < behind(step)]
    progress = Progress.read(out)
    opened = _open_all(flags.track, run, progress, lines, None if required else reporter.on_message)
    feed = Feed(opened, reporter.on_message, progress, run.key, kept[-1] if kept else NOTHING)

    def on_line(record: Record) -> None:
        reporter.on_line(record)
        feed.put(record)

    def on_rollback(step: int) -> None:
        reporter.on_rollback(step)
        feed.roll_back()

    finished = False
    try:
        yield replace(reporter, on_line=on_line, on_rollback=on_rollback)
        finished = True
    finally:
        feed.close(finished=finished)


def send_finished(
    flags: TrackingFlags,
    out: Path,
    reporter: Reporter,
    settings: Mapping[str, bool | int | float | str],
    *,
    logged: Sequence[Record],
    trial: Mapping[str, Any] | None = None,
    alone: bool = False,
) -> None:
    """Give the trackers of `flags.track` what they lack of a run, or of a trial, that is finished.

    The arguments are those of `tracked`; `logged` must hold all lines. A tracker that cannot be opened is reported.
    """
    lines = _lines_of(logged, trial)
    if not lines:
        return
    step, key, progress = lines[-1]["step"], _key(trial), Progress.read(out)
    last = [position for position, _ in placed(lines)][-1]
    lacking = []
    for name in flags.track:
        known = progress.get(name, key)
        if known is None or known.last < last:
            lacking.append(name)
    if lacking:
        flags = replace(flags, track=tuple(lacking))
        with tracked(
            flags, out, reporter, settings, step=step, logged=logged, trial=trial, alone=alone, required=False
        ):
            pass  # opening them gives them the lines


def _lines_of(logged: Sequence[Record], trial: Mapping[str, Any] | None) -> list[Record]:
    """Return the lines of a trial, or all of a run without trials."""
    return [line for line in logged if trial is None or all(line.get(key) == trial[key] for key in TRIAL)]


@dataclass
class _Opened:
    """A tracker, and the last line that it has."""

    tracker: Tracker
    last: Position


class Feed:
    """Passes lines on to trackers, in a thread; each tracker is given up at its first failure."""

    def __init__(
        self,
        opened: Mapping[str, _Opened],
        on_message: Callable[[str], None],
        progress: Progress,
        key: str,
        last: Position,
    ) -> None:
        """`progress` is noted under `key`; `last` is the last line that the run keeps of an earlier start."""
        self._opened, self._on_message = dict(opened), on_message
        self._progress, self._key = progress, key
        self._positions = Positions(last)
        self._queue: queue.Queue[tuple[Position, Record] | bool] = queue.Queue(MOST_WAITING)
        self._full, self._abandoned, self._noting = False, False, threading.Lock()
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Add a line; it is dropped for good, which is reported once, where trackers are thousands of lines behind."""
        item = self._positions.of(record), dict(record)
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            if not self._full:
                self._full = True
                self._on_message(f"trackers are {MOST_WAITING:,} lines behind; lines are dropped there, not in the run")

    def roll_back(self) -> None:
        """Expect lines again that were put before."""
        self._positions.restart()

    def close(self, *, finished: bool) -> None:
        """Wait until the trackers have all lines, for two minutes at most."""
        until = time.monotonic() + LONGEST_CLOSE
        with contextlib.suppress(queue.Full):
            self._queue.put(finished, timeout=LONGEST_CLOSE)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            with self._noting:
                self._abandoned = True
            names = " and ".join(self._opened)
            self._on_message(f"{names} did not take the last lines within {LONGEST_CLOSE:.0f} s; the run has them")

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, bool):
                self._note()
                for name in list(self._opened):
                    self._safely(name, lambda tracker: tracker.close(finished=item))  # noqa: B023
                return
            position, line = item
            values = numbers(line)
            for name, opened in list(self._opened.items()):
                if position <= opened.last:
                    continue
                if self._safely(name, lambda tracker: tracker.log(values, position.step)):  # noqa: B023
                    opened.last = position
                    self._progress.set(name, self._key, Known(opened.tracker.identity, position))
            if self._queue.empty():
                self._note()

    def _note(self) -> None:
        """Store which lines the trackers have. On a full disk that is left out: a resumed run may send lines again."""
        with self._noting, contextlib.suppress(OSError):
            if not self._abandoned:  # else the next trial writes the file
                self._progress.write()

    def _safely(self, name: str, call: Callable[[Tracker], None]) -> bool:
        """Call a tracker; report its first error, whatever it is, and leave it out from then on. Return whether it was
        called without one."""
        try:
            call(self._opened[name].tracker)
        except Exception as error:  # noqa: BLE001 - a tracker's failure must not end a run
            del self._opened[name]
            logger.debug("tracker %s", name, exc_info=True)
            self._on_message(f"--track {name}: {_one_line(error)}; the run continues without it")
            return False
        return True


def _open_all(
    names: Iterable[str],
    run: TrackedRun,
    progress: Progress,
    logged: Sequence[Record],
    on_failure: Callable[[str], None] | None,
) -> dict[str, _Opened]:
    """Open the trackers, and give each what it lacks of the lines that the run keeps of earlier starts; return them by
    name.

    One that fails is reported to `on_failure` and left out. Raises `UserError` for it if that is None.
    """
    opened: dict[str, _Opened] = {}
    try:
        for name in dict.fromkeys(names):
            try:
                opened[name] = _open(name, run, progress)
                _catch_up(name, opened[name], run, progress, logged)
            except Exception as error:  # packages raise errors of their own kinds
                message = f"--track {name}: {_one_line(error)}"
                if on_failure is None:
                    raise UserError(message) from error
                on_failure(f"{message}; the run continues without it")
                _close_all([opened.pop(name)] if name in opened else [])
    except UserError:
        _close_all(opened.values())
        raise
    finally:
        with contextlib.suppress(OSError):
            progress.write()
    return opened


def _open(name: str, run: TrackedRun, progress: Progress) -> _Opened:
    """Open a tracker; note its identity."""
    known = progress.get(name, run.key) if run.step else None
    tracker = KINDS[name](run, None if known is None else known.identity)
    last = known.last if known is not None and tracker.continues else NOTHING
    if tracker.rewrites:
        last = min(last, behind(run.step))
    progress.set(name, run.key, Known(tracker.identity, last))
    return _Opened(tracker, last)


def _catch_up(name: str, opened: _Opened, run: TrackedRun, progress: Progress, logged: Sequence[Record]) -> None:
    """Give a tracker the lines up to the run's step that it lacks."""
    for position, line in placed(logged):
        if opened.last < position < behind(run.step):
            opened.tracker.log(numbers(line), position.step)
            opened.last = position
            progress.set(name, run.key, Known(opened.tracker.identity, position))


def _close_all(opened: Iterable[_Opened]) -> None:
    """Close trackers after a failure."""
    for each in opened:
        with contextlib.suppress(Exception):
            each.tracker.close(finished=False)


def _described(
    flags: TrackingFlags,
    out: Path,
    settings: Mapping[str, Any],
    step: int,
    trial: Mapping[str, Any] | None,
    alone: bool,
) -> TrackedRun:
    """Return the run, or one of its trials, as trackers name it: by the name of its folder."""
    name = out.absolute().name
    folder = flags.track_dir or out / FOLDER
    if flags.track_dir is not None:
        # Runs of one name in different folders are told apart.
        name = f"{name}-{hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:6]}"
    key = _key(trial)
    if trial is None or alone:
        return TrackedRun(name=name, key=key, folder=folder, settings=settings, step=step)
    return TrackedRun(name=key, group=name, key=key, folder=folder, settings={**settings, **trial}, step=step)


def _key(trial: Mapping[str, Any] | None) -> str:
    """Return what tells a trial from the others of its run; empty for a run without trials."""
    return "" if trial is None else "_".join(f"{key.replace('_', '-')}-{trial[key]:.10g}" for key in TRIAL)


def _one_line(error: Exception) -> str:
    """Return an error in one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
