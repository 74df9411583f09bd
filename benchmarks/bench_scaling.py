"""Measure encoders over threads, and two processes on the same cores: outputs first, then times.

    python benchmarks/bench_scaling.py --quick
    python benchmarks/bench_scaling.py --workloads "two processes" --contenders fastbert onnxruntime
    python benchmarks/bench_scaling.py --workloads "all cores" --json rows.json

Two processes with all threads each compute the same passes at the same time, beside one that computes all of them. With
one thread to all of them, the speed is compared with linear scaling, and a model predicts it for 2, 8 and 32 threads.
docs/benchmarks.md explains the measures and docs/performance-cpu.md the model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from fastbert import _C, cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.bench_encoder import save_model
from fastbert.benchmarks.cpu import command, workloads
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.lineup import Result, dtype_of, is_own, measure_all
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness import command_line, records
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import ContenderFailed, Row
from fastbert.benchmarks.harness.record_plan import BF16_CLASSES
from fastbert.benchmarks.harness.suite import Call, Case, Workshop, contender_cases
from fastbert.benchmarks.scaling import model, partition, regions, report
from fastbert.benchmarks.scaling.lineups import Pair, PairLineup, ThreadLineup, counts_to
from fastbert.benchmarks.scaling.regions import RegionCost
from fastbert.config import BertConfig
from fastbert.errors import UserError

KIND = "scaling"
ENCODER = "encoder"  # the kind of contender
PAIRED, THREADED = "two processes", "all cores"
# The other contenders of two processes unless some are named.
PEERS = ("transformers sdpa", "onnxruntime")
SHORT = [64] * 8
DISTURBED = 0.25  # relative to the measured time: a greater error of the model, which is solved from it, is noted
COPY_RATE = "copy_gigabytes_per_second"


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement; the default model is base, with `quick` tiny."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.isolate:
            raise UserError("--no-isolate: every contender needs several processes: leave it out")
        choose("contender", peers.names(ENCODER), self.contenders)
        self.chosen()

    def names(self) -> list[str]:
        """Return the selected contenders: without a selection fastbert and a few others, in bf16 only where the
        processor multiplies it."""
        names = choose("contender", peers.names(ENCODER), self.contenders)
        if not self.contenders:
            names = [name for name in names if is_own(name) or name.startswith(PEERS)]
        if any("bf16" in part for part in self.contenders) or multiplies_bf16():
            return names
        return [name for name in names if dtype_of(ENCODER, name) != "bf16"]

    def chosen(self) -> list[Workload]:
        """Return the selected workloads."""
        made = {workload.name: workload for workload in batches(self.config, self.quick)}
        return [made[name] for name in choose("workload", list(made), self.workloads)]


@cache
def multiplies_bf16() -> bool:
    """Return whether this processor's class has instructions for bf16."""
    return records.machine_class(records.machine()) in BF16_CLASSES


def batches(config: BertConfig, quick: bool = False) -> list[Workload]:
    """Return the workloads: one short sequence and a small batch for two processes, then those over threads."""
    of_encoder = {workload.name: workload for workload in workloads.batches(config, quick)}
    short = SHORT[:2] if quick else SHORT
    pairs = [of_encoder["latency-16"], workloads.batch("full-64", short, SHORT[0], config)]
    threaded = [of_encoder[name] for name in ("full-128", "lognormal", "latency-16")]
    return [
        replace(workload, name=f"{what}, {workload.name}")
        for what, group in ((PAIRED, pairs), (THREADED, threaded))
        for workload in group
    ]


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    names = {PAIRED: options.names(), THREADED: [name for name in options.names() if is_own(name)]}
    chosen = [workload for workload in options.chosen() if names[_what(workload)]]
    if len(chosen) < len(options.chosen()):
        say(f"{THREADED}: measures fastbert alone, which --contenders leaves out")
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        saved = save_model(folder / "model", options.config)

        def measure(workload: Workload) -> Result:
            say(f"{workload.name}: {workload.note}")
            what = _what(workload)
            kind = PairLineup if what == PAIRED else ThreadLineup
            threads = options.thread_count
            with kind(ENCODER, names[what], threads, model=saved, isolate=True, folder=folder, say=say) as lineup:
                result = lineup.measure(workload, options.round_count)
            if what == THREADED and min(options.thread_count, cores()) > 1:
                result.rows = with_models(result.rows, workload, options, say)
            return result

        return measure_all(chosen, measure, progress or (lambda *_: None))


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _what(workload: Workload) -> str:
    return workload.name.partition(",")[0]


