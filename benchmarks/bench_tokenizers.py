"""Compare tokenizers of byte-level BPE and Unigram: ids first, then megabytes of text per second.

    python benchmarks/bench_tokenizers.py --quick
    python benchmarks/bench_tokenizers.py --json rows.json --chart rows.png
    python benchmarks/bench_tokenizers.py --families xlm-roberta-base --measures load memory
    python benchmarks/bench_tokenizers.py --folder FOLDER --text my.txt

Tokenizers and texts come from the folder --data (else FASTBERT_DATA); without that, from Python's own documentation and
tokenizers trained on it. docs/benchmarks.md explains the measures. A megabyte is 10^6 bytes of UTF-8.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fastbert.benchmarks.harness import command_line, report, texts
from fastbert.benchmarks.harness.command_line import Progress, Say
from fastbert.benchmarks.harness.measure import FASTBERT, Row
from fastbert.benchmarks.harness.suite import Case
from fastbert.benchmarks.harness.texts import Workload
from fastbert.benchmarks.tokenizer import command, families, measures
from fastbert.benchmarks.tokenizer.command import TokenizerOptions
from fastbert.benchmarks.tokenizer.families import BPE, FAMILIES, UNIGRAM
from fastbert.benchmarks.tokenizer.hostile import PIECE_KINDS
from fastbert.benchmarks.tokenizer.measures import REFERENCE, Lineup
from fastbert.errors import UserError

KIND = "tokenizers"
MEASURES = ("cold", "warm", "load", "memory", "hostile")
# Those whose hostile texts and memory are measured: the goals are fastbert's own.
ALONE = (FASTBERT, REFERENCE)
NAMED = (REFERENCE, "sentencepiece")  # in every ratio, whether their ids agree or not


@dataclass(frozen=True, kw_only=True)
class Options(TokenizerOptions):
    """The selection and size of the measurement; `quick` uses a quarter of a megabyte per text, and one hostile text of
    each kind per family. A `text` needs a `folder`, and `threads` are those of every contender."""

    KIND: ClassVar[str] = KIND
    MEASURES: ClassVar[tuple[str, ...]] = MEASURES
    QUICK_MEGABYTES: ClassVar[float] = 0.25

    folder: Path | None = None
    """The folder of a tokenizer.json of BPE or Unigram for `text`."""
    families: tuple[str, ...] = ()
    """Only families whose name contains one of these; none: all."""
    measures: tuple[str, ...] = MEASURES

    def __post_init__(self) -> None:
        if (self.text is None) != (self.folder is None):
            raise UserError("--text and --folder belong together: give a file with one text per line and a tokenizer")
        if self.folder is not None and self.families:
            raise UserError("--families selects tokenizers of the data folder: leave it out, or --folder")
        super().__post_init__()


def run(options: Options, say: Say, progress: Progress | None = None) -> list[Row]:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    names = options.names(say)
    with tempfile.TemporaryDirectory(prefix="fastbert-bench-") as temporary:
        folder = Path(temporary)
        workloads = _workloads(options, folder, say)
        return _measure(options, names, workloads, folder, say, progress or (lambda *_: None))


def _workloads(options: Options, folder: Path, say: Say) -> list[Workload]:
    if options.folder is not None and options.text is not None:
        lines = texts.lines_of(options.text, options.limit)
        available = families.folder_workloads(options.folder, f"{options.text.name}, lines", lines, options.limit)
    else:
        data = None if options.python_text else texts.find_data(options.data)
        if data is not None and not (data / "tokenizers").is_dir():
            say(f"{data}: no tokenizers; Python's own documentation is used")
            data = None
        names = command.select("family", list(FAMILIES) if data is not None else [BPE, UNIGRAM], options.families)
        if data is None:
            available = families.python_workloads(folder, names, options.limit, options.limit)
        else:
            available = families.data_workloads(data, folder, names, options.limit, options.limit, say)
    return command.select_workloads(available, options.workloads)


def _measure(
    options: Options,
    names: Sequence[str],
    workloads: Sequence[Workload],
    folder: Path,
    say: Say,
    progress: Progress,
) -> list[Row]:
    table: list[Row] = []
    firsts = {workload.vocabulary.path: workload for workload in reversed(workloads)}  # a family's first
    arguments = {"folder": folder, "say": say, "kind": KIND}
    steps = len(workloads)
    with Lineup(names, options.threads, isolate=options.isolate, **arguments) as lineup:
        for step, workload in enumerate(workloads):
            progress(step, steps, workload.name)
            say(f"{workload.name}: {len(workload.texts):,} texts, {workload.text_bytes / 1e6:.2f} MB")
            lineup.open(workload)
            if {"cold", "warm"} & set(options.measures):
                lineup.compare()
                table += measures.cold_and_warm(lineup, options.timed_rounds, options.measures)
            if firsts[workload.vocabulary.path] is not workload:
                continue
            if "load" in options.measures:
                table += measures.load_times(lineup, [workload.vocabulary], options.timed_rounds)
            if "hostile" in options.measures:
                table += _hostile(options, lineup)
            if "memory" in options.measures:
                alone = [name for name in names if name in ALONE]
                grown = measures.memory(alone, (options.threads,), workload, folder, say, kind=KIND)
                table = measures.with_memory(table, grown, workload)
    progress(steps, steps, "")
    return table


def _hostile(options: Options, lineup: Lineup) -> list[Row]:
    kinds = tuple(PIECE_KINDS)
    count = options.hostile or (len(kinds) if options.quick else 200)
    size = min(1_000_000, options.limit // 2)
    rows = measures.hostile(lineup, count=count, size=size, kinds=kinds, names=options.contenders or ALONE)
    family = lineup.workload.vocabulary.name
    return [measures.renamed(row, f"{family}: {row.workload}") for row in rows]


def show(rows: Sequence[Row]) -> None:
    """Print a table per workload, then the ratios of all on a line each."""
    report.show(rows)
    for line in ratios(rows):
        print(line)


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """Yield, per workload, fastbert's speed relative to Hugging Face's, to sentencepiece's, and to that of the fastest
    other contender that agrees."""
    for workload in dict.fromkeys(row.workload for row in rows):
        by_name = {row.contender: row for row in rows if row.workload == workload}
        ours = by_name.pop(FASTBERT, None)
        if ours is None:
            continue
        parts = [f"{ours.megabytes_per_second:,.4g} MB/s" if ours.megabytes_per_second else f"{ours.median_ms:,.4g} ms"]
        for name in NAMED:
            row = by_name.pop(name, None)
            if row is not None:
                differs = "" if row.agrees else " (whose ids differ)"
                parts.append(f"{row.median_ms / ours.median_ms:,.3g}x {name}{differs}")
        agreeing = [row for row in by_name.values() if row.agrees]
        if agreeing:
            best = min(agreeing, key=lambda row: row.median_ms)
            parts.append(f"{best.median_ms / ours.median_ms:,.3g}x {best.contender}, the fastest other")
        if "worst_over_plain" in ours.details:
            parts = [str(ours.details["note"])]
        if "memory_megabytes_per_thread" in ours.details:
            grown = ours.details["memory_megabytes_per_thread"]
            parts += [f"{value:g} MB per thread with {count}" for count, value in grown.items()]
        yield f"{workload}: {'; '.join(parts)}"


def publish(rows: Sequence[Row], options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the rows to the requested files."""
    command.publish(rows, KIND, json, chart, what="BPE and Unigram tokenizers")


def cases(full: bool) -> list[Case]:
    """Return the cases of `pytest benchmarks`, on Python's own documentation."""
    limit = Options(quick=not full).limit
    titles = (texts.PYTHON[0], families.DOCUMENT)
    names = [f"{model}: {title}" for model in (BPE, UNIGRAM) for title in titles]
    return command.cases(KIND, names, lambda folder: families.python_workloads(folder, (BPE, UNIGRAM), limit, limit))


def test_speed(case: Case, measured: Callable[[Case], None]) -> None:
    """Time one case with pytest-benchmark."""
    measured(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = command.parser(
        __doc__,
        Options,
        quick="0.25 MB per text, fewer rounds",
        threads="threads of every contender (default: 1)",
        hostile="hostile texts per family (default: 200, quick one of each kind)",
    )
    parser.add_argument("--folder", type=Path, help="folder with a tokenizer.json, instead of the data; needs --text")
    parser.add_argument("--text", type=Path, help="file with one text per line for --folder")
    parser.add_argument("--families", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    return command_line.execute(parser, arguments, Options, run, show, publish)


if __name__ == "__main__":
    sys.exit(main())
