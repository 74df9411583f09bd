"""Run every benchmark of `fastbert bench`, one after the other, each in a process of its own.

    python benchmarks/bench_all.py --quick --json before
    python benchmarks/bench_all.py --quick --compare before

The same as `fastbert bench all`. A benchmark that fails does not keep the others from running; a table at the end shows
the seconds and the rows of each, fastbert's ratio to the fastest other contender, and what failed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.benchmarks.harness import comparison, records, termination
from fastbert.benchmarks.harness.comparison import is_own
from fastbert.benchmarks.harness.measure import AGREEING
from fastbert.benchmarks.harness.record_plan import BF16_CLASSES
from fastbert.benchmarks.harness.tables import Column, console_of, number, print_table
from fastbert.benchmarks.harness.texts import environment_with, find_data
from fastbert.errors import UserError

# What `quick` measures of each benchmark, to end within minutes: processes that import torch and export or compile
# models take most of the time. `--contenders` replaces those here.
QUICK: Mapping[str, Mapping[str, Sequence[str]]] = {
    "tokenizer": {"measures": ("cold", "warm", "load"), "workloads": ("sentences",)},
    "tokenizers": {
        "measures": ("warm", "load"),
        "families": ("gpt2", "BPE"),
        "workloads": ("sentences",),
    },
    "kernels": {"workloads": ("full-128, forward and", "adamw")},
    "encoder": {"workloads": ("lognormal", "latency-16"), "contenders": ("fastbert", "eager", "onnxruntime int8")},
    "training": {"workloads": ("wiki-en",), "contenders": ("fastbert bf16", "transformers bf16")},
    "embed": {"contenders": ("fastbert int8", "sentence-transformers fp32 by 32"), "workloads": ("sentences",)},
    "rerank": {"contenders": ("fastbert int8", "sentence-transformers fp32 by 32"), "workloads": ("mixed",)},
    "generation": {"workloads": ("batch 16",), "contenders": ("bf16",)},
    "loading": {"workloads": ("first-sentence",)},
    "scaling": {"contenders": ("fastbert fp32",), "workloads": ("two processes, latency-16",)},
    "serving": {"contenders": ("fastbert int8", "fp32, batching"), "workloads": ("single",)},
}
# Instead, where processors only emulate bf16 and other libraries take seconds per call in it.
QUICK_WITHOUT_BF16: Mapping[str, Mapping[str, Sequence[str]]] = {
    "encoder": {"contenders": ("fastbert fp32", "fastbert int8", "eager fp32", "onnxruntime int8")},
    "training": {"contenders": ("fastbert fp32", "transformers fp32")},
    "generation": {"contenders": ("fastbert fp32", "transformers fp32")},
}
NOT_INSTALLED = "not installed"

COLUMNS = (
    Column("benchmark"),
    Column("seconds"),
    Column("rows"),
    Column("x best"),
    Column("x worst", 1),
    Column("slower"),
    Column("failures"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The size of the measurements, and the folders of their files."""

    quick: bool = False
    """Few workloads of each benchmark, with its own `quick`."""
    only: tuple[str, ...] = ()
    """The benchmarks; none: all."""
    contenders: tuple[str, ...] = ()
    """Only contenders whose name contains one of these; none: all."""
    rounds: int | None = None
    """Rounds per contender; None: each benchmark's own."""
    threads: int | None = None
    """Threads of every contender; None: each benchmark's own."""
    data: Path | None = None
    """The folder of real text; None: FASTBERT_DATA."""
    json: Path | None = None
    """The folder to write a file per benchmark to."""
    compare: Path | None = None
    """A folder of earlier files: `<benchmark>.json`, or `<benchmark>/<machine class>.json` as in benchmarks/results."""

    def __post_init__(self) -> None:
        for flag, value in (("rounds", self.rounds), ("threads", self.threads)):
            if value is not None and value < 1:
                raise UserError(f"--{flag} {value} must be at least 1")
        find_data(self.data)  # raises for a missing folder
        if self.compare is not None and not self.compare.is_dir():
            raise UserError(f"--compare {self.compare}: is not a folder; name the folder of an earlier --json")


