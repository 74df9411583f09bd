"""Measure encoders and training on the CPU: start the contenders, compare their values, time them in turns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import memory_needs, peak
from fastbert.benchmarks.cpu.contender import environment
from fastbert.benchmarks.cpu.limits import with_model, with_work
from fastbert.benchmarks.cpu.peer_pythons import PeerPython
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness import process_memory
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.isolation import Contender, Isolated, Local
from fastbert.benchmarks.harness.measure import (
    AGREEING,
    FASTBERT,
    ContenderFailed,
    Row,
    Timing,
    interleave,
    make_rows,
)

CLASS_PATH = "fastbert.benchmarks.cpu.contender:CpuContender"
PEAK_CLASS_PATH = "fastbert.benchmarks.cpu.peak:Peak"
PEAK = "peak, "  # prefix of the kinds of peak, which take turns with the contenders
# All values are compared with the first of these that runs; it need not take part.
REFERENCES: dict[str, tuple[str, ...]] = {
    "encoder": ("transformers eager fp32", "transformers sdpa fp32", "fastbert fp32"),
    "matmul": ("torch fp32", "fastbert fp32"),
    "kernel": ("torch fp32", "fastbert fp32"),
    "training": ("transformers fp32", "fastbert fp32"),
    "rerank": ("sentence-transformers fp32 by 32", "fastbert fp32"),
    "embed": ("sentence-transformers fp32 by 32", "fastbert fp32"),
}
# The smallest cosine of any token's values with the reference's that counts as agreement.
SMALLEST_COSINE = {"fp32": 0.99999, "bf16": 0.999, "int8": 0.98}


class Absent(NamedTuple):
    """A contender that was not measured, and the reason."""

    workload: str
    contender: str
    dtype: str
    reason: str


@dataclass
class Result:
    """The measured rows, and the contenders that were not measured."""

    rows: list[Row] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)


Work = TypeVar("Work", bound=Workload)


def measure_all(workloads: Sequence[Work], measure: Callable[[Work], Result], progress: Progress) -> Result:
    """Return the results of all workloads. `progress` receives the completed steps, all steps and the next one's
    name."""
    result = Result()
    for step, workload in enumerate(workloads):
        progress(step, len(workloads), workload.name)
        measured = measure(workload)
        result.rows += measured.rows
        result.absent += measured.absent
    progress(len(workloads), len(workloads), "")
    return result


class Lineup:
    """The contenders of a kind in processes that stay alive; one that fails is left out of the workload."""

    class_path = CLASS_PATH
    """The class of a contender's object in its process."""
    warms = True
    """Whether rounds that are not counted come first."""
    reports_memory = True
    """Whether a row has the memory of the contender's process."""

    def __init__(
        self,
        kind: str,
        names: Sequence[str],
        threads: int,
        *,
        model: Path | None,
        isolate: bool,
        folder: Path,
        say: Say,
        pythons: Mapping[str, PeerPython] | None = None,
    ) -> None:
        self.kind = kind
        self.names: list[str] = list(names)
        self.threads = threads
        self.model = model
        self.pythons: dict[str, PeerPython] = dict(pythons or {})
        self.versions: dict[str, dict[str, Any]] = {}  # details of the row, by contender
        self.exported: set[str] = set()
        self.size: memory_needs.BatchSize | None = None  # of the workload
        self.isolate = isolate
        self.folder = folder
        self.say = say
        self.members: dict[str, Contender] = {}
        self.reasons: dict[str, str] = {}  # contenders that cannot run here
        self.failures: dict[tuple[str, str], str] = {}  # by workload and contender
        for name in dict.fromkeys((*names, *REFERENCES[kind])):
            reason = self._missing(name)
            if reason is not None:
                self.reasons[name] = reason
                if name in names:
                    say(f"{name}: {self.reasons[name]}")

    def _missing(self, name: str) -> str | None:
        """Return why a contender cannot be started, or None."""
        if name not in self.pythons:
            module = peers.missing(self.kind, name)
            return None if module is None else f"not installed (no module {module})"
        python, lacks = self.pythons[name]
        if lacks:
            return f"not installed in {python} (no module {', '.join(lacks)})"
        module = peers.missing_exporter(self.kind, name)
        return None if module is None else f"its export needs a module that is not installed here ({module})"

    def __enter__(self) -> Lineup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for member in self.members.values():
            # After an interrupt a running call is not awaited.
            if kind is not None and isinstance(member, Isolated):
                member.process.kill()
            member.close()

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, then time, every contender that can run here."""
        path = self.folder / "workload.npz"
        workload.save(path)
        self.size = workload.size
        details = {name: opened for name in self.names if (opened := self._open(name, path, workload.name)) is not None}
        verdicts = self._compare(list(details), path, workload.name)
        active = [name for name in details if name in self.members]
        measures: dict[str, Callable[[], Timing]] = {name: self._timing(name) for name in active}
        units = self._peak()
        measures |= {f"{PEAK}{what}": self._timing(PEAK, what=what) for what in units}
        timings = interleave(
            measures,
            rounds,
            warming=self.warms,
            failed=lambda name, error: self._drop(name, workload.name, error),
        )
        peak_timings = {what: timings.pop(f"{PEAK}{what}", []) for what in units}
        peaks, moved = peak.best(units, peak_timings), peak.movement(units, peak_timings)
        common = {} if moved is None else {"frequency": moved}
        memory = {name: self._memory(name) | self.measured(name) for name in timings}
        rows = make_rows(
            workload.name,
            timings,
            dtype={name: dtype_of(self.kind, name) for name in timings},
            threads=self.threads,
            tokens=workload.tokens,
            differences={name: verdicts[name].max_abs_difference for name in timings},
            outputs={name: verdicts[name].outputs for name in timings},
        )
        rows = [
            with_work(
                row,
                workload,
                peaks,
                {**details[row.contender], **verdicts[row.contender].details},
                {**memory[row.contender], **self.versions.get(row.contender, {}), **common},
            )
            for row in rows
        ]
        rows = [with_model(row, workload.forward, peaks) if is_own(row.contender) else row for row in rows]
        return Result(with_ratios(rows), self._absent(workload.name, {row.contender for row in rows}))

    def measured(self, name: str) -> dict[str, Any]:
        """Return what else a contender has measured, as details of its row."""
        return {}

    def _open(self, name: str, path: Path, workload: str) -> dict[str, Any] | None:
        """Pass the workload to a contender and return its details; None if it cannot run. A contender that could not be
        constructed is not tried again."""
        if name in self.reasons:
            return None
        lack = memory_needs.lack(self.size, name, dtype_of(self.kind, name), self._held(name))
        if lack is not None:
            self._drop(name, workload, ContenderFailed(lack))
            return None
        try:
            if name not in self.members:
                self._export(name)
                self._start(name)
                self.versions[name] = self._versions_of(name, self.members[name].call("load"))
        except ContenderFailed as error:
            self._drop(name, workload, error)
            self.reasons[name] = str(error)
            return None
        try:
            details: dict[str, Any] = self.members[name].call("open", path=str(path))
        except ContenderFailed as error:
            self._drop(name, workload, error)
            return None
        return details

    def _held(self, name: str) -> int:
        """Return the resident bytes of a contender's process; 0 if it does not run or they are not known."""
        member = self.members.get(name)
        return (process_memory.resident(member.process.pid) or 0) if isinstance(member, Isolated) else 0

    def _export(self, name: str) -> None:
        """Write the files that a contender reads besides the model, in a process of fastbert's environment: what the
        export needs is no part of the contender's memory."""
        if name not in self.exported and peers.exporter_needs(self.kind, name):
            self._start(name, exporting=True)
            self.members[name].call("export")
            self.members.pop(name).close()
            self.exported.add(name)

    def _versions_of(self, name: str, versions: Mapping[str, str | None] | None) -> dict[str, Any]:
        """Return a row's details on the versions of a contender: of an environment of its own, and unknown ones."""
        notes, details = [], {}
        known = {package: version or "unknown" for package, version in (versions or {}).items()}
        if name in self.pythons:
            details["versions"] = known
            packages = ", ".join(f"{package} {version}" for package, version in known.items())
            notes.append(f"in an environment of its own: {packages}")
        else:
            notes += [f"the version of {package} is unknown" for package in known if known[package] == "unknown"]
        return {**details, "notes": notes} if notes else details

    def _memory(self, name: str) -> dict[str, Any]:
        """Return the row's detail on the memory of a contender's process, if it has one."""
        if not (self.reports_memory and self.isolate and name in self.members):
            return {}
        try:
            size = self.members[name].call("peak_memory")
        except ContenderFailed:
            return {}
        return {} if size is None else {"peak_megabytes": float(f"{size / 1e6:.4g}")}

    def _start(self, name: str, *, exporting: bool = False) -> None:
        python = self.pythons[name].path if name in self.pythons and not exporting else None
        scratch = self.folder / name.replace(" ", "-").replace(",", "")
        scratch.mkdir(exist_ok=True)
        arguments: dict[str, Any] = {"threads": self.threads}
        class_path = PEAK_CLASS_PATH
        if name != PEAK:
            class_path = self.class_path
            model = str(self.model) if self.model else None
            arguments |= {"kind": self.kind, "name": name, "folder": model, "scratch": str(scratch)}
        if not self.isolate:
            self.members[name] = Local(class_path, arguments)
            return
        with interrupts_held():  # until the process is registered
            self.members[name] = Isolated(class_path, arguments, environment(self.threads, scratch), python)

    def _compare(self, names: Sequence[str], path: Path, workload: str) -> dict[str, Verdict]:
        reference, expected = None, None
        for name in REFERENCES[self.kind]:
            if name in names or self._open(name, path, workload) is not None:
                reference, expected = name, self._values(name, workload)
            if expected is not None:
                break
        verdicts = {}
        for name in names:
            values = expected if name == reference else self._values(name, workload)
            if values is None:
                continue
            if reference is None or expected is None:
                verdicts[name] = Verdict("not compared", 0.0, {})
                continue
            verdicts[name] = self.verdict(expected, values, dtype_of(self.kind, name), reference)
            if verdicts[name].outputs not in AGREEING:
                self.say(f"{name}: {workload}: {verdicts[name].outputs}")
        return verdicts

    def verdict(self, expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
        """Return how a contender's values differ from the reference's."""
        return compare(expected, values, dtype, reference)

    def _values(self, name: str, workload: str) -> np.ndarray | None:
        if name not in self.members:
            return None
        path = self.folder / "values.npy"
        try:
            self.members[name].call("save", path=str(path))
        except ContenderFailed as error:
            self._drop(name, workload, error)
            return None
        values: np.ndarray = np.load(path)
        return values

    def _peak(self) -> dict[str, dict[str, Any]]:
        try:
            if PEAK not in self.members:
                self._start(PEAK)
                self.units: dict[str, dict[str, Any]] = self.members[PEAK].call("open")
        except ContenderFailed as error:
            self._drop(PEAK, "all workloads", error)
            return {}
        return self.units

    def _timing(self, name: str, **arguments: Any) -> Callable[[], Timing]:
        return lambda: Timing(*self.members[name].call("time", **arguments))

    def _drop(self, name: str, workload: str, error: ContenderFailed) -> None:
        """Leave a contender out of a workload; it is restarted for the next."""
        name = PEAK if name.startswith(PEAK) else name
        self.say(f"{name}: left out of {workload}: {error}")
        self.failures[workload, name] = str(error)
        member = self.members.pop(name, None)
        if member is not None:
            member.close()

    def _absent(self, workload: str, measured: set[str]) -> list[Absent]:
        return [
            Absent(workload, name, dtype_of(self.kind, name), self.failures.get((workload, name)) or self.reasons[name])
            for name in self.names
            if name not in measured
        ]


class Verdict(NamedTuple):
    """The difference of a contender's values from the reference's."""

    outputs: str
    max_abs_difference: float
    details: dict[str, Any]


def compare(expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
    """Return the largest difference of two (tokens, width) arrays, and the smallest cosine of a token's values."""
    if expected.shape != values.shape:
        return Verdict(f"shape {values.shape}, not {expected.shape}", float("inf"), {"reference": reference})
    a, b = expected.astype(np.float64), values.astype(np.float64)
    if not np.isfinite(b).all():
        return Verdict("holds values that are not finite", float("inf"), {"reference": reference})
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosine = float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-30)).min(initial=1.0))
    worst, bound = float(np.abs(a - b).max(initial=0.0)), SMALLEST_COSINE[dtype]
    details = {"reference": reference, "smallest_cosine": float(f"{cosine:.7g}"), "cosine_bound": bound}
    outputs = "equal" if worst == 0 else "close" if cosine >= bound else f"cosine {cosine:.3g} is below {bound}"
    return Verdict(outputs, float(f"{worst:.3g}"), details)


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with their time relative to fastbert's fastest row that agrees, and to fastbert in the same
    dtype."""
    own_rows = [row for row in rows if is_own(row.contender)]
    fastest = min((row.median_ms for row in own_rows if row.agrees), default=None)
    same = {row.dtype: row.median_ms for row in own_rows}
    return [
        replace(
            row,
            ratio_to_fastbert=None if fastest is None else _ratio(row.median_ms, fastest),
            details={
                **row.details,
                "ratio_to_same_dtype": _ratio(row.median_ms, same[row.dtype]) if row.dtype in same else None,
            },
        )
        for row in rows
    ]


def _ratio(numerator: float, denominator: float) -> float:
    return float(f"{numerator / denominator:.4g}")


def is_own(contender: str) -> bool:
    """Return whether a contender is fastbert, in any dtype."""
    return contender.split(" ")[0] == FASTBERT


def dtype_of(kind: str, name: str) -> str:
    """Return the dtype that a contender computes in."""
    return str(peers.options(kind, name)["dtype"])


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C until the end of the block. Processes started in it inherit the mask; their parent ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
