"""What benchmarks of planned runs share: their command line, and runs of `pretrain` in processes of their own."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness.command_line import check_files
from fastbert.benchmarks.harness.isolation import Isolated
from fastbert.config import PRESETS
from fastbert.errors import UserError

MODULE = "fastbert.benchmarks.training.planned_run"
STEPS = {"tiny": 30, "mini": 30, "small": 12, "medium": 10, "base": 6, "large": 4}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    models: tuple[str, ...] = ("mini", "small", "base")
    batch_size: int = 32
    max_length: int = 128
    threads: int = 1
    rounds: int = 3
    steps: int | None = None
    processor_time: bool = False
    dtype: str = "auto"

    def __post_init__(self) -> None:
        for name in ("batch_size", "threads", "rounds"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")
        if self.processor_time and self.threads != 1:
            raise UserError(f"--processor-time is for --threads 1, not {self.threads}: threads that wait use it too")

    def flags(self, model: str) -> dict[str, Any]:
        """Return the flags that all runs of a model, and their predictions, have in common."""
        size = {"model": model, "batch_size": self.batch_size, "max_length": self.max_length}
        # A copy of the model, from which checkpoints are written, would hide the memory of a step.
        return {**size, "dtype": self.dtype, "async_save": "off"}


def parser(description: str | None, *, rounds: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of these benchmarks; `rounds` says what --rounds counts."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--quick", action="store_true", help="the tiny model, four sequences per step, one round")
    flags.add_argument("--models", nargs="+", choices=sorted(PRESETS), help="sizes (default: mini small base)")
    flags.add_argument("--batch-size", type=int, help="sequences per step (default: 32)")
    flags.add_argument("--max-length", type=int, default=128, help="tokens per sequence (default: 128)")
    flags.add_argument("--threads", type=int, help="threads (default: all cores)")
    flags.add_argument("--rounds", type=int, help=f"{rounds} (default: 3)")
    flags.add_argument("--dtype", choices=("auto", "bf16", "fp32"), default="auto", help="dtype of matmuls")
    flags.add_argument("--processor-time", action="store_true", help="measure processor seconds, of one thread")
    flags.add_argument("--json", type=Path, help="file to write the rows to")
    return flags


def options_of(flags: argparse.ArgumentParser, arguments: Any) -> tuple[Options, argparse.Namespace]:
    """Return the options of a command line, and its flags; wrong ones exit with code 2."""
    parsed = flags.parse_args(arguments)
    threads = 1 if parsed.processor_time else len(os.sched_getaffinity(0))
    try:
        options = Options(
            models=tuple(parsed.models or (("tiny",) if parsed.quick else Options.models)),
            batch_size=parsed.batch_size or (4 if parsed.quick else 32),
            max_length=parsed.max_length,
            threads=threads if parsed.threads is None else parsed.threads,
            rounds=parsed.rounds or (1 if parsed.quick else 3),
            steps=4 if parsed.quick else None,
            processor_time=parsed.processor_time,
            dtype=parsed.dtype,
        )
        check_files(parsed.json, None)
    except UserError as error:
        flags.error(str(error))
    return options, parsed


def run(model: str, options: Options, shards: Path, folder: Path, **flags: Any) -> dict[str, Any]:
    """Return the measurements of a run, from a process of its own."""
    arguments = {"shards": str(shards), "scratch": str(folder / "scratch"), "threads": options.threads}
    flags = {**options.flags(model), **flags}
    steps = STEPS[model] if options.steps is None else options.steps
    measured = call("PlannedRun", "run", {**arguments, "flags": flags}, options.threads, steps=steps)
    if options.processor_time:
        measured["seconds"] = measured["processor_seconds"]
    return measured


def call(kind: str, method: str, arguments: dict[str, Any], threads: int, **values: Any) -> dict[str, Any]:
    """Return what a method of a class of `planned_run` returns, in a process of its own."""
    process = Isolated(f"{MODULE}:{kind}", arguments, {"OMP_NUM_THREADS": str(threads)})
    try:
        result: dict[str, Any] = process.call(method, **values)
    finally:
        process.close()
    return result
