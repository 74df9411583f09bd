"""Run a contender in a process of its own, called over a pipe, or in this one, with the same interface.

    contender = Isolated("module:Class", {"name": "nanotoken", "threads": 1}, {"RAYON_NUM_THREADS": "1"})
    contender.call("time_warm")

Requests and answers are lines of JSON; large results are passed as files. If a process dies, its call raises
`ContenderFailed`, and the others continue.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol

from fastbert.benchmarks.harness.measure import ContenderFailed


class Contender(Protocol):
    """An object whose methods take and return JSON values."""

    def call(self, method: str, **arguments: Any) -> Any: ...
    def close(self) -> None: ...


class Local:
    """A contender in this process."""

    def __init__(self, class_path: str, arguments: Mapping[str, Any]) -> None:
        self.subject = _make(class_path, arguments)

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method and return its result. Raises `ContenderFailed`."""
        try:
            return getattr(self.subject, method)(**arguments)
        except Exception as error:
            raise ContenderFailed(_describe(error)) from error

    def close(self) -> None:
        """Release the object."""
        self.subject = None


class Isolated:
    """A contender in a process of its own."""

    def __init__(self, class_path: str, arguments: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-P", "-c", "from fastbert.benchmarks.harness.isolation import serve; serve()"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
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
            raise ContenderFailed(f"its process ended with code {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderFailed(answer["error"])
        return answer["result"]


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
            answer = {"error": _describe(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _make(class_path: str, arguments: Mapping[str, Any]) -> Any:
    """Construct an object of the class that `class_path` names as module:class."""
    module, _, name = class_path.partition(":")
    return getattr(import_module(module), name)(**arguments)


def _describe(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"
