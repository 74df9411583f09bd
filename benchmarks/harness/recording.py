"""Make the records that this machine's class lacks, and those that are older than the code they measured.

Each benchmark of the plan runs as a program in a process group of its own, so that its threads are gone before the
next one begins. A record replaces the old one only when it is complete.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import quietness, records, staleness
from fastbert.benchmarks.harness.measure import AGREEING
from fastbert.benchmarks.harness.record_plan import PLAN, Elsewhere, Planned, cures, named
from fastbert.benchmarks.harness.staleness import MISSING, OLDER, UNKNOWN, Age
from fastbert.benchmarks.harness.termination import end_group
from fastbert.benchmarks.harness.texts import environment_with, find_data
from fastbert.errors import UserError

Say = Callable[[str], None]
DONE, FAILED, SKIPPED = "done", "failed", "skipped"
PACKAGE = "fastbert.benchmarks"  # of the programs
WITHOUT_DATA = "to make the records that need no texts"
_EXPECTED = (*AGREEING, "not measured")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to record, and where."""

    only: tuple[str, ...] = ()
    """Benchmarks to record even if their records are current; none: those that are missing or older."""
    minutes: float = 40.0
    """The time for all of them."""
    list: bool = False
    """Print the plan, and run nothing."""
    busy: bool = False
    """Measure although other processes use the cores; the records then hold the load."""
    out: Path | None = None
    """Folder of the records; None: that of the source tree."""
    data: Path | None = None
    """Folder of real text; None: FASTBERT_DATA."""
    infinity: Path | None = None
    """Environment with infinity-emb for the servers."""
    peer_python: tuple[str, ...] = ()
    """Interpreters of other environments as NAME=PATH, which run the contenders whose names begin with NAME."""
    plan: Sequence[Planned] = PLAN
    """The plan of records."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise UserError(f"--minutes {self.minutes:g} must be more than 0")
        try:
            named(self.only, self.plan)
        except ValueError as error:
            raise UserError(f"--only {error}") from error
        plan, unused = named(self.only, self.plan), set(self.peer_python)
        for planned in plan:
            unused -= set(planned.pythons(self.elsewhere))
        if unused:
            kinds = sorted({planned.kind for planned in plan} - {""})
            known = dict.fromkeys(name.split(" ")[0] for kind in kinds for name in peers.names(kind))
            raise UserError(
                f"--peer-python {min(unused)} must be NAME=PATH for a contender of the selected benchmarks:"
                f" {', '.join(known) or 'they have none'}"
            )

    @property
    def elsewhere(self) -> Elsewhere:
        """Return the environments of contenders."""
        return Elsewhere(self.infinity, self.peer_python)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where records are kept and made."""

    folder: Path
    repository: Path | None
    machine_class: str
    data: Path | None

    def path(self, planned: Planned) -> Path:
        """Return the file of a benchmark's record of this class."""
        return self.folder / planned.benchmark / f"{self.machine_class}.json"


@dataclass
class Outcome:
    """What became of one benchmark."""

    benchmark: str
    result: str
    text: str = ""
    notes: list[str] = field(default_factory=list)


def run(options: Options, say: Say) -> int:
    """Print the plan, or make the records that are due, and return the exit code: 1 if one failed.

    Raises `UserError` for an installed copy without `out`, for a busy machine without `busy`, and for a processor whose
    class is not known.
    """
    target = _target(options)
    ages = {planned: _age(planned, target) for planned in named(options.only, options.plan)}
    if options.list:
        for line in table(ages, target, options):
            say(line)
        return 0
    due = list(ages) if options.only else in_order(ages)
    unknown = [planned.benchmark for planned, age in ages.items() if age.state == UNKNOWN]
    if unknown and not options.only:
        say(f"without a repository these may be older than their code; --only measures them: {', '.join(unknown)}")
    if not due:
        say(f"{target.machine_class}: no record is missing{'' if unknown else ' or older than its code'}")
        return 0
    _prepare(target, say)
    outcomes: list[Outcome] = []
    try:
        _record_all(due, target, options, outcomes, say)
    finally:  # after an interrupt too
        for outcome in outcomes:
            say(f"{outcome.benchmark}: {outcome.result}{': ' * bool(outcome.text)}{outcome.text}")
            for note in outcome.notes:
                say(f"  {note}")
    failed = [outcome for outcome in outcomes if outcome.result == FAILED or (options.only and outcome.result != DONE)]
    return 1 if failed else 0


