"""The goals of the project on CPUs: one table, judged on the records of every class that a goal is for.

A goal that the limit of a class forbids is stated as a share of that limit, never as a ratio that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastbert.benchmarks.harness.record_plan import BF16_CLASSES
from fastbert.benchmarks.performance import figures
from fastbert.benchmarks.performance.figures import CLASSES, Comparison, Records
from fastbert.benchmarks.performance.markdown import percent

MET, MISSED, UNMEASURED = "✓", "✗", "unmeasured"
ZEN4 = ("avx512-bf16",)
ZEN = ("zen5", *ZEN4)
OTHERS = tuple(name for name in CLASSES if name not in ZEN)
FASTEST = ""  # the contender of a goal for fastbert's fastest row

Quantity = Callable[[Comparison, Sequence[figures.Row]], float | None]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A bound on one quantity of one contender on one workload."""

    what: str
    """What is measured, for the reader."""
    benchmark: str
    workload: str
    contender: str = FASTEST
    """fastbert's contender, or its fastest one."""
    quantity: Quantity
    bound: float
    least: bool = True
    """Whether the bound is the least value; else it is the most."""
    unit: str = "x"
    """ "x", "%" or "ms"."""
    classes: tuple[str, ...] = CLASSES
    """The classes it is for."""

    @property
    def target(self) -> str:
        """Return the bound in words."""
        return f"{'>=' if self.least else '<='} {shown(self.bound, self.unit)}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A goal on one class: met, missed or unmeasured, and the measured value."""

    mark: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.value} {self.mark}".strip()


def shown(value: float, unit: str) -> str:
    """Return a value with its unit."""
    if unit == "%":
        return percent(value)
    return f"{value:.2f}x" if unit == "x" else f"{value:.3g} ms"


def judge(goal: Goal, everything: Records, machine_class: str) -> Verdict | None:
    """Return the verdict on a class; None for a class that the goal is not for."""
    if machine_class not in goal.classes:
        return None
    record = everything.get(goal.benchmark, {}).get(machine_class)
    if record is None:
        return Verdict(mark=UNMEASURED)
    comparisons = figures.compare(goal.benchmark, record, goal.workload)
    if goal.contender:
        comparisons = [comparison for comparison in comparisons if comparison.row["contender"] == goal.contender]
    best = figures.leading(comparisons)
    peers = [row for row in record["rows"] if row["workload"] == goal.workload and figures.is_timed(row)]
    peers = [row for row in peers if row["median_ms"] and not figures.is_own(goal.benchmark, row["contender"])]
    value = None if best is None else goal.quantity(best, [row for row in peers if figures.agrees(row)])
    if value is None:
        return Verdict(mark=UNMEASURED)
    met = value >= goal.bound if goal.least else value <= goal.bound
    return Verdict(mark=MET if met else MISSED, value=shown(value, goal.unit))


def over(part: str) -> Quantity:
    """Return the ratio to the fastest peer with this in its name."""

    def ratio(comparison: Comparison, peers: Sequence[figures.Row]) -> float | None:
        return figures.ratio(comparison.row, figures.fastest(row for row in peers if part in row["contender"]))

    return ratio


def of_peak(comparison: Comparison, peers: Sequence[figures.Row]) -> float | None:
    """Return the share of the matmul peak."""
    return figures.share_of_peak(comparison.row)


def detail(name: str) -> Quantity:
    """Return the quantity that the details of a row hold under this name."""

    def value(comparison: Comparison, peers: Sequence[figures.Row]) -> float | None:
        measured = comparison.row.get("details", {}).get(name)
        return None if measured is None else float(measured)

    return value


def milliseconds(comparison: Comparison, peers: Sequence[figures.Row]) -> float | None:
    """Return the median time."""
    return float(comparison.row["median_ms"])


def relative_time(comparison: Comparison, peers: Sequence[figures.Row]) -> float | None:
    """Return the time relative to that of the fastest peer of any dtype."""
    best = figures.fastest(peers)
    return None if best is None else float(comparison.row["median_ms"]) / float(best["median_ms"])


