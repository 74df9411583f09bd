"""A run of the GPU benchmark: its options, the process that measures, and the results, on disk after every change."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.benchmarks.gpu.worker import Worker
from fastbert.errors import UserError

PACKAGE = "fastbert.benchmarks"
MOST_LOG_BYTES = 8 << 20
LAST_SECONDS = 6.0  # of the budget: reserved for the table and for ending processes


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run."""

    command: str = "measure"
    out: Path
    results: str = "results.json"
    """The file in `out` that takes the results."""
    root: Path
    started: float
    """Seconds since the epoch when the command began."""
    budget_seconds: float = 520.0
    seconds_per_measure: float = 0.25
    only: tuple[str, ...] = ()
    """The sections to run; empty: all."""
    dry_run: bool = False
    tuning: Path | None = None
    """The measured table of configurations to use."""
    profile: bool = False


class Session:
    """A run: its options, the process that measures, and the results so far."""

    def __init__(self, options: Options, results: dict[str, Any] | None = None) -> None:
        self.options = options
        self.log: Path = options.out / "log.txt"
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab"):
                pass
        except OSError as error:
            raise UserError(f"cannot write {self.log}: {error.strerror}: name another folder with --out") from error
        self.environment: dict[str, str] = environment(options)
        self.worker: Worker = Worker(self.environment, self.log)
        first = {"command": options.command, "dry_run": options.dry_run, "sections": {}, "table": []}
        self.results: dict[str, Any] = first if results is None else results

    def left(self) -> float:
        """Return the seconds until the budget is spent."""
        return self.options.started + self.options.budget_seconds - LAST_SECONDS - time.time()

    def save(self) -> None:
        """Write the results; the file has its old content or the new one. Raises UserError if it cannot be written."""
        path = self.options.out / self.options.results
        partial = path.with_name(path.name + ".tmp")
        try:
            partial.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}: the file has the results before") from error

    def shorten_log(self) -> None:
        """Keep the end of a log that compilers have filled with what they failed on."""
        if self.log.stat().st_size > MOST_LOG_BYTES:
            self.log.write_bytes(self.log.read_bytes()[-MOST_LOG_BYTES:])

    def show(self, section: str, result: dict[str, Any]) -> None:
        """Save the state of a section that has not ended yet."""
        self.results["sections"][section] = {**result, "status": "running"}
        self.save()

    def ask(self, function: str, timeout: float, partial: Callable[[Any], None] | None = None, **arguments: Any) -> Any:
        """Run `module:function` of the benchmarks in the measuring process and return its result; rows that it finishes
        before are passed to `partial`."""
        timeout = max(1.0, timeout)
        path = f"{PACKAGE}.{function}"
        return self.worker.call(path, timeout=timeout, partial=partial, dry=self.options.dry_run, **arguments)


def environment(options: Options) -> dict[str, str]:
    """Return the environment of all processes of a run: caches of compiled kernels, the table of configurations, and in
    a dry run of measurements Triton's interpreter."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    cache = Path(tempfile.gettempdir()) / f"fastbert-gpu-{owner}"
    cache.mkdir(mode=0o700, exist_ok=True)
    variables = {
        "TRITON_CACHE_DIR": os.environ.get("TRITON_CACHE_DIR", str(cache / "triton")),
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor")),
        # The same everywhere: it may be part of the key of torch's cache.
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONSAFEPATH": "1",
    }
    if options.command == "tune":
        # Compiled, also where the user's shell asks for the interpreter.
        variables |= {"FASTBERT_TUNING": str(options.out / "tuning.json"), "TRITON_INTERPRET": "0"}
    elif options.tuning is not None:
        variables["FASTBERT_TUNING"] = str(options.tuning)
    if options.dry_run:
        # Few threads: tiny shapes gain nothing from more.
        variables |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        variables |= {"TRITON_INTERPRET": "1"} if options.command == "measure" else {}
    return variables
