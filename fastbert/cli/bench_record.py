"""The flags of `fastbert bench record`: make the records that this class of processors lacks, or whose code changed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from fastbert.flags import DATA, OUTPUT


@dataclass(frozen=True, kw_only=True)
class _RecordSelection:
    """The benchmarks, and how long they may take."""

    GROUP: ClassVar = "Measurement"

    only: tuple[str, ...] = ()
    """Only these benchmarks, even if their records are current (default: those whose record is missing or older than
    the code it measures)."""
    minutes: float = 40.0
    """Time for all of them; what does not fit is left for the next call."""
    list: bool = False
    """Print the plan with the state of every record, and run nothing."""
    busy: bool = False
    """Measure although other processes use the cores; the records then hold the load."""


@dataclass(frozen=True, kw_only=True)
class _RecordData:
    """The texts and environments."""

    GROUP: ClassVar = DATA

    data: Path | None = None
    """Folder of real text (default: FASTBERT_DATA)."""
    infinity: Path | None = None
    """Folder of an environment with infinity-emb, which the record of the servers needs."""
    peer_python: tuple[str, ...] = ()
    """Interpreters of other environments, as NAME=PATH: PATH runs the contenders of encoder and embed whose names begin
    with NAME."""


@dataclass(frozen=True, kw_only=True)
class _RecordOutput:
    """The records."""

    GROUP: ClassVar = OUTPUT

    out: Path | None = None
    """Folder of the records (default: benchmarks/results of the source tree; an installed copy needs one)."""


@dataclass(frozen=True, kw_only=True)
class RecordConfig(_RecordOutput, _RecordData, _RecordSelection):
    """Make the records of this machine's class that are missing or older than the code they measure."""

    MODULE: ClassVar[str] = "harness.recording"

    def options(self) -> dict[str, Any]:
        """Return the flags."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
