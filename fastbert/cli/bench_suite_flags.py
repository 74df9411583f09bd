"""The flags of `fastbert bench all` and `fastbert bench compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from fastbert.cli.bench_flags import MachineFlags, MeasurementFlags
from fastbert.flags import DATA, OUTPUT, required


@dataclass(frozen=True, kw_only=True)
class _AllMeasurement:
    """The benchmarks, and how long they are measured."""

    GROUP: ClassVar = MeasurementFlags.GROUP

    quick: bool = False
    """Small models, and few workloads and contenders of each: minutes instead of hours."""
    only: tuple[str, ...] = ()
    """Only these benchmarks, such as encoder kernels (default: all)."""
    contenders: tuple[str, ...] = ()
    """Only contenders with one of these parts in their name, such as fastbert (default: all that are installed)."""
    rounds: int | None = None
    """Rounds per contender (default: each benchmark's own)."""


@dataclass(frozen=True, kw_only=True)
class _AllData:
    """The texts."""

    GROUP: ClassVar = DATA

    data: Path | None = None
    """Folder of real text for the benchmarks that have a use for it (default: FASTBERT_DATA)."""


@dataclass(frozen=True, kw_only=True)
class _AllOutput:
    """The folders."""

    GROUP: ClassVar = OUTPUT

    json: Path | None = None
    """Folder to write a file of rows per benchmark to."""
    compare: Path | None = None
    """An earlier folder of --json, or benchmarks/results: show what became slower or faster beyond noise."""


@dataclass(frozen=True, kw_only=True)
class AllConfig(MachineFlags, _AllOutput, _AllData, _AllMeasurement):
    """Run every benchmark, one after the other, each in a process of its own."""


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """Compare two measurements without measuring: what became slower or faster beyond noise. The exit code is 1 if
    something became slower."""

    GROUP: ClassVar = DATA

    files: Annotated[tuple[Path, ...], tyro.conf.Positional] = required(
        "the earlier measurement, then the later one", name="FILES", default=()
    )
    """The earlier file, then the later one: of --json, of pytest's --benchmark-json, or records."""
