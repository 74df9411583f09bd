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

# Longer than a server takes to stop, and a contender to be killed in the middle of a call.
GRACE_SECONDS = 30.0


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise `SystemExit` meanwhile, with the exit code of a process that it ended; a second one does
    nothing, so that clean-up is not cut short. Outside the main thread, which alone may set handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if previous is None else previous)


def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a benchmark in this process's group and return its exit code; an exception meanwhile, such as that of
    `sigterm_raises`, ends it first."""
    process = subprocess.Popen(command, env=dict(environment))
    try:
        return process.wait()
    except BaseException:
        process.terminate()  # after an interrupt it is ending by itself: a terminal sends that to the whole group
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
        process.kill()
        process.wait()
        raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End the leader of a process group by SIGTERM, and then whatever is left of the group by SIGKILL."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
