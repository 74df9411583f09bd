"""The options that all CPU benchmarks share, and their command line."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import peer_pythons, report
from fastbert.benchmarks.cpu.lineup import Lineup, Result
from fastbert.benchmarks.cpu.peer_pythons import PeerPython
from fastbert.benchmarks.harness import command_line, records
from fastbert.benchmarks.harness.command_line import Say
from fastbert.config import PRESETS, BertConfig
from fastbert.errors import UserError

MOST_THREADS = 1024


@dataclass(frozen=True, kw_only=True)
class CpuOptions:
    """The selection and size of the measurement."""

    QUICK_PRESET: ClassVar = "tiny"

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
    def preset(self) -> str:
        """Return the model's name: unless one is named base, with `quick` `QUICK_PRESET`."""
        return self.model or (self.QUICK_PRESET if self.quick else "base")

    @property
    def config(self) -> BertConfig:
        """Return the model's configuration."""
        return BertConfig.preset(self.preset)

    @property
    def thread_count(self) -> int:
        """Return the number of threads per contender."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def round_count(self) -> int:
        """Return the number of rounds per contender."""
        return self.rounds or (3 if self.quick else 7)


@dataclass(frozen=True, kw_only=True)
class PeerOptions(CpuOptions):
    """The options of a benchmark whose contenders may have environments of their own."""

    peer_python: tuple[str, ...] = ()
    """NAME=PATH: the interpreter of the contenders whose names begin with NAME."""

    def pythons(self, kind: str) -> dict[str, PeerPython]:
        """Return the interpreter of each contender that has one of its own. Raises `UserError` for a wrong one."""
        return peer_pythons.read(kind, self.peer_python, isolate=self.isolate)


@dataclass(frozen=True, kw_only=True)
class FolderOptions(CpuOptions):
    """The options of a benchmark whose model is a folder."""

    KIND: ClassVar[str]
    """The kind of contender."""

    folder: Path | None = None
    """The model; None: the benchmark's own choice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            raise UserError("--model names a size: give the folder of a model with --folder")
        self.names()

    def names(self) -> list[str]:
        """Return the selected contenders."""
        return choose("contender", peers.names(self.KIND), self.contenders)

    def lineup(
        self,
        kind: type[Lineup],
        model: Path,
        folder: Path,
        say: Say,
        pythons: Mapping[str, PeerPython] | None = None,
    ) -> Lineup:
        """Return the selected contenders of a model, with `folder` for temporary files."""
        names, threads, isolate = self.names(), self.thread_count, self.isolate
        return kind(self.KIND, names, threads, model=model, isolate=isolate, folder=folder, say=say, pythons=pythons)


def choose(what: str, names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """Return the names that contain one of the parts, or all names without parts. Raises `UserError` for a part that no
    name contains."""
    separator = "; " if any("," in name for name in names) else ", "
    for part in parts:
        if not any(part in name for name in names):
            raise UserError(f"no {what} has {part!r} in its name; there are {separator.join(names)}")
    return [name for name in names if not parts or any(part in name for part in parts)]


def title(what: str, packages: Sequence[str], threads: int) -> str:
    """Return a chart's title: its subject and the CPU, and below them the packages' versions."""
    installed = records.versions(packages)
    versions = ", ".join(f"{name} {version}" for name, version in installed.items() if name not in ("python", "numpy"))
    return f"{what}, {threads} thread{'s' * (threads > 1)}, {records.machine()['cpu']}\n{versions}"


def parser(description: str | None, *, quick: str, model: str) -> argparse.ArgumentParser:
    """Return a parser with the flags of `CpuOptions` and the files to write; `quick` and `model` complete two help
    texts."""
    flags = command_line.parser(description, quick=quick, rounds="rounds per contender (default: 7, quick 3)")
    flags.add_argument("--device", default="cpu", help="cpu (the default, and all there is here)")
    flags.add_argument("--model", metavar="PRESET", help=f"{', '.join(PRESETS)} (default: {model})")
    flags.add_argument("--contenders", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    flags.add_argument("--threads", type=int, help="threads per contender (default: all cores)")
    return flags


def add_peer_python(flags: argparse.ArgumentParser) -> None:
    """Add the flag of `PeerOptions`."""
    flags.add_argument(peer_pythons.FLAG, nargs="+", default=(), metavar="NAME=PATH", help=peer_pythons.HELP)


def publish(
    result: Result,
    options: CpuOptions,
    json: Path | None,
    chart: Path | None,
    *,
    benchmark: str,
    packages: Sequence[str],
    what: str,
    draw: Callable[..., object] = report.chart,
) -> None:
    """Write the results to the requested files: a record of the benchmark with the packages' versions, and a chart of
    `what` was measured."""
    if json is not None:
        records.write(json, records.record(benchmark, report.record_rows(result), packages))
    if chart is not None and result.rows:
        draw(chart, result, title=title(what, packages, options.thread_count))
