"""Run a contender in a process of its own, called over a pipe, or in this one, with the same interface.

    contender = Isolated("module:Class", {"name": "nanotoken", "threads": 1}, {"RAYON_NUM_THREADS": "1"})
    contender.call("time_warm")

Requests and answers are lines of JSON; large results are passed as files. If a process dies, its call raises
`ContenderFailed`, and the others continue.

`Isolated(..., python=PATH)` runs the contender with an interpreter of a different environment, which needs numpy and
what the contender's modules import, but neither fastbert nor torch: the process finds the benchmarks' modules in the
folders of this process's packages, which it enters without running `fastbert/__init__.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from fastbert.benchmarks.harness.measure import ContenderFailed
from fastbert.benchmarks.harness.memory_failures import describe, killed

SERVE = "from fastbert.benchmarks.harness.isolation import serve; serve()"
# A relative folder on the path would be the user's.
ENTER = """\
import sys, types
sys.path[:] = [path for path in sys.path if path]
for name, folder in zip(("fastbert", "fastbert.benchmarks"), sys.argv[1:]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
"""
# They would make a different interpreter import this environment's packages.
OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE")


class Contender(Protocol):
    """An object whose methods take and return JSON values."""

    def call(self, method: str, **arguments: Any) -> Any: ...
    def close(self) -> None: ...


class Local:
    """A contender in this process."""

    def __init__(self, class_path: str, arguments: Mapping[str, Any]) -> None:
        self.subject: Any = _make(class_path, arguments)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method and return its result. Raises `ContenderFailed`."""
        try:
            return getattr(self.subject, method)(**arguments)
        except Exception as error:
            raise ContenderFailed(describe(error)) from error

    def close(self) -> None:
        """Release the object."""
        self.subject = None


class Isolated:
    """A contender in a process of its own."""

    def __init__(
        self,
        class_path: str,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        python: Path | None = None,
    ) -> None:
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [sys.executable, "-P", "-c", SERVE] if python is None else foreign_command(python),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables(environment, foreign=python is not None),
            text=True,
            encoding="utf-8",
        )
        try:
            self._ask({"class": class_path, "arguments": dict(arguments)})
        except BaseException:  # an interrupt too: nobody else knows the process yet
            self.process.kill()
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method in the process and return its result. Raises `ContenderFailed`."""
        return self._ask({"method": method, "arguments": arguments})

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise ContenderFailed(self._end())
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer["result"]

    def _end(self) -> str:
        """Wait for the process, and return how it ended."""
        if self.process.returncode is not None:
            return f"its process ended with code {self.process.returncode}"
        # Unlike `Popen.wait`, this returns the memory that the process had.
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            return killed(usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss << 10)
        how = f"signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"code {code}"
        return f"its process ended with {how}"


def foreign_command(python: Path, code: str = SERVE, *arguments: str) -> list[str]:
    """Return the command that runs code in an interpreter of a different environment, which can import the modules of
    the benchmarks."""
    folders = [str(Path(import_module(package).__path__[0])) for package in ("fastbert", "fastbert.benchmarks")]
    return [str(python), "-c", ENTER + code, *folders, *arguments]


def variables(environment: Mapping[str, str], *, foreign: bool) -> dict[str, str]:
    """Return this process's environment variables and others; without those that concern this interpreter alone where
    the process is of a different environment."""
    inherited = {name: value for name, value in os.environ.items() if not (foreign and name in OWN_VARIABLES)}
    return {**inherited, **environment}


def serve() -> None:
    """Answer requests from standard input until it ends: the first constructs the object, others call its methods."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    subject: Any = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if "class" in question:
                subject = _make(question["class"], question["arguments"])
                answer: dict[str, Any] = {"result": None}
            else:
                answer = {"result": getattr(subject, question["method"])(**question["arguments"])}
        except Exception as error:  # noqa: BLE001 - the parent reports it
            answer = {"error": describe(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _make(class_path: str, arguments: Mapping[str, Any]) -> Any:
    """Construct an object of the class that `class_path` names as module:class."""
    module, _, name = class_path.partition(":")
    return getattr(import_module(module), name)(**arguments)