def in_order(ages: dict[Planned, Age]) -> list[Planned]:
    """Return the benchmarks that are due: those without a record in the plan's order, then the older ones, oldest
    first."""
    missing = [planned for planned, age in ages.items() if age.state == MISSING]
    older = [planned for planned, age in ages.items() if age.state == OLDER]
    return missing + sorted(older, key=lambda planned: ages[planned].time)


def table(ages: dict[Planned, Age], target: Target, options: Options) -> list[str]:
    """Return the plan as lines: the state of each record of this class, its minutes, why it is older, and what is not
    met."""
    width = max(len("benchmark"), *(len(planned.benchmark) for planned in ages))
    lines = [f"{'benchmark':<{width}}  {target.machine_class:<11}  minutes  lacks; changes since the record"]
    for planned, age in ages.items():
        lacking = planned.lacking(target.data, options.elsewhere)
        words = "; ".join(filter(None, (cures(lacking), age.reason)))
        lines.append(f"{planned.benchmark:<{width}}  {age.state:<11}  {planned.minutes:>7g}  {words}".rstrip())
    due = in_order(ages)
    able = [planned for planned in due if not planned.lacking(target.data, options.elsewhere)]
    minutes = sum(planned.minutes for planned in able)
    lines.append(
        f"{len(due)} of {len(ages)} records are missing or older than their code; {len(able)} of them can be made here,"
        f" in about {minutes:g} minutes on two cores"
    )
    return lines


def _target(options: Options) -> Target:
    """Return where the records are. Raises `UserError` as `run` does."""
    variable = os.environ.get("FASTBERT_CPU", "").strip()
    if variable and not options.list:
        raise UserError(f"FASTBERT_CPU={variable}: the record would not be of this processor's class; unset it")
    repository = records.repository()
    if options.out is None and repository is None:
        raise UserError("this copy is installed, outside of a source tree: name a folder for the records with --out")
    machine_class = records.machine_class(records.machine())
    if machine_class == records.UNKNOWN_CLASS:
        classes = ", ".join(name for _, name in records.CPU_CLASSES)
        raise UserError(f"this processor is of none of the classes {classes}: there is no name for its records")
    if options.out is not None:
        folder = options.out
    else:
        assert repository is not None
        folder = repository / records.RESULTS
    data = find_data(options.data, without=WITHOUT_DATA)
    return Target(folder=folder, repository=repository, machine_class=machine_class, data=data)


def _age(planned: Planned, target: Target) -> Age:
    return staleness.age_of(target.path(planned), planned.measures, target.repository)


def _prepare(target: Target, say: Say) -> None:
    """Say what the records will lack, before anything is measured."""
    commit = records.commit()
    if commit is not None and commit.endswith(records.DIRTY):
        say(f"the tree differs from its commit: records will be named {commit}; commit first for a known state")


def _check_quiet(options: Options, say: Say) -> quietness.Load | None:
    """Return the load if the machine is busy, and None if it is quiet. Raises `UserError` for a busy machine without
    `busy`."""
    load = quietness.measure_load()
    if load is None:
        say(quietness.UNCHECKED)
        return None
    if not load.busy:
        return None
    if not options.busy:
        raise UserError(
            f"the machine is busy: {quietness.describe(load)}; wait until at most {quietness.BUSY_SHARE:.0%} of the"
            " cores' time is used, or measure anyway with --busy"
        )
    say(f"the machine is busy: {quietness.describe(load)}; the record will hold this")
    return load


