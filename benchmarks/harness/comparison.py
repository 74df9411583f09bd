"""Compare two measurements of one benchmark: which of fastbert's rows became slower or faster beyond noise.

    comparison = compare(read(Path("old.json")), read(Path("new.json")))
    show(comparison)
    code = comparison.exit_code

A measurement is a record (`fastbert.benchmarks.harness.records`) or a file of pytest-benchmark. A row's change is the
ratio of its medians, divided by the machine's own change: the median change of the other contenders of its workload,
else of all workloads, else of the peak rate measured beside it. Noise is the 99 % interval of that quotient, from the
spread of the rounds (20th to 80th percentile) and their number, and at least `FLOOR`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT
from fastbert.benchmarks.harness.noise import MEDIAN_FACTOR, log_ratio, quantile, rounds
from fastbert.benchmarks.harness.pytest_files import from_pytest_benchmark, is_pytest_benchmark
from fastbert.benchmarks.harness.tables import Column, console_of, milliseconds, print_table
from fastbert.errors import UserError

FLOOR = 0.03  # smaller changes come from the layout of memory, not from code
FLOOR_ALONE = 0.10  # without a measure of the machine's speed
PEAK_SPREAD = 0.02  # of the peak rates, whose best round counts
SAME_WORK = 2e-3  # relative difference of counts that were computed from rounded rates
OWN = (FASTBERT, "accelerated")
FASTER, SAME, SLOWER, FAILED = "faster", "", "SLOWER", "FAILED"

COLUMNS = (
    Column("fastbert's row"),
    Column("before"),
    Column("now, ms"),
    Column("change", 2),
    Column("machine", 1),
    Column("net"),
    Column("noise"),
    Column(""),  # the verdict
)

Row = Mapping[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The rows of a file by benchmark, workload and contender, and the machine they were measured on."""

    path: Path
    machine: Mapping[str, Any] | None
    versions: Mapping[str, str]
    commit: str | None
    settings: Mapping[str, Any]
    rows: Mapping[Key, Row]

    @property
    def benchmarks(self) -> set[str]:
        """Return the names of the benchmarks."""
        return {benchmark for benchmark, _, _ in self.rows}


class Change(NamedTuple):
    """One of fastbert's rows before and now; `change`, `machine` and `noise` are natural logarithms of ratios."""

    key: Key
    before_ms: float
    now_ms: float
    change: float
    machine: float
    noise: float
    source: str

    @property
    def net(self) -> float:
        """Return the row's change without the machine's."""
        return self.change - self.machine

    @property
    def verdict(self) -> str:
        """Return whether the row is faster or slower beyond noise."""
        if abs(self.net) <= self.noise:
            return SAME
        return SLOWER if self.net > 0 else FASTER


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The changes of all rows that can be compared, the rows that fail now, and what else the reader must know."""

    changes: Sequence[Change]
    failures: Sequence[str] = ()
    notes: Sequence[str] = ()
    title: str = ""

    @property
    def exit_code(self) -> int:
        """Return 1 if a row is slower beyond noise or fails now, else 0."""
        return int(bool(self.failures) or any(change.verdict == SLOWER for change in self.changes))


# Reading


def read(path: Path) -> Measurement:
    """Return a file's rows. Raises `UserError` for a file that is not a measurement."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a JSON file"
        raise UserError(f"{path}: {reason}; name a record, the file of --json or of --benchmark-json") from None
    if is_pytest_benchmark(content):
        content = from_pytest_benchmark(content)
    if not isinstance(content, dict) or not isinstance(content.get("rows"), list):
        raise UserError(f"{path}: holds no rows; name a record, the file of --json or of --benchmark-json")
    rows: dict[Key, Row] = {}
    for row in content["rows"]:
        if isinstance(row, dict) and "workload" in row and "median_ms" in row:
            benchmark = str(row.get("benchmark", content.get("benchmark")))
            rows[benchmark, str(row["workload"]), str(row.get("contender", FASTBERT))] = row
    if not rows:
        raise UserError(f"{path}: none of its rows has a time to compare")
    return Measurement(
        path=path,
        machine=content.get("machine"),
        versions=content.get("versions") or {},
        commit=content.get("commit"),
        settings=content.get("settings") or {},
        rows=rows,
    )


def read_for(path: Path, benchmark: str) -> Measurement:
    """Return the rows of a file with which a measurement here and now will be compared. Raises `UserError` for another
    benchmark, also of one's variants such as "encoder-mpnet-base", and for another class of machine."""
    old = read(path)
    if not any(name == benchmark or name.startswith(f"{benchmark}-") for name in old.benchmarks):
        raise UserError(f"{path}: measured {', '.join(sorted(old.benchmarks))}, not {benchmark}")
    check(old, records.machine())
    return old


