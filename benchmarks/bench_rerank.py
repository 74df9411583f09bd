"""Compare cross-encoders from text to scores: scores and their order first, then the milliseconds of a ranking.

    python benchmarks/bench_rerank.py --quick
    python benchmarks/bench_rerank.py --threads 2 --json rows.json --chart rows.png
    python benchmarks/bench_rerank.py --folder FOLDER --pairs 50 --contenders fastbert openvino

The model has MiniLM-L6's shape and random weights, or is that of --folder. A ranking is 100 pairs of a query and a
text, of 256 tokens each and of mixed lengths. docs/reranking.md describes the measurement.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert import cpu_capability
from fastbert.benchmarks import peers
from fastbert.benchmarks.cpu import command, report, rerank_contender
from fastbert.benchmarks.cpu.command import FolderOptions, choose
from fastbert.benchmarks.cpu.contender import TextContender
from fastbert.benchmarks.cpu.lineup import Result, measure_all
from fastbert.benchmarks.harness import command_line
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.suite import Case, Workshop, contender_cases
from fastbert.errors import UserError

KIND = "rerank"
PAIRS, QUICK_PAIRS = 100, 16


@dataclass(frozen=True, kw_only=True)
class Options(FolderOptions):
    """The selection and size of the measurement: `quick` ranks 16 texts; without a folder the model has MiniLM-L6's
    shape and random weights."""

    KIND: ClassVar[str] = KIND

    pairs: int | None = None
    """The number of texts per query; None: 100, with `quick` 16."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pairs is not None and self.pairs < 2:
            raise UserError(f"--pairs {self.pairs} must be at least 2")

    @property
    def count(self) -> int:
        """Return the number of pairs."""
        return self.pairs or (QUICK_PAIRS if self.quick else PAIRS)


def run(options: Options, say: Say, progress: Progress | None = None) -> Result:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    cpu_capability.current()  # raises for a wrong FASTBERT_CPU before a contender fails with it
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        model = options.folder
        if model is None:
            model = Path(temporary) / "model"
            rerank_contender.write_model(model)
        works = {work.name: work for work in rerank_contender.workloads(model, options.count)}
        chosen = choose("workload", list(works), options.workloads)
        with options.lineup(rerank_contender.RerankLineup, model, Path(temporary), say) as lineup:
            return measure_all(
                [works[name] for name in chosen],
                lambda work: lineup.measure(work, options.round_count),
                progress or (lambda *_: None),
            )


show: Callable[..., None] = report.show


def publish(result: Result, options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the results to the requested files."""
    packages = ("fastbert-engine", *peers.distributions(KIND))
    what = "Ranking texts for a query"
    command.publish(result, options, json, chart, benchmark=KIND, packages=packages, what=what)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`."""
    count = Options(quick=not full).count

    def write(folder: Path) -> Path:
        rerank_contender.write_model(folder)
        return folder

    def build(workshop: Workshop, name: str) -> tuple[rerank_contender.TextWorkload, Path]:
        model = workshop.once("model", write)
        works = workshop.once("workloads", lambda _: rerank_contender.workloads(model, count))
        return next(work for work in works if work.name.endswith(name)), model

    return contender_cases(KIND, KIND, rerank_contender.LENGTHS, build, contender=TextContender)


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(__doc__, quick="16 texts, three rounds", model="not used here: see --folder")
    parser.add_argument("--folder", type=Path, help="a cross-encoder (default: MiniLM-L6's shape, random weights)")
    parser.add_argument("--pairs", type=int, help="texts per query (default: 100, quick 16)")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
