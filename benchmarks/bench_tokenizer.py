"""Compare WordPiece tokenizers: ids first, then megabytes of text per second.

    python benchmarks/bench_tokenizer.py --quick
    python benchmarks/bench_tokenizer.py --json rows.json --chart rows.png
    python benchmarks/bench_tokenizer.py --text my.txt --vocab vocab.txt

Without --text the texts come from the folder --data (else FASTBERT_DATA), and without that from Python's own
documentation. docs/benchmarks.md explains the measures and the columns. A megabyte is 10^6 bytes of UTF-8.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import command_line, report, texts
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.suite import Case
from fastbert.benchmarks.harness.texts import Workload
from fastbert.benchmarks.tokenizer import command, measures
from fastbert.benchmarks.tokenizer.command import TokenizerOptions
from fastbert.benchmarks.tokenizer.measures import Lineup
from fastbert.errors import UserError

KIND = "tokenizer"
MEASURES = ("cold", "warm", "padded", "aligned", "threads", "load", "memory", "hostile")


@dataclass(frozen=True, kw_only=True)
class Options(TokenizerOptions):
    """The selection and size of the measurement; `quick` takes under a minute, with two megabytes of text in all. A
    `text` needs a `vocab`, and `threads` are compared with one."""

    KIND: ClassVar[str] = KIND
    MEASURES: ClassVar[tuple[str, ...]] = MEASURES
    LEAST_THREADS: ClassVar[int] = 2
    QUICK_MEGABYTES: ClassVar[float] = 1

    vocab: Path | None = None
    """The vocab.txt for `text`."""
    measures: tuple[str, ...] = MEASURES
    threads: int = 2

    def __post_init__(self) -> None:
        if (self.text is None) != (self.vocab is None):
            raise UserError("--text and --vocab belong together: give a file with one text per line and its vocab.txt")
        super().__post_init__()


def run(options: Options, say: Say, progress: Progress | None = None) -> list[Row]:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    names = options.names(say)
    if not options.isolate:
        # In one process all contenders share a pool, created once; with one thread it is unused.
        os.environ.setdefault("RAYON_NUM_THREADS", str(options.threads))
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        workloads = _workloads(options, folder, say)
        return _measure(options, names, workloads, folder, say, progress or (lambda *_: None))


def _workloads(options: Options, folder: Path, say: Say) -> list[Workload]:
    if options.text is not None and options.vocab is not None:
        available = texts.text_workloads(options.text, options.vocab, options.limit, options.quick)
    else:
        data = None if options.python_text else texts.find_data(options.data)
        if data is None:
            available = texts.python_workloads(folder, options.limit, options.quick)
        else:
            available = texts.data_workloads(data, folder, options.limit, options.quick, say)
    return command.select_workloads(available, options.workloads)


def _measure(
    options: Options,
    names: Sequence[str],
    workloads: Sequence[Workload],
    folder: Path,
    say: Say,
    progress: Progress,
) -> list[Row]:
    selected, rounds = options.measures, options.timed_rounds
    table: list[Row] = []
    steps = len(workloads) + 3

    def lineup(threads: int) -> Lineup:
        return Lineup(names, threads, isolate=options.isolate, folder=folder, say=say)

    if "aligned" in selected and not measures.has_offsets():
        say("fastbert: this version has no offsets for batches of texts; they are not measured")
    with lineup(1) as single, lineup(options.threads) as several:
        for index, workload in enumerate(workloads):
            progress(index, steps, workload.name)
            say(f"{workload.name}: {len(workload.texts):,} texts, {workload.text_bytes / 1e6:.2f} MB")
            single.open(workload)
            single.compare()
            table += measures.cold_and_warm(single, rounds, selected)
            if "aligned" in selected:
                table += measures.aligned(single, rounds)
            if "padded" in selected and index == 0:
                table += measures.padded(single, rounds, count=2000 if options.quick else 20_000)
            if "threads" in selected and index < (1 if options.quick else 2):
                several.open(workload)
                several.tokens = single.tokens
                table += measures.threads(single, several, rounds)
        single.open(workloads[0])
        progress(steps - 3, steps, "load times")
        if "load" in selected:
            vocabularies = list(dict.fromkeys(workload.vocabulary for workload in workloads))
            table += measures.load_times(single, vocabularies[: 1 if options.quick else None], rounds)
        progress(steps - 2, steps, "hostile texts")
        if "hostile" in selected:
            count = options.hostile or (26 if options.quick else 200)
            size = min(250_000 if options.quick else 1_000_000, options.limit // 2)
            table += measures.hostile(single, count=count, size=size)
    progress(steps - 1, steps, "memory")
    if "memory" in selected:
        counts = (1,) if options.quick else (1, options.threads)
        grown = measures.memory(names, counts, workloads[0], folder, say)
        table = measures.with_memory(table, grown, workloads[0])
    progress(steps, steps, "")
    return table


show: Callable[..., None] = report.show


def publish(rows: Sequence[Row], options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the rows to the requested files."""
    versions = [name for name in peers.distributions(KIND) if name not in ("numpy", "torch")]
    command.publish(rows, KIND, json, chart, what="WordPiece tokenizers", versions=versions)


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`, on Python's own documentation."""
    limit = Options(quick=not full).limit // (1 if full else 4)
    names = [*texts.PYTHON, *texts.DERIVED]
    return command.cases(KIND, names, lambda folder: texts.python_workloads(folder, limit, quick=not full))


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(
        __doc__,
        Options,
        quick="2 MB of text in all, fewer rounds: under a minute",
        threads="number of threads to compare with one (default: 2)",
        hostile="number of hostile texts (default: 200, quick 26)",
    )
    parser.add_argument("--text", type=Path, help="file with one text per line, instead of the data; needs --vocab")
    parser.add_argument("--vocab", type=Path, help="vocab.txt for --text")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
