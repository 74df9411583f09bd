"""Run jobs in child processes that may die: each costs its own job, a new process continues, and none outlives us.

    for job, outcome in run_jobs(compile_one, jobs, processes=8, seconds=120.0):
        ...

An exception, a crash or a job that takes too long is a `Failure`, and its process is replaced: after the fault of a
kernel, all further work of a CUDA context fails.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

Job = TypeVar("Job")
PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
PARENT = "FASTBERT_PARENT"
POLL_SECONDS = 0.2
OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Failure:
    """The reason why a job has no result, in one line."""

    reason: str


def child_of_ours() -> dict[str, str]:
    """Return the environment variable by which a child process knows us in `end_with_parent`."""
    return {PARENT: str(os.getpid())}


def end_with_parent(parent: int | None = None) -> None:
    """Make the system kill this process when its parent ends, however that happens; without effect outside Linux.

    `parent` is its process id, by default that of `child_of_ours`: it may have ended before this call.
    """
    variable = os.environ.pop(PARENT, None)
    expected = parent or int(variable or os.getppid())
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != expected:
        os._exit(1)


class _Child:
    """A process that answers one job at a time."""

    def __init__(self, function: Callable[[Any], Any], log: Path | None) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, function, log), daemon=True)
        self.process.start()
        theirs.close()
        self.job: Any = None
        self.seconds = self.deadline = 0.0

    def send(self, job: Any, seconds: float) -> None:
        self.job, self.seconds, self.deadline = job, seconds, time.monotonic() + seconds
        # A process that has died meanwhile is noticed when its answer is read.
        with suppress(BrokenPipeError):
            self.pipe.send(job)

    def answer(self) -> tuple[Any, bool]:
        """Return the result or `Failure` of the job, and whether the process can take another one."""
        try:
            good, value = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return Failure(f"its process ended with code {self.process.exitcode}"), False
        return (value, True) if good else (Failure(value), False)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Any, function: Callable[[Any], Any], log: Path | None) -> None:
    parent = parent_process()
    assert parent is not None
    end_with_parent(parent.pid)
    if log is not None:
        with log.open("ab") as file:
            for stream in (1, 2):  # of compilers too, which print all that they failed on
                os.dup2(file.fileno(), stream)
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(job))
        except Exception as error:  # noqa: BLE001 - the parent records it
            traceback.print_exc()
            first = (str(error).strip().splitlines() or [""])[0]
            answer = (False, f"{type(error).__name__}: {first}")
        pipe.send(answer)


def run_jobs(
    function: Callable[[Job], Any],
    jobs: Iterable[Job],
    *,
    processes: int,
    seconds: float,
    deadline: float = float("inf"),
    log: Path | None = None,
) -> Iterator[tuple[Job, Any]]:
    """Yield each job with its result or a `Failure`, as they finish; with one process, in the order of `jobs`.

    `function` is importable by name. A job may take `seconds`, the start of its process included; jobs that are not
    finished at `deadline` (of `time.monotonic`) fail. What the processes print is appended to `log`. All processes have
    ended when the iterator ends or is closed.
    """
    waiting = list(jobs)
    waiting.reverse()
    idle: list[_Child] = []
    busy: list[_Child] = []
    try:
        while waiting or busy:
            late = time.monotonic() >= deadline
            while waiting and not late and len(busy) < processes:
                child = idle.pop() if idle else _Child(function, log)
                child.send(waiting.pop(), seconds)
                busy.append(child)
            yield from _finished(busy, idle, deadline)
            if late:
                yield from ((job, Failure(OUT_OF_TIME)) for job in reversed(waiting))
                waiting.clear()
    finally:
        for child in (*idle, *busy):
            child.kill()


def _finished(busy: list[_Child], idle: list[_Child], deadline: float) -> Iterator[tuple[Any, Any]]:
    """Wait a moment; yield what has been answered or has taken too long, and move its process."""
    ready = connection.wait([child.pipe for child in busy], POLL_SECONDS)
    now = time.monotonic()
    for child in list(busy):
        if child.pipe in ready:
            outcome, usable = child.answer()
        elif now >= min(child.deadline, deadline):
            reason = OUT_OF_TIME if now >= deadline else f"no answer within {child.seconds:g} s"
            outcome, usable = Failure(reason), False
        else:
            continue
        busy.remove(child)
        if usable:
            idle.append(child)
        else:
            child.kill()
        yield child.job, outcome
