"""Compare servers: vectors over HTTP first, then requests per second and latency.

    python benchmarks/bench_serving.py --quick
    python benchmarks/bench_serving.py --workloads single --infinity ENVIRONMENT --json rows.json
    python benchmarks/bench_serving.py --workloads overload --overload

Servers, library and load generator (benchmarks/serving/load.cpp, compiled on first use; its share of the processors is
reported) take turns on the same cores. Contenders: `fastbert serve`, sentence-transformers behind FastAPI, and
infinity-emb from an environment of its own, each in several settings. The workloads are single sentences with a limit
of the latency, requests of 64 texts, the server beside `model.embed`, the time of a request apart from the model's,
and a ranking; --overload adds ten minutes above the capacity.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.bench_embed import python_texts, read_texts
from fastbert.benchmarks.cpu import command
from fastbert.benchmarks.cpu.command import CpuOptions, choose
from fastbert.benchmarks.cpu.lineup import Result, is_own
from fastbert.benchmarks.harness import command_line
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import ContenderFailed
from fastbert.benchmarks.harness.suite import Call, Case, Workshop
from fastbert.benchmarks.serving import generator, models, report
from fastbert.benchmarks.serving.measuring import Lab
from fastbert.benchmarks.serving.overload import WORKLOAD, overload
from fastbert.benchmarks.serving.servers import CONTENDERS, Server, absent
from fastbert.benchmarks.serving.workloads import WORKLOADS
from fastbert.errors import UserError

KIND = "serving"
COUNT, QUICK_COUNT = 4096, 512
SECONDS, QUICK_SECONDS = 4.0, 1.0
# Of `pytest benchmarks`: the model and the route of a request, of one client after the other's answer.
REQUESTS = {
    "empty, /health": (models.EMPTY, "/health"),
    "empty, /embed": (models.EMPTY, "/embed"),
    "single, /embed": (models.MINILM, "/embed"),
}
REQUEST_TEXTS = 64
OVERLOAD_SECONDS, QUICK_OVERLOAD_SECONDS = 600.0, 20.0


@dataclass(frozen=True, kw_only=True)
class Options(CpuOptions):
    """The selection and size of the measurement: `quick` uses 512 texts and rounds of one second."""

    text: Path | None = None
    """A file with one text per line; None: sentences of Wikipedia or of Python's documentation."""
    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone."""
    infinity: Path | None = None
    """The folder of an environment with infinity-emb; None: it is left out."""
    seconds: float | None = None
    """Seconds per round; None: 4, with `quick` 1."""
    overload: bool = False
    """Add the workload "overload": ten minutes, with `quick` 20 seconds."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            raise UserError("--model: the models of this benchmark are fixed: leave it out")
        if not self.isolate:
            raise UserError("--no-isolate: a server is a process of its own: leave it out")
        if self.seconds is not None and self.seconds <= 0:
            raise UserError(f"--seconds {self.seconds} must be positive")
        if self.infinity is not None and not (self.infinity / "bin" / "infinity_emb").exists():
            raise UserError(
                f"--infinity {self.infinity}: no bin/infinity_emb in it; create it with `python -m venv`, then"
                ' `pip install "infinity-emb[torch,server]"`'
            )
        self.selected()

    def selected(self) -> tuple[list[str], list[str]]:
        """Return the selected contenders and workloads."""
        names = [*WORKLOADS, *([WORKLOAD] if self.overload else [])]
        return choose("contender", list(CONTENDERS), self.contenders), choose("workload", names, self.workloads)


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    generator.build()
    names, workloads = options.selected()
    source, texts = read_texts(options.text, options.data, QUICK_COUNT if options.quick else COUNT)
    duration = QUICK_OVERLOAD_SECONDS if options.quick else OVERLOAD_SECONDS
    measures = {**WORKLOADS, WORKLOAD: partial(overload, seconds=duration)}
    result, progress = Result(), progress or (lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        lab = Lab(
            names=names,
            threads=options.thread_count,
            rounds=options.round_count,
            seconds=options.seconds or (QUICK_SECONDS if options.quick else SECONDS),
            scratch=Path(temporary),
            infinity=options.infinity,
            say=say,
        )
        for step, workload in enumerate(workloads):
            progress(step, len(workloads), workload)
            measured = measures[workload](lab, texts, source)
            result.rows += measured.rows
            result.absent += measured.absent
        progress(len(workloads), len(workloads), "")
    return result


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions("embed"), "fastapi", "uvicorn")
    command.publish(
        result, options, json, chart, benchmark=KIND, packages=packages, what="Embedding servers", draw=report.chart
    )


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`: requests of one client to a server in a process of its own."""
    return [
        Case(
            benchmark=KIND,
            workload=workload,
            contender=name,
            dtype=CONTENDERS[name].dtype,
            open=partial(_open, workload, name),
        )
        for workload in REQUESTS
        for name in CONTENDERS
        if is_own(name) and (full or workload.startswith("single") or CONTENDERS[name].dtype == "fp32")
    ]


def _open(workload: str, name: str, workshop: Workshop) -> Call:
    """Start a server, and return a request to it."""
    config, route = REQUESTS[workload]
    shape = workload.split(",")[0]
    reason = absent(name, None)
    if reason is not None:
        raise UserError(f"{name}: {reason}")
    texts = workshop.once("texts", lambda _: python_texts(REQUEST_TEXTS))
    model = workshop.once(shape, lambda folder: models.random_embedder(folder, config, texts))

    def start(scratch: Path) -> Server:
        try:
            server = Server(name, model, workshop.threads, scratch)
        except ContenderFailed as error:
            raise UserError(f"{name}: {error}") from error
        workshop.closing.callback(server.close)
        return server

    server = workshop.once(f"{name}, {shape}", start)
    if route == "/health":
        return Call(run=lambda: server.ask(route, None))
    bodies = itertools.cycle(CONTENDERS[name].body([text]) for text in texts)
    return Call(run=lambda: server.post(route, next(bodies)))


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="512 texts, three rounds of one second", model="fixed: leave it out")
    parser.add_argument("--text", type=Path, help="file with one text per line (default: Wikipedia or Python's docs)")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument("--infinity", type=Path, help="environment with infinity-emb (default: it is left out)")
    parser.add_argument("--seconds", type=float, help="seconds per round (default: 4, quick 1)")
    parser.add_argument("--overload", action="store_true", help="add ten minutes at 120 %% of the capacity")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
