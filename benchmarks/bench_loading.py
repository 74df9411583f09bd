"""Compare loading with transformers, from `from_pretrained` to the first output: seconds, and peak memory.

    python benchmarks/bench_loading.py --quick
    python benchmarks/bench_loading.py --model base --rounds 9 --json rows.json

Every measurement runs in a new process, in turns: libraries are imported first, then the clock starts, the model is
loaded, and one batch computed. The file is in the page cache. Memory is the growth of the process at its peak, mapped
files included. Outputs are compared before anything is reported.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastbert import cpu_capability
from fastbert.benchmarks.bench_encoder import save_model
from fastbert.benchmarks.cpu import command
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.lineup import Absent, Result
from fastbert.benchmarks.harness import child_process, command_line, process_memory, records, report
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import FASTBERT, ContenderFailed, Row, Timing, make_rows
from fastbert.benchmarks.harness.suite import Call, Case, Workshop
from fastbert.errors import UserError

KIND = "loading"
PEER = "transformers"
# Lengths of the computed sequences; none: loading alone.
WORKLOADS: dict[str, tuple[int, ...]] = {
    "load": (),
    "first-sentence": (16,),
    "first-batch": (128, 17, 64, 33, 96, 24, 80, 48, 12, 110, 56, 40, 72, 20, 30, 100),
}
CLOSE = 2e-5


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement; the default model is base, with `quick` mini."""

    QUICK_PRESET = "mini"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.isolate:
            raise UserError("--no-isolate: every measurement needs a new process: leave it out")
        self.names()
        self.chosen()

    def names(self) -> list[str]:
        """Return the selected contenders."""
        return choose("contender", [FASTBERT, PEER], self.contenders)

    def chosen(self) -> list[str]:
        """Return the selected workloads."""
        return choose("workload", list(WORKLOADS), self.workloads)


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    names, progress, result = options.chosen(), progress or (lambda *_: None), Result()
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = save_model(Path(temporary), options.config)
        for step, workload in enumerate(names):
            progress(step, len(names), workload)
            measured = measure(workload, options, folder, say)
            result.rows += measured.rows
            result.absent += measured.absent
    progress(len(names), len(names), "")
    return result


def measure(workload: str, options: Options, folder: Path, say: Say) -> Result:
    """Return the rows of a workload, in which outputs that differ are marked."""
    measured: dict[str, list[dict[str, Any]]] = {name: [] for name in options.names()}
    absent: list[Absent] = []
    for _ in range(options.round_count):
        for name in list(measured):
            try:
                measured[name].append(_in_a_process(name, workload, folder, options.thread_count))
            except ContenderFailed as error:
                say(f"{name}: left out of {workload}: {error}")
                absent.append(Absent(workload, name, "fp32", str(error)))
                del measured[name]
    outputs = {name: np.asarray(runs[0]["output"], np.float32) for name, runs in measured.items()}
    verdicts, difference = dict.fromkeys(outputs, "not compared"), 0.0
    if len(outputs) == 2 and WORKLOADS[workload]:
        difference = float(np.abs(outputs[FASTBERT] - outputs[PEER]).max(initial=0.0))
        close = "close" if difference else "equal"
        differs = f"differs by {difference:.2g}, more than {CLOSE:g}"
        verdicts = {PEER: "equal", FASTBERT: close if difference <= CLOSE else differs}
        if difference > CLOSE:
            say(f"{FASTBERT}: {workload}: {differs}")
    rows = make_rows(
        workload,
        {name: [Timing(run["seconds"], run["processor"]) for run in runs] for name, runs in measured.items()},
        dtype="fp32",
        threads=options.thread_count,
        differences={FASTBERT: difference},
        outputs=verdicts,
    )
    return Result([_with_memory(row, measured[row.contender], options.preset) for row in rows], absent)


def _with_memory(row: Row, runs: Sequence[dict[str, Any]], model: str) -> Row:
    """Return the row with the model and the largest growth of its processes."""
    peak = max(run["peak_bytes"] for run in runs)
    ratio = round(peak / runs[0]["weight_bytes"], 3)
    details = {"model": model, "peak_bytes": peak, "peak_to_weights": ratio, "note": f"peak {ratio:.2f}x the weights"}
    notes = [str(row.details["note"])] if "note" in row.details else []
    return replace(row, details={**row.details, **details, "note": "; ".join([details["note"], *notes])})


def _in_a_process(contender: str, workload: str, folder: Path, threads: int) -> dict[str, Any]:
    environment = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    words = (contender, workload, folder, threads)
    return child_process.ask("fastbert.benchmarks.bench_loading", words, environment)


def child(contender: str, workload: str, folder: str, threads: str) -> dict[str, Any]:
    """Load the model, compute once; return time, memory and output."""
    import torch

    torch.set_num_threads(int(threads))
    if contender == FASTBERT:
        from fastbert import BertModel as Model
    else:
        from transformers import AutoModel
        from transformers.models.bert.modeling_bert import BertModel as Model

        assert issubclass(Model, torch.nn.Module)
        Model = AutoModel
    lengths = WORKLOADS[workload]
    width = max(lengths, default=0)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long() if lengths else None
    ids = torch.randint(1000, 30000, (len(lengths), width), generator=torch.Generator().manual_seed(0))
    process_memory.forget_high_water()
    before, start, processor = process_memory.high_water(), time.perf_counter(), time.process_time()
    model = Model.from_pretrained(folder)
    output = torch.empty(0, 0)
    if mask is not None:
        with torch.no_grad():
            output = model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    return {
        "seconds": seconds,
        "processor": processor,
        "peak_bytes": (process_memory.high_water() or 0) - (before or 0),
        "weight_bytes": sum(parameter.nbytes for parameter in model.parameters()),
        "output": output[::16, ::32].flatten().tolist(),
    }


def show(result: Result) -> None:
    """Print a table per workload, then the contenders that were not measured."""
    report.show(result.rows)
    for line in dict.fromkeys(f"{name}: not measured: {reason}" for _, name, _, reason in result.absent):
        print(line)


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    if json is not None:
        settings = {"model": options.preset}
        records.write(json, records.record(KIND, command.report.record_rows(result), settings=settings))
    if chart is not None and result.rows:
        title = command.title(f"Loading BERT {options.preset}", records.PACKAGES, options.thread_count)
        report.chart(chart, result.rows, title=title)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`, which load in one process."""
    options = Options(quick=not full)

    def open_workload(workload: str, workshop: Workshop) -> Call:
        config = options.config
        folder = workshop.once("model", lambda folder: save_model(folder, config))
        return Call(
            run=lambda: child(FASTBERT, workload, str(folder), str(workshop.threads)),
            tokens=sum(WORKLOADS[workload]) or None,
        )

    return [
        Case(
            benchmark=KIND,
            workload=workload,
            open=partial(open_workload, workload),
            details={"model": options.preset},
        )
        for workload in options.chosen()
    ]


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if child_process.answered(argv, child):
        return 0
    parser = command.parser(__doc__, quick="the mini model, three rounds", model="base, quick mini")
    return command_line.execute(parser, argv, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
