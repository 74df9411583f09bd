"""What a benchmark started ends with it: contenders in its process group, and servers in groups of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from fastbert.benchmarks.harness import termination

# A server in a group of its own, which writes its identifier, and the benchmark that started it.
SERVER = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
BENCHMARK = f"""
import subprocess, sys
from fastbert.benchmarks.harness.termination import sigterm_raises

with sigterm_raises():
    server = subprocess.Popen([sys.executable, "-c", {SERVER!r}, sys.argv[1]], start_new_session=True)
    try:
        server.wait()
    finally:
        server.kill()
        server.wait()
"""
RUNNERS = {
    "record": "recording._run({command}, pathlib.Path({log!r}), None, 600)",
    "all": "termination.run({command}, os.environ)",
}


@pytest.mark.parametrize("runner", RUNNERS)
def test_sigterm_ends_the_benchmark_and_what_it_started(runner: str, tmp_path: Path) -> None:
    started, log = tmp_path / "pid", str(tmp_path / "log")
    command = f"[sys.executable, '-c', {BENCHMARK!r}, {str(started)!r}]"
    code = textwrap.dedent(f"""
        import os, pathlib, sys
        from fastbert.benchmarks.harness import recording, termination

        with termination.sigterm_raises():
            {RUNNERS[runner].format(command=command, log=log)}
    """)
    assert ended([sys.executable, "-c", code], started) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text(encoding="utf-8")), 0)


def ended(command: Sequence[str], started: Path) -> int:
    """Return the exit code of a program that receives SIGTERM once the file is written."""
    with subprocess.Popen(command) as parent:
        while not started.exists() or not started.read_text(encoding="utf-8"):
            assert parent.poll() is None
            time.sleep(0.05)
        parent.terminate()
        return parent.wait(timeout=60)


def test_the_handler_of_before_returns_and_a_second_signal_does_not_cut_clean_up_short() -> None:
    before, cleaned = signal.getsignal(signal.SIGTERM), []

    def end_twice() -> None:
        with termination.sigterm_raises():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                cleaned.append(True)

    with pytest.raises(SystemExit) as end:
        end_twice()
    assert end.value.code == 128 + signal.SIGTERM
    assert cleaned
    assert signal.getsignal(signal.SIGTERM) == before
