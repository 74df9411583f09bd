"""Feed trackers with the lines of metrics.jsonl, on a thread of their own.

Training never waits for a tracker: lines are put in a queue, and a worker thread passes them on. A tracker that fails
while the run trains is reported once and left out from then on. Only the first process of a distributed run opens
trackers; the caller sees to that.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.log import logger
from fastbert.io.untrusted_input import read_json_object
from fastbert.training.metrics import read_records
from fastbert.training.reporter import Record, Reporter
from fastbert.training.trackers.ml_flow import MLflow
from fastbert.training.trackers.tensorboard import TensorBoard
from fastbert.training.trackers.tracker import TRIAL, TrackedRun, Tracker, numbers
from fastbert.training.trackers.weights_and_biases import WeightsAndBiases
from fastbert.training.tracking_flags import TrackingFlags, check_tracking

FOLDER, IDENTITIES = "tracking", "runs.json"
"""In a run's folder: the trackers' files, and in it the identities by which a resumed run continues its curves."""
MOST_WAITING = 10_000  # lines in the queue
LONGEST_CLOSE = 120.0  # seconds that the end of a run waits for its trackers
KINDS: dict[str, Callable[[TrackedRun, str | None], Tracker]] = {
    TensorBoard.name: TensorBoard,
    WeightsAndBiases.name: WeightsAndBiases,
    MLflow.name: MLflow,
}


def logged_lines(flags: TrackingFlags, out: Path) -> list[Record]:
    """Return the lines that an earlier start of a run has written and its trackers have been given, none for a run
    without trackers. Call it before the metrics.jsonl is opened, which cuts it at the newest checkpoint."""
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
) -> Iterator[Reporter]:
    """Yield hooks that also feed the trackers of `flags.track`; close those at the end of the block.

    Args:
        flags: those of the run.
        out: the run's folder.
        reporter: the hooks of the run without trackers.
        settings: flags, shape of the model and versions (see `tracker.flat_settings`).
        step: after which the run or trial continues, 0 at its start.
        logged: the lines of metrics.jsonl of an earlier start, as `logged_lines` reads them.
        trial: the hyper-parameters of a trial of fine-tuning (`tracker.TRIAL`), if there are several trials.

    Raises `UserError` for a tracker that cannot be opened.
    """
    if not flags.track:
        yield reporter
        return
    check_tracking(flags)
    run = _described(flags, out, settings, step, trial)
    lines = [line for line in logged if trial is None or all(line.get(key) == trial[key] for key in TRIAL)]
    feed = Feed(_open_all(flags.track, run, out, lines if step else []), reporter.on_message)

    def on_line(record: Record) -> None:
        reporter.on_line(record)
        feed.put(record)

    finished = False
    try:
        yield replace(reporter, on_line=on_line)
        finished = True
    finally:
        feed.close(finished=finished)


class Feed:
    """Passes lines on to trackers, in a thread; each tracker is given up at its first failure."""

    def __init__(
        self, trackers: Sequence[tuple[Tracker, frozenset[tuple[str, int]]]], on_message: Callable[[str], None]
    ) -> None:
        """Each tracker comes with the lines, by split and step, that it has already."""
        self._trackers = {tracker.name: (tracker, known) for tracker, known in trackers}
        self._on_message = on_message
        self._queue: queue.Queue[Record | bool] = queue.Queue(MOST_WAITING)
        self._full = False
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)
        self._thread.start()

    def put(self, record: Record) -> None:
        """Add a line; it is dropped, which is reported once, where trackers are thousands of lines behind."""
        try:
            self._queue.put_nowait(dict(record))
        except queue.Full:
            if not self._full:
                self._full = True
                self._on_message(f"trackers are {MOST_WAITING:,} lines behind; lines are dropped there, not in the run")

    def close(self, *, finished: bool) -> None:
        """Wait until the trackers have all lines, for two minutes at most."""
        until = time.monotonic() + LONGEST_CLOSE
        with contextlib.suppress(queue.Full):
            self._queue.put(finished, timeout=LONGEST_CLOSE)
        self._thread.join(max(until - time.monotonic(), 0.0))
        if self._thread.is_alive():
            names = " and ".join(self._trackers)
            self._on_message(f"{names} did not take the last lines within {LONGEST_CLOSE:.0f} s; the run has them")

    def _work(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, bool):
                for name in list(self._trackers):
                    self._safely(name, lambda tracker: tracker.close(finished=item))  # noqa: B023
                return
            values, position = numbers(item), (str(item["split"]), int(item["step"]))
            for name, (_, known) in list(self._trackers.items()):
                if position not in known:
                    self._safely(name, lambda tracker: tracker.log(values, position[1]))  # noqa: B023

    def _safely(self, name: str, call: Callable[[Tracker], None]) -> None:
        """Call a tracker; report its first error, whatever it is, and leave it out from then on."""
        try:
            call(self._trackers[name][0])
        except Exception as error:  # noqa: BLE001 - a tracker's failure must not end a run
            del self._trackers[name]
            logger.debug("tracker %s", name, exc_info=True)
            self._on_message(f"--track {name}: {_one_line(error)}; the run continues without it")


def _open_all(
    names: Iterable[str], run: TrackedRun, out: Path, logged: Sequence[Record]
) -> list[tuple[Tracker, frozenset[tuple[str, int]]]]:
    """Open the trackers, and log to new ones what the run has done before; return each with the lines that it has.

    Raises `UserError` for one that cannot be opened.
    """
    stored = _identities(out) if run.step else {}
    key = f"{run.group}/{run.name}" if run.group else ""
    opened: list[tuple[Tracker, frozenset[tuple[str, int]]]] = []
    identities: dict[str, dict[str, str]] = {name: dict(values) for name, values in _identities(out).items()}
    for name in dict.fromkeys(names):
        identity = stored.get(name, {}).get(key)
        try:
            tracker = KINDS[name](run, identity)
            if not tracker.continues:
                for line in logged:
                    if line["step"] <= run.step:
                        tracker.log(numbers(line), line["step"])
            has_all = tracker.continues and not tracker.rewrites
            known = frozenset((line["split"], line["step"]) for line in logged) if has_all else frozenset()
        except Exception as error:  # packages raise errors of their own kinds
            for other, _ in opened:
                with contextlib.suppress(Exception):
                    other.close(finished=False)
            raise UserError(f"--track {name}: {_one_line(error)}") from error
        opened.append((tracker, known))
        identities.setdefault(name, {})[key] = tracker.identity
    (out / FOLDER).mkdir(parents=True, exist_ok=True)
    write_json_atomic(out / FOLDER / IDENTITIES, identities)
    return opened


def _described(
    flags: TrackingFlags, out: Path, settings: Mapping[str, Any], step: int, trial: Mapping[str, Any] | None
) -> TrackedRun:
    """Return the run, or one of its trials, as trackers name it: by the name of its folder."""
    name = out.absolute().name
    folder = flags.track_dir or out / FOLDER
    if flags.track_dir is not None:
        # Runs of one name in different folders are told apart.
        name = f"{name}-{hashlib.sha256(str(out.absolute()).encode()).hexdigest()[:6]}"
    if trial is None:
        return TrackedRun(name=name, folder=folder, settings=settings, step=step)
    label = "_".join(f"{key.replace('_', '-')}-{trial[key]:.10g}" for key in TRIAL)
    return TrackedRun(name=label, group=name, folder=folder, settings={**settings, **trial}, step=step)


def _identities(out: Path) -> dict[str, dict[str, str]]:
    """Return tracker -> run or trial -> identity, nothing where an earlier start was not tracked."""
    path = out / FOLDER / IDENTITIES
    try:
        values = read_json_object(path) if path.exists() else {}
    except (CheckpointError, OSError) as error:
        logger.warning("%s; trackers begin new curves", error)
        return {}
    return {
        name: {str(key): str(identity) for key, identity in runs.items()}
        for name, runs in values.items()
        if isinstance(runs, dict)
    }


def _one_line(error: Exception) -> str:
    """Return an error in one line of reasonable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