@cache
def _cost(threads: int) -> RegionCost:
    return regions.measure(threads)


def with_models(rows: Sequence[Row], workload: Workload, options: Options, say: Say) -> list[Row]:
    """Return the rows with the model of more threads in their details; unchanged where a region cannot be measured."""
    counts = {*model.THREADS, *counts_to(options.thread_count), cores()} - {1}
    try:
        costs = {count: _cost(count) for count in sorted(counts)}
    except ContenderFailed as error:
        say(f"{workload.name}: no model of more threads: {error}")
        return list(rows)
    capability, features = cpu_capability.current(), _C.cpu_capability_features()
    made = []
    for row in rows:
        kernel = partition.KERNELS[partition.kernel_name(row.dtype, capability, features)]
        lengths = [int(length) for length in workload.arrays["lengths"]]
        divide = partial(partition.divide_pass, options.config, lengths, row.dtype, kernel)
        seconds = weight_bytes(options.config, row.dtype) / (row.details.get(COPY_RATE, float("inf")) * 1e9)
        times = row.details["rounds_ms_by_threads"]
        terms = model.describe(times, divide, costs, cores=cores(), bytes_seconds=seconds)
        details = {**row.details, "model": terms}
        predicted, two = terms["threads"]["2"]["predicted_ms"], row.details["ms_by_threads"]["2"]
        if abs(predicted / two - 1.0) > DISTURBED:
            note = f"the model has {predicted:,.3g} ms for 2 threads, {two:,.3g} measured: the machine was not steady"
            details["notes"] = [*row.details.get("notes", ()), note]
        made.append(replace(row, details=details))
    return made


def weight_bytes(config: BertConfig, dtype: str) -> float:
    """Return the bytes of the layers' matrices."""
    width, inner = config.hidden_size, config.intermediate_size
    matrices = config.num_hidden_layers * (4 * width * width + 2 * width * inner)
    return float(matrices * partition.ELEMENT_BYTES[dtype])


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(ENCODER))
    command.publish(
        result, options, json, chart, benchmark=KIND, packages=packages, what=f"Threads of BERT {options.preset}"
    )


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`: all threads, then two processes in fp32."""
    options = Options(quick=not full)
    made = {workload.name: workload for workload in options.chosen()}

    def build(workshop: Workshop, name: str) -> tuple[Workload, Path]:
        return made[name], workshop.once("model", lambda folder: save_model(folder, options.config))

    def open_pair(name: str, workshop: Workshop) -> Call:
        workload, saved = build(workshop, name)
        lineup = PairLineup(
            ENCODER, ["fastbert fp32"], workshop.threads, model=saved, isolate=True, folder=workshop.folder, say=print
        )
        workshop.closing.enter_context(lineup)
        pair = lineup.prepare(workload)
        assert isinstance(pair, Pair)
        calls = 2 * pair.calls
        return Call(run=pair.compute, tokens=calls * workload.tokens, operations=calls * workload.operations)

    threaded = [name for name in made if name.startswith(THREADED)]
    by_thread = contender_cases(KIND, ENCODER, threaded, build)
    return by_thread + [
        Case(
            benchmark=KIND,
            workload=name,
            contender="fastbert fp32",
            open=partial(open_pair, name),
            details={"processes": 2},
        )
        for name in made
        if name not in threaded
    ]


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="a tiny model, few sequences, three rounds", model="base, quick tiny")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
