"""End what a benchmark started when the benchmark is ended: by SIGTERM, by an interrupt, or by an error.

    with sigterm_raises():
        run()

Contenders and servers are processes of their own. SIGTERM kills a Python process without running its `finally` blocks,
so that servers would listen on and contenders would keep their memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

# Longer than servers take to stop, and a contender to be killed in the middle of a call.
GRACE_SECONDS = 60.0

_handled = False


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` meanwhile, with the exit code of a process that it ended; a second one does
    nothing, so that clean-up is not cut short. Nothing changes inside of another such block, and outside the main
    thread, which alone may set handlers."""
    global _handled
    if _handled or threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    _handled = True
    try:
        yield
    finally:
        _handled = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a benchmark in this process's group and return its exit code; an exception meanwhile, such as that of
    `sigterm_raises`, ends it first."""
    process = subprocess.Popen(command, env=dict(environment))
    try:
        return process.wait()
    except BaseException as error:
        try:
            if isinstance(error, KeyboardInterrupt):  # a terminal sends it to the whole group
                _wait(process)
            _ask_to_end(process)
        finally:  # after a second interrupt, too
            process.kill()
            process.wait()
        raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the leader of a process group by SIGTERM, and then whatever is left of the group by SIGKILL."""
    try:
        _ask_to_end(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ask_to_end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        _wait(process)


def _wait(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=GRACE_SECONDS)