def check(old: Measurement, machine: Mapping[str, Any] | None) -> None:
    """Raise `UserError` for times of another class of machine."""
    before, now = records.machine_class(old.machine), records.machine_class(machine)
    if before != now:
        raise UserError(f"{old.path}: measured on a machine of class {before}, not {now}: their times do not compare")


# Comparing


def compare(old: Measurement, new: Measurement) -> Comparison:
    """Compare fastbert's rows. Raises `UserError` for other benchmarks, another class of machine, or no common row."""
    common = old.benchmarks & new.benchmarks
    if not common:
        measured = ", ".join(sorted(new.benchmarks))
        raise UserError(f"{old.path}: measured {', '.join(sorted(old.benchmarks))}, {new.path} {measured}")
    check(old, new.machine)
    refused: dict[str, list[str]] = {}
    failures: list[str] = []
    pairs: dict[Key, tuple[Row, Row]] = {}
    for key, before in old.rows.items():
        now = new.rows.get(key)
        if now is None or not _measured(before):
            continue
        if not _measured(now):
            if is_own(key[2]):
                failures.append(f"{_name(key)}: {_failure(now)}")
            continue
        difference = _difference(old, new, before, now)
        if difference is None:
            pairs[key] = (before, now)
        elif is_own(key[2]):
            refused.setdefault(difference, []).append(_name(key))
    of_fastbert = {key: pair for key, pair in pairs.items() if is_own(key[2])}
    if not of_fastbert and not failures:
        reasons = "; ".join(f"{reason} ({names[0]})" for reason, names in refused.items())
        raise UserError(f"{old.path}: no row of fastbert can be compared with {new.path}: {reasons or 'none in both'}")
    control = _Control(pairs, _changed_packages(old, new))
    changes = [_change(key, *pair, control) for key, pair in of_fastbert.items()]
    gone = [key for key, row in old.rows.items() if is_own(key[2]) and key not in new.rows and _measured(row)]
    notes = [f"not compared, {reason}: {_listed(names)}" for reason, names in refused.items()]
    if gone and {key[0] for key in gone} & common:
        notes.append(f"not measured now: {_listed([_name(key) for key in gone if key[0] in common])}")
    notes += _machine_notes(old, new, control)
    title = f"{old.path} ({old.commit or 'unknown commit'}) -> {new.commit or 'unknown commit'}"
    return Comparison(changes=changes, failures=failures, notes=notes, title=title)


def is_own(contender: str) -> bool:
    """Return whether a contender runs fastbert's code, in any dtype and form."""
    words = contender.replace(",", " ").split()
    return any(word in OWN for word in words)


@dataclass(frozen=True)
class _Control:
    """How much faster or slower the machine was, from what else was measured in both files."""

    pairs: Mapping[Key, tuple[Row, Row]]
    packages: Mapping[str, str]
    """The packages of other versions."""
    peers: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By benchmark and workload, the change of each other contender and its standard error."""

    def __post_init__(self) -> None:
        for key, (before, now) in self.pairs.items():
            if not is_own(key[2]) and self.unchanged(key):
                self.peers.setdefault(" ".join(key[:2]), []).append(log_ratio(before, now))

    def unchanged(self, key: Key) -> bool:
        """Return whether a contender's packages have the same versions in both files."""
        kinds = [entries[key[2]] for entries in peers.REGISTRY.values() if key[2] in entries]
        used = {name for entry in kinds for name in entry.distributions}
        return not self.packages if not kinds else not used & self.packages.keys()

    def of(self, key: Key, before: Row, now: Row) -> tuple[float, float, str]:
        """Return the machine's change for a row, its standard error, and where it comes from; "" for nowhere."""
        here = self.peers.get(" ".join(key[:2]), [])
        if here:
            return *_center(here), "peers"
        everywhere = [change for changes in self.peers.values() for change in changes]
        if everywhere:
            middle, error = _center(everywhere)
            # Of other workloads: they need not change alike.
            spread = statistics.stdev(change for change, _ in everywhere) if len(everywhere) > 1 else error
            return middle, max(spread, error), "peers of other workloads"
        for name in ("peak_gflops", "matmul_gflops", "copy_gigabytes_per_second"):
            rates = [row.get("details", {}).get(name) for row in (before, now)]
            if all(rates):
                return -math.log(rates[1] / rates[0]), PEAK_SPREAD, name
        return 0.0, 0.0, ""


