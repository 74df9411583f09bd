"""The options that all CPU benchmarks share, and their command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fastbert.benchmarks.cpu.lineup import Say
from fastbert.benchmarks.harness import records
from fastbert.config import PRESETS
from fastbert.errors import UserError
from fastbert.io.figures import PICTURES

MOST_THREADS = 1024
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class CpuOptions:
    """The selection and size of the measurement."""

    quick: bool = False
    """A small workload, three rounds, and the tiny model unless a model is named."""
    device: str = "cpu"
    """The device: "cpu" only."""
    model: str | None = None
    """A preset's name; None: the benchmark's own choice."""
    contenders: tuple[str, ...] = ()
    """Only contenders whose name contains one of these; none: all."""
    workloads: tuple[str, ...] = ()
    """Only workloads whose name contains one of these; none: all."""
    threads: int | None = None
    """Threads of every contender; None: all cores that the process may use."""
    rounds: int | None = None
    """Rounds per contender; None: seven, three if `quick`."""
    isolate: bool = True
    """One process per contender."""

    def __post_init__(self) -> None:
        if self.device != "cpu":
            raise UserError(f"--device {self.device}: this measures the CPU; benchmarks/gpu.py measures GPUs")
        if self.model is not None and self.model not in PRESETS:
            raise UserError(f"--model {self.model} is not one of {', '.join(PRESETS)}")
        if self.threads is not None and not 1 <= self.threads <= MOST_THREADS:
            raise UserError(f"--threads {self.threads} must be from 1 to {MOST_THREADS}")
        if self.rounds is not None and self.rounds < 1:
            raise UserError(f"--rounds {self.rounds} must be at least 1")

    @property
    def thread_count(self) -> int:
        """Return the number of threads per contender."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def round_count(self) -> int:
        """Return the number of rounds per contender."""
        return self.rounds or (3 if self.quick else 7)


Options = TypeVar("Options", bound=CpuOptions)
Measured = TypeVar("Measured")


def choose(what: str, names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return the names that contain one of the parts, or all names without parts. Raises `UserError` for a part that no
    name contains."""
    for part in parts:
        if not any(part in name for name in names):
            raise UserError(f"no {what} has {part!r} in its name; there are {', '.join(names)}")
    return [name for name in names if not parts or any(part in name for part in parts)]


def check_files(json: Path | None, chart: Path | None) -> None:
    """Raise `UserError` now for files that could not be written after a long measurement."""
    if chart is not None and chart.suffix not in PICTURES:
        raise UserError(f"--chart {chart} must end in {', '.join(PICTURES)}")
    for flag, path in (("json", json), ("chart", chart)):
        if path is not None and path.is_dir():
            raise UserError(f"--{flag} {path} is a folder: name a file")


def title(what: str, packages: Sequence[str], threads: int) -> str:
    """Return a chart's title: its subject and the CPU, and below them the packages' versions."""
    installed = records.versions(packages)
    versions = ", ".join(f"{name} {version}" for name, version in installed.items() if name not in ("python", "numpy"))
    return f"{what}, {threads} thread{'s' * (threads > 1)}, {records.machine()['cpu']}\n{versions}"


def parser(description: str | None, *, quick: str, model: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of `CpuOptions` and the files to write; `quick` and `model` complete two help
    texts."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--quick", action="store_true", help=quick)
    flags.add_argument("--device", default="cpu", help="cpu (the default, and all there is here)")
    flags.add_argument("--model", metavar="PRESET", help=f"{', '.join(PRESETS)} (default: {model})")
    flags.add_argument("--contenders", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    flags.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    flags.add_argument("--threads", type=int, help="threads per contender (default: all cores)")
    flags.add_argument("--rounds", type=int, help="rounds per contender (default: 7, quick 3)")
    flags.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one process per contender (default: yes)",
    )
    flags.add_argument("--json", type=Path, help="file to write the rows to")
    flags.add_argument("--chart", type=Path, help="picture to write, .png, .pdf or .svg")
    return flags


def execute(
    flags: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    make: Callable[..., Options],
    run: Callable[[Options, Say], Measured],
    show: Callable[[Measured], None],
    publish: Callable[[Measured, Options, Path | None, Path | None], None],
) -> int:
    """Parse, measure, print and write; return the exit code. Wrong options exit with code 2."""
    values = vars(flags.parse_args(arguments))
    json, chart = values.pop("json"), values.pop("chart")
    for name in ("contenders", "workloads"):
        values[name] = tuple(values[name])
    try:
        options = make(**values)
        check_files(json, chart)
        measured = run(options, lambda line: print(line, file=sys.stderr, flush=True))
    except UserError as error:
        flags.exit(2, f"{flags.prog}: error: {error}\n")
    except KeyboardInterrupt:
        flags.exit(130, f"{flags.prog}: interrupted\n")
    show(measured)
    publish(measured, options, json, chart)
    return 0