@dataclass(kw_only=True)
class Outcome:
    """One benchmark's result."""

    benchmark: str
    code: int
    seconds: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    slower: int | None = None
    """How many rows became slower; None: not compared."""
    note: str = ""

    @property
    def ratios(self) -> list[float]:
        """Return, per workload, the time of the fastest other contender that agrees relative to fastbert's fastest."""
        ratios = []
        for workload in dict.fromkeys(row["workload"] for row in self.rows):
            times: dict[bool, list[float]] = {True: [], False: []}
            for row in self.rows:
                if row["workload"] == workload and row["median_ms"] and row["outputs"] in AGREEING:
                    times[is_own(row["contender"])].append(row["median_ms"])
            if all(times.values()):
                ratios.append(min(times[False]) / min(times[True]))
        return ratios

    @property
    def failures(self) -> list[str]:
        """Return what failed: the benchmark, or rows of fastbert."""
        wrong = [row for row in self.rows if is_own(row["contender"]) and row["outputs"] not in AGREEING]
        failed = [f"{row['workload']}, {row['contender']}: {_reason(row)}" for row in wrong]
        return [*([f"exit code {self.code}"] if self.code else []), *failed]

    @property
    def others(self) -> list[str]:
        """Return the other contenders that failed or do not agree."""
        rows = [row for row in self.rows if not is_own(row["contender"]) and row["outputs"] not in AGREEING]
        reasons = {(row["contender"], _reason(row)): None for row in rows}
        return [f"{name}: {reason}" for name, reason in reasons if not reason.startswith(NOT_INSTALLED)]


def _reason(row: Mapping[str, Any]) -> str:
    return str(row.get("details", {}).get("reason") or row["outputs"])


def run(names: Sequence[str], options: Options) -> int:
    """Run the benchmarks; return 1 if one failed, if outputs of fastbert are wrong, or if a row became slower."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = options.json or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            print(f"fastbert bench {name}", file=sys.stderr, flush=True)
            outcomes.append(run_one(name, folder / f"{name}.json", options))
    show(outcomes)
    return int(any(outcome.failures or outcome.slower for outcome in outcomes))


def run_one(name: str, file: Path, options: Options) -> Outcome:
    """Run a benchmark in a process of its own, and compare its rows with the earlier ones if there are any."""
    words = [sys.executable, "-P", "-m", "fastbert", "bench", name, *flags(name, options), "--json", str(file)]
    file.unlink(missing_ok=True)
    began = time.monotonic()
    code = termination.run(words, environment_with(options.data))
    outcome = Outcome(benchmark=name, code=code, seconds=time.monotonic() - began)
    if not code:
        outcome.rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    if code or options.compare is None:
        return outcome
    try:
        compared = comparison.compare(comparison.read(_earlier(options.compare, name)), comparison.read(file))
    except UserError as error:
        outcome.note = f"not compared: {error}"
        return outcome
    comparison.show(compared)
    outcome.slower = sum(change.verdict == comparison.SLOWER for change in compared.changes)
    return outcome


def flags(name: str, options: Options) -> list[str]:
    """Return the flags of one benchmark's command."""
    words: list[str] = []
    chosen: dict[str, Sequence[str]] = {}
    if options.quick:
        words.append("--quick")
        chosen.update(QUICK.get(name, {}))
        if records.machine_class(records.machine()) not in BF16_CLASSES:
            chosen.update(QUICK_WITHOUT_BF16.get(name, {}))
    if options.contenders:
        chosen["contenders"] = options.contenders
    for flag, values in chosen.items():
        words += [f"--{flag}", *values]
    # The tokenizers' number of threads is what they compare with one.
    threads = None if (name, options.threads) == ("tokenizer", 1) else options.threads
    for flag, value in (("rounds", options.rounds), ("threads", threads)):
        words += [f"--{flag}", str(value)] if value is not None else []
    return words


def _earlier(folder: Path, name: str) -> Path:
    """Return the file of a benchmark in a folder of files, or of records by class of machine."""
    file = folder / f"{name}.json"
    return file if file.exists() else folder / name / f"{records.machine_class(records.machine())}.json"


def show(outcomes: Sequence[Outcome], console: Any = None) -> None:
    """Print a row per benchmark, then what failed and what could not be compared."""
    console = console_of(console)
    rows = []
    for outcome in outcomes:
        ratios = outcome.ratios
        cells = (
            outcome.benchmark,
            f"{outcome.seconds:,.0f}",
            str(sum(bool(row["median_ms"]) for row in outcome.rows)),
            number(max(ratios, default=None), ".2f"),
            number(min(ratios, default=None), ".2f"),
            number(outcome.slower, "d"),
            f"{len(outcome.failures)}" if outcome.failures else "",
        )
        rows.append((cells, "bold red" if outcome.failures else ""))
    print_table(console, COLUMNS, rows)
    total = sum(outcome.seconds for outcome in outcomes)
    console.print(f"{total:,.0f} s; x best, x worst: time of the fastest other contender relative to fastbert's, where")
    console.print("that is highest and lowest among the workloads")
    for outcome in outcomes:
        lines = [*(f"FAILED: {line}" for line in outcome.failures), *outcome.others, *filter(None, [outcome.note])]
        for line in lines:
            console.print(f"{outcome.benchmark}: {line}", markup=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from fastbert import cli

    return cli.main(["bench", "all", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
