"""Compare single operations on the CPU: values and gradients first, then GFLOP/s or GB/s.

    python benchmarks/bench_kernels.py --quick
    python benchmarks/bench_kernels.py --model base --json rows.json
    python benchmarks/bench_kernels.py --workloads attention layer-norm --contenders bf16

Each operation of an encoder in fastbert and in PyTorch, forward alone and with its backward: matmuls, attention of full
batches and of mixed lengths, LayerNorm, GELU, softmax, embedding, cross-entropy over the vocabulary, and a step of
AdamW. Matmuls and attention count operations, beside the peak rate; others count the fewest bytes that they must move,
beside the bandwidth of a copy. docs/benchmarks.md explains the columns.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command, operations, report
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.lineup import Result, is_own, measure_all
from fastbert.benchmarks.cpu.operations import KIND, OperationLineup, OperationWorkload
from fastbert.benchmarks.harness import command_line, records
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.suite import Case, contender_cases
from fastbert.benchmarks.harness.tables import Column, Notes, console_of, milliseconds, number, print_table, span

BENCHMARK = "kernels"
COLUMNS = (
    Column("contender"),
    Column("ms"),
    Column("p20-p80", 3),
    Column("GFLOP/s"),
    Column("peak", 2),
    Column("GB/s"),
    Column("copy", 1),
    Column("x dtype"),
    Column("error", 4),
    Column(""),  # of notes
)


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement: `quick` uses an eighth of the sequences; the default model is base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.names()
        self.chosen()

    def names(self) -> list[str]:
        """Return the selected contenders."""
        return choose("contender", peers.names(KIND), self.contenders)

    def chosen(self) -> list[OperationWorkload]:
        """Return the selected workloads."""
        made = operations.workloads(self.config, self.quick)
        by_name = {workload.name: workload for workload in made}
        return [by_name[name] for name in choose("workload", list(by_name), self.workloads)]


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        names, threads, isolate, folder = options.names(), options.thread_count, options.isolate, Path(temporary)
        lineup = OperationLineup(KIND, names, threads, model=None, isolate=isolate, folder=folder, say=say)
        with lineup:
            return measure_all(
                options.chosen(),
                lambda workload: lineup.measure(workload, options.round_count),
                progress or (lambda *_: None),
            )


def show(result: Result, console: Any = None) -> None:
    """Print one table per workload, then the contenders that were not measured."""
    console = console_of(console)
    notes = Notes()
    for workload in report.workload_names(result):
        rows = [row for row in result.rows if row.workload == workload]
        console.print("; ".join([workload, *(row.details["workload"] for row in rows[:1])]), style="bold", markup=False)
        printed = len(notes.texts)
        print_table(console, COLUMNS, [_cells(row, notes) for row in rows], notes.lines()[printed:])
        console.print()
    for line in report.absent_lines(result, report.workload_names(result)):
        console.print(line, markup=False)


def _cells(row: Row, notes: Notes) -> tuple[tuple[str, ...], str]:
    details = row.details
    shares = [f"{details[name]:.0%}" if name in details else "" for name in ("share_of_peak", "share_of_copy")]
    rates = [f"{details[name]:,.3g}" if name in details else "" for name in ("gflops", "gigabytes_per_second")]
    cells = (
        row.contender,
        milliseconds(row.median_ms),
        span(row.p20, row.p80),
        rates[0],
        shares[0],
        rates[1],
        shares[1],
        number(details["ratio_to_same_dtype"], ".2f"),
        number(details.get("error"), ".1g"),
        notes.mark(report.notes_of(row)),
    )
    return cells, "bold" if is_own(row.contender) else "" if row.agrees else "yellow"


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(KIND))
    if json is not None:
        settings = {"model": options.preset}
        records.write(json, records.record(BENCHMARK, report.record_rows(result), packages, settings))
    what = f"Operations of BERT {options.preset}"
    command.publish(result, options, None, chart, benchmark=BENCHMARK, packages=packages, what=what)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`."""
    made = {workload.name: workload for workload in Options(quick=not full).chosen()}
    return contender_cases(
        BENCHMARK, KIND, made, lambda _, name: (made[name], None), dtypes=lambda name: made[name].dtypes
    )


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="tiny's shapes, few sequences, three rounds", model="base, quick tiny")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
