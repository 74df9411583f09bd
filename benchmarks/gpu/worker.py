"""A process that measures, and the parent that calls it: a kernel that crashes or hangs costs its case, not the run.

    worker = Worker({"TRITON_CACHE_DIR": "..."}, Path("log.txt"))
    worker.call("fastbert.benchmarks.gpu.device:describe", timeout=60, dry=False)

Requests and answers are lines of JSON. A process that has died, was too slow, or whose device only returns errors after
the fault of a kernel is replaced at the next call.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from fastbert.kernels.tuning.processes import child_of_ours, end_with_parent

LAST_LINES = 12


class WorkerFailed(Exception):
    """A call without a result; `lines` are the last of the traceback or log, `attempted` is the last announcement."""

    def __init__(self, message: str, lines: list[str], attempted: str | None) -> None:
        super().__init__(message)
        self.lines = lines
        self.attempted = attempted

    @property
    def by_user(self) -> bool:
        """Return whether it is a `UserError`: a machine that cannot do what is asked, not a failure."""
        return str(self).startswith("UserError: ")


ANNOUNCED = "attempting: "


def announce(label: str) -> None:
    """Write to the log what comes next, so that the cause of a crash is known."""
    print(f"{ANNOUNCED}{label}", file=sys.stderr, flush=True)


_answers: IO[str] | None = None


def finished(rows: Sequence[Mapping[str, Any]]) -> None:
    """Send rows of a case to the parent before the case has ended: a later crash must not cost them."""
    if _answers is not None:
        print(json.dumps({"rows": rows}), file=_answers, flush=True)


def written(path: Path, begin: int) -> list[str]:
    """Return the lines of a file from byte `begin` on."""
    with path.open("rb") as file:
        file.seek(begin)
        return file.read().decode(errors="replace").splitlines()


class Worker:
    """One process at a time that answers calls in turn; its output goes to the log."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self.environment: dict[str, str] = dict(environment)
        self.log = log
        self.process: subprocess.Popen[str] | None = None
        self.answers: queue.Queue[str | None] = queue.Queue()

    def call(
        self, function: str, *, timeout: float, partial: Callable[[Any], None] | None = None, **arguments: Any
    ) -> Any:
        """Return the result of `module:function` for these arguments, as JSON represents it. Raises `WorkerFailed`.

        `partial` gets the rows that the function has `finished` before it returns.
        """
        begin = self.log.stat().st_size if self.log.exists() else 0
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
            process.stdin.flush()
            answer = self._answer(time.monotonic() + timeout, partial)
        except queue.Empty:
            self.close()
            raise self._failure(f"no answer within {timeout:.0f} s", begin) from None
        except BrokenPipeError:
            answer = None
        if answer is None:
            code = process.wait()
            self.close()
            raise self._failure(f"its process ended with code {code}", begin)
        if answer.get("unusable"):
            self.close()
        if "error" in answer:
            raise self._failure(answer["error"], begin, answer["lines"])
        return answer["result"]

    def _answer(self, deadline: float, partial: Callable[[Any], None] | None) -> dict[str, Any] | None:
        """Return the last answer of a call, None if the process has ended. Raises `queue.Empty` after the deadline."""
        while True:
            line = self.answers.get(timeout=max(0.0, deadline - time.monotonic()))
            answer = None if line is None else json.loads(line)
            if answer is None or "rows" not in answer:
                return answer
            if partial is not None:
                partial(answer["rows"])

    def _failure(self, message: str, begin: int, lines: list[str] | None = None) -> WorkerFailed:
        lines_since = written(self.log, begin)
        announcements = [line.removeprefix(ANNOUNCED) for line in lines_since if line.startswith(ANNOUNCED)]
        return WorkerFailed(message, lines or lines_since[-LAST_LINES:], announcements[-1] if announcements else None)

    def close(self) -> None:
        """Kill the process."""
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # an unread request
        self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            self.answers = queue.Queue()
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "fastbert.benchmarks.gpu.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env={**os.environ, **self.environment, **child_of_ours()},
                    text=True,
                )
            threading.Thread(target=_listen, args=(self.process, self.answers), daemon=True).start()
        return self.process


def _listen(process: subprocess.Popen[str], answers: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(line)
    except ValueError:
        pass  # closed while it was read, by close()
    answers.put(None)


def serve() -> None:
    """Answer requests from standard input until it ends."""
    global _answers
    end_with_parent()
    # Output of libraries must not mix with the answers.
    answers = _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            module, _, name = question["function"].partition(":")
            answer = {"result": getattr(import_module(module), name)(**question["arguments"])}
        except Exception as error:  # noqa: BLE001 - the parent records it
            text = traceback.format_exc()
            print(text, file=sys.stderr, flush=True)
            first = (str(error).strip().splitlines() or [""])[0]
            answer = {"error": f"{type(error).__name__}: {first}", "lines": text.splitlines()[-LAST_LINES:]}
        answer["unusable"] = not _device_answers()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _device_answers() -> bool:
    """Return whether the GPU is usable: after an illegal access all further work of the process fails."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(error, file=sys.stderr, flush=True)
        return False
    return True


if __name__ == "__main__":
    # Under its real name, where `finished` finds the pipe.
    import_module("fastbert.benchmarks.gpu.worker").serve()
