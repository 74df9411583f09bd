"""Commands that are killed: each runs in a process that is forked from a warm one (`warm_server`)."""

from __future__ import annotations

import errno
import functools
import importlib
import mmap
import os
import signal
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from warm_server import WarmServer, end_with, know, serve

# What changes the names of a folder, or waits for the disk: between any two of them a run may end.
POINTS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
# The operations of a save, whose files are written piece by piece.
SAVING = (*POINTS, "open", "write")
MODULES = (
    *("fastbert.cli.finetune", "fastbert.cli.pretrain", "fastbert.finetuning.run", "fastbert.tasks.prediction_files"),
    "fastbert.training.pretrain",
)
MARKS = struct.Struct("4q")


class Step(NamedTuple):
    """A step of a run: the number of its trial, from 1, and its own in that."""

    trial: int
    number: int


class Ended(NamedTuple):
    """How a command ended: its exit code, negative for a signal; its processor time in seconds; the seconds that it
    went on for after the first signal that it got, if it got one; the first and the last step that it took; and what it
    printed."""

    code: int
    seconds: float
    went_on: float | None
    first: Step | None
    last: Step | None
    output: str

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Commands:
    """Runs `fastbert` commands, and ends them when asked to."""

    def __init__(self, folder: Path) -> None:
        self.output = _output(folder)
        self._server = WarmServer(__file__, folder)
        self.close = self._server.close

    def run(self, arguments: Sequence[str], **ending: Any) -> Ended:
        """Run a command, which gets `signals`, by default one SIGKILL, with `gap` seconds of processor time between
        any two of them, at one of these moments:

        `after`: seconds of processor time;
        `fault`: the number, from 1, of an operation in `POINTS`, or in `operations` instead, and with `within` only
        of those in a folder of that name; with `error` it finds the disk full, and no signal is sent;
        `call`: the number, from 1, of the call of `function`, such as "fastbert.training.loop:Trainer.validate".

        `delay`: seconds of each write to a checkpoint, as to a slow disk. `stalls`: a file that gets a line per save in
        the background: the processor time of the call and, in the median so far, of a step, in seconds.
        """
        answer = self._server.ask({"arguments": list(arguments), **ending})
        steps = [None if step is None else Step(*step) for step in answer["steps"]]
        return Ended(answer["code"], answer["seconds"], answer["went_on"], *steps, self.output.read_text())


def _output(folder: Path) -> Path:
    return folder / "output.txt"


def _serve(folder: Path) -> None:
    marks, signalled = folder / "steps", folder / "signalled"

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        os.truncate(_output(folder), 0)
        marks.write_bytes(bytes(MARKS.size))
        signalled.unlink(missing_ok=True)
        know(request["arguments"])
        child = os.fork()
        if not child:
            _work(request, marks, signalled)
        if request.get("after") is not None:
            _signal(child, request, signalled)
        _, status, used = os.wait4(child, 0)
        went_on = time.time() - signalled.stat().st_mtime if signalled.exists() else None
        return {
            "code": os.waitstatus_to_exitcode(status),
            "seconds": used.ru_utime + used.ru_stime,
            "went_on": went_on,
            "steps": marked_steps(marks),
        }

    serve(_output(folder), MODULES, answer)


def _signal(child: int, request: dict[str, Any], signalled: Path) -> None:
    """Send a process its signals once it has used so much processor time: how far it comes in that hangs on no other
    load."""
    moment = request["after"]
    for number in request.get("signals", [signal.SIGKILL]):
        while (used := processor_time(child)) < moment:
            time.sleep(0.001)
        if used == float("inf"):
            return
        _touch_once(signalled)
        os.kill(child, number)
        moment = used + request.get("gap", 0.0)


def _touch_once(signalled: Path) -> None:
    """Note the time of the first signal."""
    if not signalled.exists():
        signalled.touch()