def _center(changes: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of several changes and its standard error: that of their rounds, or of their disagreement."""
    values, count = [change for change, _ in changes], len(changes)
    noise = math.sqrt(sum(error**2 for _, error in changes)) / count
    disagreement = statistics.stdev(values) / math.sqrt(count) if count > 1 else 0.0
    return statistics.median(values), max(noise, disagreement) * (MEDIAN_FACTOR if count > 2 else 1.0)


def _change(key: Key, before: Row, now: Row, control: _Control) -> Change:
    change, error = log_ratio(before, now)
    machine, machine_error, source = control.of(key, before, now)
    freedom = rounds(before) + rounds(now) - 2
    noise = quantile(freedom) * math.hypot(error, machine_error)
    return Change(
        key,
        before["median_ms"],
        now["median_ms"],
        change,
        machine,
        max(noise, math.log1p(FLOOR if source else FLOOR_ALONE)),
        source,
    )


# What cannot be compared


def _measured(row: Row) -> bool:
    # Rows of some benchmarks have no outputs; their programs refuse to time wrong ones.
    return bool(row["median_ms"]) and row.get("outputs", AGREEING[0]) in AGREEING


def _failure(row: Row) -> str:
    reason = row.get("details", {}).get("reason")
    return f"{row.get('outputs', 'no time')}{f' ({reason})' if reason else ''}"


def _difference(old: Measurement, new: Measurement, before: Row, now: Row) -> str | None:
    """Return why two rows of one name cannot be compared, or None."""
    for name, what in (("dtype", "a different dtype"), ("threads", "a different number of threads")):
        if before.get(name) != now.get(name):
            return f"{what} ({before.get(name)} before, {now.get(name)} now)"
    for model, other in (
        (old.settings.get("model"), new.settings.get("model")),
        (before.get("details", {}).get("model"), now.get("details", {}).get("model")),
    ):
        if model and other and model != other:
            return f"a different model ({model} before, {other} now)"
    for what, count, other in zip(("tokens", "bytes of text", "operations"), _work(before), _work(now)):
        if count and other and abs(count - other) > SAME_WORK * count:
            return f"a different model or size ({count:,.4g} {what} per call before, {other:,.4g} now)"
    return None


def _work(row: Row) -> tuple[float, float, float]:
    """Return the tokens, bytes and operations of a call, from its rates; 0 where it has none."""
    seconds = row["median_ms"] / 1e3
    rates = row.get("tokens_per_second"), row.get("megabytes_per_second"), row.get("details", {}).get("gflops")
    tokens, megabytes, operations = (float(rate or 0.0) * seconds for rate in rates)
    return tokens, megabytes * 1e6, operations * 1e9


def _changed_packages(old: Measurement, new: Measurement) -> dict[str, str]:
    both = (old.versions.keys() & new.versions.keys()) - {"python", "fastbert-engine"}
    return {
        name: f"{name} {old.versions[name]} -> {new.versions[name]}"
        for name in sorted(both)
        if old.versions[name] != new.versions[name]
    }


def _machine_notes(old: Measurement, new: Measurement, control: _Control) -> Iterable[str]:
    for name, what in (("cpu", "processor"), ("cpu_capability", "CPU capability"), ("usable_cores", "number of cores")):
        before, now = ((side.machine or {}).get(name) for side in (old, new))
        if before != now:
            yield f"a different {what}: {before} before, {now} now; only changes relative to the machine's count"
    if control.packages:
        yield f"left out of the machine's change, for their versions: {', '.join(control.packages.values())}"


# Showing


def show(comparison: Comparison, console: Any = None) -> None:
    """Print a table of fastbert's rows, and a line for what became slower, failed, or cannot be compared."""
    console = console_of(console)
    console.print(f"compared: {comparison.title}", style="bold", markup=False, soft_wrap=True)
    styles = {SLOWER: "bold red", FASTER: "bold green", SAME: ""}
    rows = [
        (
            (
                _name(change.key),
                milliseconds(change.before_ms),
                milliseconds(change.now_ms),
                _percent(change.change),
                _percent(change.machine) if change.source else "unknown",
                _percent(change.net),
                f"±{math.expm1(change.noise):.0%}",
                change.verdict,
            ),
            styles[change.verdict],
        )
        for change in comparison.changes
    ]
    if rows:
        print_table(console, COLUMNS, rows)
    counts = {verdict: sum(change.verdict == verdict for change in comparison.changes) for verdict in styles}
    failed = f", {len(comparison.failures)} fail now" if comparison.failures else ""
    line = f"{counts[SLOWER]} slower, {counts[FASTER]} faster, {counts[SAME]} within noise{failed}"
    console.print(line, markup=False, soft_wrap=True)
    sources = dict.fromkeys(change.source or "nothing" for change in comparison.changes)
    if sources:
        console.print(f"the machine's change is that of: {', '.join(sources)}", markup=False, soft_wrap=True)
    for line in (*(f"{FAILED}: {failure}" for failure in comparison.failures), *comparison.notes):
        console.print(line, markup=False, soft_wrap=True)


def _percent(logarithm: float) -> str:
    return f"{math.expm1(logarithm):+.1%}"


def _name(key: Key) -> str:
    return f"{key[1]}, {key[2]}"


def _listed(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
