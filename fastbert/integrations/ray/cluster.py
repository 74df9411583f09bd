"""Start Ray on this machine or connect to a cluster, and end it in any case; keep its messages off the terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fastbert.errors import UserError, require_package
from fastbert.io.log import logger
from fastbert.training.stopping import Stopped

ADDRESS = "RAY_ADDRESS"
"""The environment variable that names a cluster; without it Ray is started on this machine, for the run."""
MOST_THREADS = 4
"""Threads of a worker by default: more gain little on short texts."""
_STARTS = 3  # Ray gives its processes 30 s, which can be too short on a busy machine
_END_SECONDS = 3.0  # of processes that Ray was told to end
_OBJECT_BYTES = 100 << 20  # of Ray's object store on this machine: shards pass by name


def import_ray() -> Any:
    """Import Ray with Ray Data. Raises UserError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent from here
    message = "--engine ray needs the package ray: `pip install 'fastbert-engine[ray]'`"
    require_package("ray.data", message)
    return require_package("ray", message)


class Cluster:
    """The workers of a run: their number, and the cores of each; `gpus` gives each worker a GPU.

    None: as many workers as the cores hold, or one per GPU; the cores divided by the workers, at most 4.
    """

    def __init__(self, *, workers: int | None, threads: int | None, gpus: bool) -> None:
        self.address: str = os.environ.get(ADDRESS) or "local"
        self.gpus = gpus
        self._asked = workers, threads
        self.workers: int = 1
        self.threads: int = 1

    def __str__(self) -> str:
        """Return the workers in words."""
        workers = f"{self.workers} worker{'s' * (self.workers > 1)}"
        place = "" if self.address == "local" else f" at {self.address}"
        return f"{workers} of {self.threads} core{'s' * (self.threads > 1)}{place}"

    @contextmanager
    def started(self, ray: Any, folder: Path, out: str) -> Iterator[None]:
        """Connect within the block, whose processes work in a folder; end all of them afterwards.

        A SIGINT or SIGTERM that arrives in between raises `Stopped`, with `out`. Raises UserError for a cluster that
        cannot be reached, or is too small.
        """
        signals = _Signals()
        try:
            with signals.handled():
                try:
                    with signals.during_start():
                        self._start(ray, folder)
                    yield
                finally:
                    signals.ignore()  # until Ray's processes have ended
                    processes = ray_processes()
                    ray.shutdown()
                    end_processes(processes)
        except KeyboardInterrupt:
            if signals.number is None:
                raise
            raise Stopped(signals.number, out) from None

    def _start(self, ray: Any, folder: Path) -> None:
        options: dict[str, Any] = {"address": self.address}
        if self.address == "local":
            self._divide([len(os.sched_getaffinity(0))], [torch.cuda.device_count()])
            cores, gpus = self.workers * self.threads, self.workers if self.gpus else 0
            options |= {"num_cpus": cores, "num_gpus": gpus, "object_store_memory": _OBJECT_BYTES}
            options["include_dashboard"] = False
        # Workers search the working directory of this process for modules, which may be a clone that is not compiled.
        with contextlib.chdir(folder), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in ("ray", "ray.data"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
            try:
                self._init(ray, {"log_to_driver": False, "logging_level": logging.CRITICAL, **options})
            except Exception as error:  # of any class
                reason = (str(error).splitlines() or [""])[0][:300]
                raise UserError(
                    f"--engine ray: Ray does not start, {ADDRESS} {self.address} ({reason}); check the cluster, or"
                    f" unset {ADDRESS} to use this machine"
                ) from error
        if self.address != "local":
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            self._divide([int(node.get("CPU", 0)) for node in nodes], [int(node.get("GPU", 0)) for node in nodes])

    def _init(self, ray: Any, options: dict[str, Any]) -> None:
        """Call `ray.init`, on this machine again if its processes did not start in time."""
        starts = _STARTS if self.address == "local" else 1
        for start in range(1, starts + 1):
            try:
                ray.init(**options)
                return
            except Exception:  # of many types, by what did not start; the last one is raised
                if start == starts:
                    raise
                logger.info("Ray did not start in time; starting it again")
                ray.shutdown()
                end_processes(ray_processes(), 0)

    def _divide(self, cores: list[int], gpus: list[int]) -> None:
        """Choose the workers and their threads for machines with these cores and GPUs. Raises UserError if a cluster
        holds no worker."""
        workers, threads = self._asked
        if threads is None:
            share = sum(cores) // (workers or (sum(gpus) if self.gpus else 0) or 1)
            threads = max(1, min(share, max(cores), MOST_THREADS))
        room = sum(count // threads for count in cores)
        room = min(room, sum(gpus)) if self.gpus else room
        if self.address != "local" and (workers or 1) > room:
            wanted = f"{workers or 1} of {threads} cores{' and a GPU each' if self.gpus else ''}"
            raise UserError(f"--workers: the cluster holds {room} workers, not {wanted}; lower --workers or --threads")
        self.workers, self.threads = workers or max(1, room), threads


class _Signals:
    """The first SIGINT or SIGTERM raises KeyboardInterrupt; later ones change nothing, as the run is ending."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._is_ending = False
        self._is_main = threading.current_thread() is threading.main_thread()  # only it can handle signals

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals within the block."""
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.install()
        try:
            yield
        finally:
            if self._is_main:
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextmanager
    def during_start(self) -> Iterator[None]:
        """Take the signals again at the end of the block, in which Ray exits at a SIGTERM by a handler of its own."""
        try:
            yield
            self.install()
        except SystemExit as end:
            if end.code != signal.SIGTERM:
                raise
            self.number = signal.SIGTERM
            raise KeyboardInterrupt from None

    def install(self) -> None:
        """Handle the signals."""
        if self._is_main:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, self._receive)

    def ignore(self) -> None:
        """Ignore further signals."""
        self._is_ending = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._is_ending:
            self.number, self._is_ending = number, True
            raise KeyboardInterrupt


def descendants(process: int) -> dict[int, str]:
    """Return the processes that a process has started, and those that they have, with the time of each one's start,
    which tells it from a later process of the same number; empty without /proc."""
    statuses = {int(path.name): _status(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    children: dict[int, list[int]] = {}
    for number, (parent, _) in statuses.items():
        children.setdefault(parent, []).append(number)
    starts: dict[int, str] = {}
    pending = [process]
    while pending:
        below = children.get(pending.pop(), [])
        starts |= {number: statuses[number][1] for number in below}
        pending += below
    return starts


def ray_processes() -> dict[int, str]:
    """Return those of Ray among the `descendants` of this process."""

    def is_ray(process: int) -> bool:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes()
        except OSError:
            return False
        return words.startswith(b"ray::") or b"/ray/" in words

    return {process: start for process, start in descendants(os.getpid()).items() if is_ray(process)}


def _status(process: int) -> tuple[int, str]:
    """Return a process's parent and the time of its start; (0, "") for one that has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, ""
    return (0, "") if fields[0] == "Z" else (int(fields[1]), fields[19])


def end_processes(processes: dict[int, str], seconds: float = _END_SECONDS) -> None:
    """Wait for `descendants` to end, and kill those that do not within some seconds."""
    deadline = time.monotonic() + seconds
    while any(_status(process)[1] == start for process, start in processes.items()):
        if time.monotonic() > deadline:
            for process, start in processes.items():
                if _status(process)[1] == start:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.05)


@contextmanager
def muted() -> Iterator[None]:
    """Keep off the terminal what Ray's threads print, and what its C++ core writes to the descriptor of standard error;
    `sys.stderr` still leads there."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), _muted_descriptor(nowhere.fileno()):
        yield


@contextmanager
def _muted_descriptor(nowhere: int) -> Iterator[None]:
    try:
        is_plain = sys.stderr.fileno() == 2
    except (AttributeError, OSError, ValueError):  # closed, or not a file
        is_plain = False
    if not is_plain:
        yield
        return
    before, terminal = sys.stderr, os.dup(2)
    sys.stderr = io.TextIOWrapper(
        os.fdopen(terminal, "wb"), encoding=before.encoding, errors=before.errors, line_buffering=True
    )
    try:
        before.flush()
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(terminal, 2)
        sys.stderr.close()
        sys.stderr = before
