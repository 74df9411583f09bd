"""Commands that are killed: each runs in a process that is forked from a warm one (`warm_server`)."""

from __future__ import annotations

import errno
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from warm_server import WarmServer, end_with, serve

# What changes the names of a folder, or waits for the disk: between any two of them a run may end.
POINTS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
# The operations of a save, whose files are written piece by piece.
SAVING = (*POINTS, "open", "write")
MODULES = (
    *("fastbert.cli.finetune", "fastbert.cli.pretrain", "fastbert.finetuning.run", "fastbert.tasks.prediction_files"),
    "fastbert.training.pretrain",
)


class Commands:
    """Runs `fastbert` commands, and ends them when asked to."""

    def __init__(self, folder: Path) -> None:
        self.output = _output(folder)
        self._server = WarmServer(__file__, folder)
        self.close = self._server.close

    def run(self, arguments: list[str], **ending: Any) -> tuple[int, float]:
        """The exit code, negative for a signal, and the processor time that it took, in seconds.

        `kill_after`: seconds of processor time until SIGKILL; `fault` (from 1): the number of the operation in `POINTS`
        that kills the process, finds the disk full with `error`, or with `terminate` is preceded by two SIGTERM. With
        `operations` these are counted in place of `POINTS`, and with `within` only those in a folder of that name.
        """
        answer = self._server.ask({"arguments": arguments, **ending})
        return answer["code"], answer["seconds"]


def restart_until_done(commands: Commands, arguments: list[str], draw: random.Random, seconds: float) -> int:
    """Repeat a command, killed at random times, until it ends by itself; returns how often it was killed."""
    for kills in range(1000):
        code, _ = commands.run(arguments, kill_after=draw.uniform(0, seconds))
        if code != -signal.SIGKILL:
            assert code == 0, commands.output.read_text()
            return kills
    raise AssertionError("a thousand starts were not enough")


def _output(folder: Path) -> Path:
    return folder / "output.txt"


def _serve(folder: Path) -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        os.truncate(_output(folder), 0)
        child = os.fork()
        if not child:
            _work(request)
        if request.get("kill_after") is not None:
            _wait(child, request["kill_after"])
            os.kill(child, signal.SIGKILL)
        _, status, used = os.wait4(child, 0)
        return {"code": os.waitstatus_to_exitcode(status), "seconds": used.ru_utime + used.ru_stime}

    serve(_output(folder), MODULES, answer)


def _wait(child: int, seconds: float) -> None:
    """Until a process has ended or used so much processor time: how far it comes in that hangs on no other load."""
    while processor_time(child) < seconds:
        time.sleep(0.002)


def processor_time(process: int) -> float:
    """The processor time of a process so far, in seconds; infinite for one that has ended."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return float("inf") if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _work(request: dict[str, Any]) -> NoReturn:
    from fastbert.cli import main

    if request.get("fault") is not None:
        arrange_fault(**{name: value for name, value in request.items() if name != "arguments"})
    end_with(lambda: main(request["arguments"]))


def arrange_fault(
    fault: int,
    error: bool = False,
    terminate: bool = False,
    operations: Sequence[str] = POINTS,
    within: str | None = None,
) -> None:
    passed = 0

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*values: Any, **named: Any) -> Any:
            nonlocal passed
            if within is None or within in operand(values[0], named.get("dir_fd")).parts:
                passed += 1
                if passed == fault:
                    if error:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    for kind in (signal.SIGTERM, signal.SIGTERM) if terminate else (signal.SIGKILL,):
                        os.kill(os.getpid(), kind)
            return original(*values, **named)

        return faulty

    for name in operations:
        setattr(os, name, replacement(getattr(os, name)))


def operand(value: Any, folder: int | None = None) -> Path:
    """The path that an operation of `os` is about, given as a path or a descriptor."""
    if isinstance(value, int):
        return Path(os.readlink(f"/proc/self/fd/{value}"))
    return Path(value) if folder is None else operand(folder) / value


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