def _encoder(workload: str, dtype: str, bound: float) -> Goal:
    return Goal(
        what=f"encoder, {workload}, {dtype}: share of the matmul peak",
        benchmark="encoder",
        workload=workload,
        contender=f"fastbert {dtype}",
        quantity=of_peak,
        bound=bound,
        unit="%",
        classes=ZEN,
    )


def _model(workload: str) -> Goal:
    return Goal(
        what=f"encoder, {workload}, int8: share of the model of matmuls, attention and bytes",
        benchmark="encoder",
        workload=workload,
        contender="fastbert int8",
        quantity=detail("share_of_model"),
        bound=0.9,
        unit="%",
        classes=OTHERS,
    )


def _embed(dtype: str, bound: float) -> Goal:
    return Goal(
        what=f"embed, sentences, {dtype}: beside sentence-transformers in fp32",
        benchmark="embed",
        workload="wiki-en sentences",
        contender=f"fastbert {dtype}",
        quantity=over("sentence-transformers fp32"),
        bound=bound,
        classes=ZEN,
    )


def _training(workload: str, bound: float) -> Goal:
    return Goal(
        what=f"training, {workload}, bf16: beside transformers in bf16",
        benchmark="training",
        workload=workload,
        contender="fastbert bf16",
        quantity=over("transformers bf16"),
        bound=bound,
        classes=BF16_CLASSES,
    )


def _latency(dtype: str, bound: float, multiple: float) -> Goal:
    return Goal(
        what=f"encoder, latency-16, {dtype}: {multiple:g} times the time in which a copy reads the weights",
        benchmark="encoder",
        workload="latency-16",
        contender=f"fastbert {dtype}",
        quantity=milliseconds,
        bound=bound,
        least=False,
        unit="ms",
        classes=ZEN4,
    )


def _query(what: str, quantity: Quantity, bound: float, unit: str) -> Goal:
    return Goal(
        what=f"embed, a query of 8 to 32 tokens on one core: {what}",
        benchmark="embed",
        workload="query",
        quantity=quantity,
        bound=bound,
        least=False,
        unit=unit,
    )


GOALS = (
    _encoder("full-128", "bf16", 0.90),
    _encoder("lognormal", "bf16", 0.87),
    _encoder("full-128", "int8", 0.82),
    _encoder("lognormal", "int8", 0.78),
    _model("full-128"),
    _model("lognormal"),
    _latency("bf16", 7.0, 1.5),
    _latency("int8", 4.5, 1.9),
    Goal(
        what="encoder, latency-16, the fastest dtype: time relative to the best peer",
        benchmark="encoder",
        workload="latency-16",
        quantity=relative_time,
        bound=0.6,
        least=False,
    ),
    *(
        Goal(
            what=f"matmuls, 4096 x {shape}, int8: share of the peak",
            benchmark="matmuls",
            workload=f"4096 x {shape}",
            contender="fastbert int8",
            quantity=of_peak,
            bound=0.9,
            unit="%",
        )
        for shape in ("768 to 3072", "3072 to 768")
    ),
    _query("median", milliseconds, 1.2, "ms"),
    _query("99th percentile", detail("p99_ms"), 2.0, "ms"),
    _query("time relative to the best peer", relative_time, 0.5, "x"),
    _embed("int8", 8.5),
    _embed("bf16", 5.0),
    _embed("fp32", 2.5),
    Goal(
        what="training, base 32x128, bf16: share of the matmul peak",
        benchmark="training",
        workload="base 32x128",
        contender="fastbert bf16",
        quantity=of_peak,
        bound=0.85,
        unit="%",
        classes=ZEN,
    ),
    _training("base 32x128", 3.0),
    _training("wiki-en", 6.0),
    _training("demo", 3.0),
    *(
        Goal(
            what=f"two processes on shared cores, {batch}: time relative to one after the other",
            benchmark="scaling",
            workload=f"two processes, {batch}",
            quantity=detail("relative_time"),
            bound=1.15,
            least=False,
        )
        for batch in ("latency-16", "full-64")
    ),
    *(
        Goal(
            what=f"threads, to all cores, {batch}: speed relative to linear scaling",
            benchmark="scaling",
            workload=f"all cores, {batch}",
            quantity=detail("scaling"),
            bound=0.9,
            unit="%",
        )
        for batch in ("full-128", "lognormal", "latency-16")
    ),
)