def processor_time(process: int) -> float:
    """The processor time of a process so far, in seconds; infinite for one that has ended."""
    try:
        with open(f"/proc/{process}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] == "Z":
                return float("inf")
        return time.clock_gettime((~process << 3) | 2)  # the clock of the process, of nanoseconds
    except OSError:
        return float("inf")


def _work(request: dict[str, Any], marks: Path, signalled: Path) -> NoReturn:
    from fastbert.cli import main

    mark_steps(marks)
    if request.get("delay"):
        delay_writes(request["delay"])
    if request.get("stalls"):
        measure_stalls(Path(request["stalls"]))
    arrange_end(request, signalled)
    end_with(lambda: main(request["arguments"]))


def mark_steps(path: Path) -> None:
    """Write the first and the last step that this process reports to a file, which a kill leaves as it is."""
    from fastbert.cli.training_view import TrainingView

    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), MARKS.size)
    report = TrainingView.step

    def step(view: TrainingView, record: dict[str, Any], progress: float) -> None:
        first = MARKS.unpack(memory[:])[:2]
        now = (view.trial_number, record["step"])
        memory[:] = MARKS.pack(*(first if first[1] else now), *now)
        report(view, record, progress)

    TrainingView.step = step  # type: ignore[method-assign]


def marked_steps(path: Path) -> list[tuple[int, ...] | None]:
    """Return the first and the last step in such a file, None for each if there was none."""
    values = MARKS.unpack(path.read_bytes())
    return [values[:2], values[2:]] if values[1] else [None, None]


def arrange_end(request: dict[str, Any], signalled: Path | None = None) -> None:
    """Arrange that this process gets signals, or an error, as `Commands.run` describes."""
    signals = request.get("signals", [signal.SIGKILL])

    def end() -> None:
        if request.get("error", False):
            raise OSError(errno.ENOSPC, "No space left on device")
        for number in signals:
            if signalled is not None:
                _touch_once(signalled)
            os.kill(os.getpid(), number)

    if request.get("fault") is not None:
        operations, within = request.get("operations", POINTS), request.get("within")
        count = _Count(request["fault"], end)
        for name in operations:
            setattr(os, name, _counted_operation(getattr(os, name), within, count))
    if request.get("call") is not None:
        module, _, path = request["function"].partition(":")
        *names, name = path.split(".")
        owner = functools.reduce(getattr, names, importlib.import_module(module))
        setattr(owner, name, _counted_call(getattr(owner, name), _Count(request["call"], end)))


def delay_writes(seconds: float) -> None:
    """Let each write to a checkpoint take so long."""
    write = os.write

    def slow(file: int, data: Any) -> int:
        if "checkpoints" in operand(file).parts:
            time.sleep(seconds)
        return write(file, data)

    os.write = slow


def measure_stalls(file: Path) -> None:
    """Measure what a save in the background costs the thread that computes the steps."""
    from fastbert.training.saving import Checkpoints
    from fastbert.training.step_computing import StepComputer

    take_step, save_async, steps = StepComputer.step, Checkpoints.save_async, list[float]()

    def step(computer: StepComputer, loaded: Any) -> Any:
        before = time.thread_time()
        result = take_step(computer, loaded)
        steps.append(time.thread_time() - before)
        return result

    def save(checkpoints: Checkpoints, *values: Any, **named: Any) -> Path:
        before = time.thread_time()
        folder = save_async(checkpoints, *values, **named)
        with file.open("a") as lines:
            lines.write(f"{time.thread_time() - before} {statistics.median(steps)}\n")
        return folder

    StepComputer.step, Checkpoints.save_async = step, save  # type: ignore[method-assign]


class _Count:
    """Ends the process at the call of `add` with this number."""

    def __init__(self, last: int, end: Callable[[], None]) -> None:
        self.passed, self.last, self.end = 0, last, end

    def add(self) -> None:
        self.passed += 1
        if self.passed == self.last:
            self.end()


def _counted_operation(original: Callable[..., Any], within: str | None, count: _Count) -> Callable[..., Any]:
    def operation(*values: Any, **named: Any) -> Any:
        if within is None or within in operand(values[0], named.get("dir_fd")).parts:
            count.add()
        return original(*values, **named)

    return operation


def _counted_call(original: Callable[..., Any], count: _Count) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*values: Any, **named: Any) -> Any:
        count.add()
        return original(*values, **named)

    return call


def operand(value: Any, folder: int | None = None) -> Path:
    """The path that an operation of `os` is about, given as a path or a descriptor."""
    if isinstance(value, int):
        return Path(os.readlink(f"/proc/self/fd/{value}"))
    return Path(value) if folder is None else operand(folder) / value


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