def _record_all(due: Sequence[Planned], target: Target, options: Options, outcomes: list[Outcome], say: Say) -> None:
    """Make the records one after the other while time is left; append what became of each."""
    left, pace = options.minutes * 60, 1.0
    for planned in due:
        lacking = planned.lacking(target.data, options.elsewhere)
        if lacking:
            outcomes.append(Outcome(planned.benchmark, SKIPPED, f"needs {cures(lacking)}"))
            continue
        expected = planned.minutes * 60 * pace
        if expected > left:
            text = f"takes about {expected / 60:.0f} minutes, and {max(left, 0) / 60:.0f} are left of --minutes"
            outcomes.append(Outcome(planned.benchmark, SKIPPED, text))
            continue
        began = time.monotonic()
        try:
            load = _check_quiet(options, say)
        except UserError as error:
            if not outcomes or all(outcome.result == SKIPPED for outcome in outcomes):
                raise
            outcomes.append(Outcome(planned.benchmark, FAILED, str(error)))
            continue
        say(f"{planned.benchmark}: about {expected / 60:.0f} minutes")
        outcome = _record(planned, target, options, load, seconds=left)
        used = time.monotonic() - began
        left -= used
        if outcome.result == DONE:  # a slower machine than that of the estimates takes as much longer for the others
            pace = max(pace, used / (planned.minutes * 60))
        outcomes.append(outcome)


def _record(
    planned: Planned, target: Target, options: Options, load: quietness.Load | None, *, seconds: float
) -> Outcome:
    """Run one benchmark for at most so many seconds, and keep its record if it is right."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fastbert-record-") as temporary:
        written, log = Path(temporary) / "record.json", Path(temporary) / "log"
        words = planned.words(target.machine_class, options.elsewhere)
        command = [sys.executable, "-P", "-m", f"{PACKAGE}.{planned.module}", *words, "--json", str(written)]
        code = _run(command, log, options.data, seconds)
        if code is None:
            return Outcome(planned.benchmark, FAILED, f"stopped after {seconds / 60:.0f} minutes, the end of --minutes")
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            return Outcome(planned.benchmark, FAILED, _reason(code), [" ".join(command[2:]), *lines])
        try:
            record = json.loads(written.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            return Outcome(planned.benchmark, FAILED, f"wrote no record: {error}")
    if load is not None and isinstance(record, dict):
        record["settings"] = {**record.get("settings", {}), records.BUSY: load.setting()}
    if isinstance(record, dict) and record.get("commit") is None:
        record.setdefault("note", "Measured with an installed copy, outside a repository, so no commit was recorded.")
    problems = records.problems(record, planned.benchmark, target.machine_class)
    if problems:
        return Outcome(planned.benchmark, FAILED, "its record is wrong", problems)
    path = target.path(planned)
    notes = notes_of(record, path)
    records.write(path, record)
    text = f"{path}, {len(record['rows'])} rows in {(time.monotonic() - began) / 60:.1f} minutes"
    return Outcome(planned.benchmark, DONE, text, notes)


def _run(command: Sequence[str], log: Path, data: Path | None, seconds: float) -> int | None:
    """Run a program in a process group of its own and return its exit code; None if it had to be stopped."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment_with(data),
            start_new_session=True,
        )
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:  # its contenders too, which may have outlived it
            end_group(process)


def _reason(code: int) -> str:
    return f"ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def notes_of(record: dict[str, Any], path: Path) -> list[str]:
    """Return what the user should know of a new record, beside the one that it replaces."""
    notes = []
    commit = record["commit"]
    if isinstance(commit, str) and commit.endswith(records.DIRTY):
        notes.append(f"made from a changed tree: {commit}")
    wrong = [row for row in record["rows"] if "contender" in row and row.get("outputs", "equal") not in _EXPECTED]
    notes += [f"{row['workload']}, {row['contender']}: {row['outputs']}" for row in wrong]
    if path.is_file():
        before = _measured(json.loads(path.read_text(encoding="utf-8")))
        lost = sorted(before - _measured(record))
        notes += [f"no longer measured: {workload}, {contender}" for workload, contender in lost]
    return notes


def _measured(record: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the workloads and contenders with a time."""
    rows = record["rows"]
    return {(row["workload"], str(row["contender"])) for row in rows if row.get("median_ms") and "contender" in row}
