"""The load generator: load.cpp, compiled on first use, and its results."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.errors import UserError

SOURCE = Path(__file__).with_name("load.cpp")
FLAGS = ("-std=c++20", "-O1")
PATIENCE = 60.0  # seconds beyond its own limit after which the generator is ended


@dataclass(frozen=True, kw_only=True)
class Load:
    """The answers to one run of load: latencies in milliseconds are those of answers with a status 2xx."""

    requests: int
    requests_per_second: float
    seconds: float
    statuses: Mapping[str, int]
    latency_ms: Mapping[str, float | None]
    unanswered: int
    unsent: int
    bytes_read: int
    idle_closed: int
    slow_answered: int
    slow_closed: int
    processor_seconds: float

    @property
    def errors(self) -> dict[str, int]:
        """Return the requests that were not answered with 200, by status or reason."""
        errors = {status: count for status, count in self.statuses.items() if status != "200"}
        return errors | ({"unanswered": self.unanswered} if self.unanswered else {})

    def share(self, cores: int) -> float:
        """Return the generator's share of the processors' time."""
        return self.processor_seconds / (self.seconds * cores)


def cache_folder() -> Path:
    """Return the folder of the compiled generator."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastbert" / "benchmarks"


def find_compiler() -> list[str] | None:
    """Return the command of $CXX, or the first of c++, g++, clang++, that is installed, in the order of setup.py."""
    named = os.environ.get("CXX", "").strip()
    commands = map(shlex.split, [named] if named else ["c++", "g++", "clang++"])
    return next((command for command in commands if shutil.which(command[0])), None)


def build(folder: Path | None = None) -> Path:
    """Return the generator's executable in `folder` (default: the cache), compiled unless its source is unchanged."""
    folder = folder or cache_folder()
    key = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:12]
    program = folder / f"load-{key}"
    if program.exists():
        return program
    compiler = find_compiler()
    if compiler is None:
        raise UserError(
            "the load generator needs a C++20 compiler: install g++ >= 11 or clang >= 14, or set CXX to one"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        output = Path(temporary) / "load"
        done = subprocess.run([*compiler, *FLAGS, str(SOURCE), "-o", str(output)], capture_output=True, text=True)
        if done.returncode:
            message = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
            raise UserError(f"{SOURCE.name} did not compile with {compiler[0]}: {message}")
        output.replace(program)
    return program


def write_bodies(path: Path, bodies: Iterable[Any]) -> Path:
    """Write request bodies, one JSON value per line, and return the file."""
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8", newline="")
    return path


def generate(port: int, path: str, bodies: Path | None, *, seconds: float, **options: float | str) -> Load:
    """Send requests to a server on this machine for `seconds`, and return the answers' figures.

    `bodies` is the file of `write_bodies`; without one the requests are GET. The options are those of load.cpp:
    `connections`, `warmup` (seconds that are not counted), `rate` (requests per second; 0: closed loop), `idle`,
    `slow`, `drain` (seconds to wait for the last answers), `header`.
    """
    words: dict[str, Any] = {"port": port, "path": path, "seconds": seconds, **options}
    if bodies is not None:
        words["bodies"] = bodies
    command = [str(build()), *(str(word) for name, value in words.items() for word in (f"--{name}", value))]
    limit = seconds + float(options.get("warmup", 0)) + float(options.get("drain", 10)) + PATIENCE
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    if done.returncode:
        raise UserError(done.stderr.strip() or f"the load generator ended with code {done.returncode}")
    return Load(**json.loads(done.stdout))
