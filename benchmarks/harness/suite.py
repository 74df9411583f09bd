"""fastbert's own workloads as cases of `pytest benchmarks`, prepared by the code that `fastbert bench` measures with.

A benchmark's module has a function `cases(full)`, which names its cases without preparing anything, and a test that is
called with each; `benchmarks/conftest.py` opens, warms and times them, in its own process.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu.contender import CpuContender
from fastbert.benchmarks.cpu.lineup import is_own
from fastbert.benchmarks.cpu.workloads import Workload

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Call:
    """What is timed."""

    run: Callable[..., Any]
    """One call; with `fresh`, of what that returns."""
    calls: int = 1
    """Calls per round, for short ones."""
    fresh: Callable[[], tuple[Any, ...]] | None = None
    """Prepare the arguments of each call, untimed; it needs `calls` of 1, and there is no warm-up."""
    tokens: float | None = None
    """Tokens per call."""
    text_bytes: float | None = None
    """Bytes of text per call."""
    operations: float | None = None
    """Useful multiplications and additions per call."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload and a form of fastbert, prepared by `open`."""

    benchmark: str
    workload: str
    open: Callable[[Workshop], Call]
    contender: str = "fastbert"
    dtype: str = "fp32"
    threads: int | None = None
    """The threads of one that has a fixed number; None: those of the session."""
    details: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the name of the test, without characters that a shell or pytest treats specially."""
        return re.sub(r"[^\w.]+", "-", f"{self.contender}-{self.workload}").strip("-")


class Workshop:
    """The threads, a temporary folder, and what several cases share; a context that ends what they started."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder = folder
        self.threads = threads
        self.closing: ExitStack[bool | None] = ExitStack()
        self.shared: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[Path], T]) -> T:
        """Return what `make` returns for a folder of this name; it is made once."""
        if name not in self.shared:
            self.shared[name] = make(self.folder / name)
        made: T = self.shared[name]
        return made


def contender_cases(
    benchmark: str,
    kind: str,
    workloads: Iterable[str],
    build: Callable[[Workshop, str], tuple[Workload, Path | None]],
    *,
    contender: type[CpuContender] = CpuContender,
    dtypes: Callable[[str], Sequence[str]] | None = None,
) -> list[Case]:
    """Return a case per workload and contender of a kind that is fastbert.

    `build` returns a workload by its name, and the model's folder; `dtypes` those in which a workload is measured.
    """
    names = [name for name in peers.names(kind) if is_own(name)]
    return [
        Case(
            benchmark=benchmark,
            workload=workload,
            contender=name,
            dtype=peers.options(kind, name)["dtype"],
            open=partial(_open, kind, name, workload, build, contender),
        )
        for workload in workloads
        for name in names
        if dtypes is None or peers.options(kind, name)["dtype"] in dtypes(workload)
    ]


def _open(
    kind: str,
    name: str,
    workload: str,
    build: Callable[[Workshop, str], tuple[Workload, Path | None]],
    contender: type[CpuContender],
    workshop: Workshop,
) -> Call:
    """Load a contender in this process, and pass it the workload."""
    work, model = build(workshop, workload)
    path = workshop.folder / "workload.npz"
    work.save(path)
    opened = contender(kind, name, str(model) if model else None, workshop.threads, str(workshop.folder / "scratch"))
    opened.load()
    opened.open(str(path))
    run = getattr(opened.peer, "run", None)

    def step() -> None:
        for phase in opened.peer.phases().values():
            phase()

    operations = work.operations or None
    return Call(run=run or step, calls=opened.calls, tokens=work.tokens, operations=operations)
