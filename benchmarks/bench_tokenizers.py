"""Compare tokenizers of byte-level BPE and Unigram: ids first, then megabytes of text per second.

    python benchmarks/bench_tokenizers.py --quick
    python benchmarks/bench_tokenizers.py --json rows.json --chart rows.png
    python benchmarks/bench_tokenizers.py --families xlm-roberta-base --measures load memory
    python benchmarks/bench_tokenizers.py --folder FOLDER --text my.txt

Tokenizers and texts come from the folder --data (else FASTBERT_DATA); without that, from Python's own documentation and
tokenizers trained on it. docs/benchmarks.md explains the measures. A megabyte is 10^6 bytes of UTF-8.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import records, report, texts
from fastbert.benchmarks.harness.measure import FASTBERT, Row
from fastbert.benchmarks.harness.texts import Workload
from fastbert.benchmarks.tokenizer import families, measures
from fastbert.benchmarks.tokenizer.families import BPE, FAMILIES, UNIGRAM
from fastbert.benchmarks.tokenizer.hostile import PIECE_KINDS
from fastbert.benchmarks.tokenizer.measures import REFERENCE, Lineup, Say
from fastbert.errors import UserError

KIND = "tokenizers"
MEASURES = ("cold", "warm", "load", "memory", "hostile")
# Those whose hostile texts and memory are measured: the goals are fastbert's own.
ALONE = (FASTBERT, REFERENCE)
NAMED = (REFERENCE, "sentencepiece")  # in every ratio, whether their ids agree or not


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    quick: bool = False
    """A quarter of a megabyte per text, fewer rounds."""
    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone, else Python's own documentation."""
    python_text: bool = False
    """Use Python's own documentation even if there is a data folder."""
    folder: Path | None = None
    """Instead of these: a folder with a tokenizer.json of BPE or Unigram."""
    text: Path | None = None
    """Instead of these: a file with one text per line, for `folder`."""
    families: tuple[str, ...] = ()
    """Only families whose name contains one of these; none: all."""
    contenders: tuple[str, ...] = ()
    """Contenders; none: all that are installed."""
    measures: tuple[str, ...] = MEASURES
    """The measures."""
    workloads: tuple[str, ...] = ()
    """Only workloads whose name contains one of these."""
    threads: int = 1
    """Threads of every contender."""
    rounds: int | None = None
    """Timed calls per contender; None: five, three if `quick`."""
    megabytes: float | None = None
    """Maximum size of each text; None: eight, a quarter if `quick`."""
    isolate: bool = True
    """One process per contender."""
    hostile: int | None = None
    """Number of hostile texts per family; None: 200, one of each kind if `quick`."""

    def __post_init__(self) -> None:
        if (self.text is None) != (self.folder is None):
            raise UserError("--text and --folder belong together: give a file with one text per line and a tokenizer")
        if self.folder is not None and self.families:
            raise UserError("--families selects tokenizers of the data folder: leave it out, or --folder")
        for what, chosen, known in (
            ("contender", self.contenders, peers.names(KIND)),
            ("measure", self.measures, MEASURES),
        ):
            for name in chosen:
                if name not in known:
                    raise UserError(f"unknown {what} {name!r}; there are {', '.join(known)}")
        for flag, value in (("threads", self.threads), ("rounds", self.rounds), ("hostile", self.hostile)):
            if value is not None and value < 1:
                raise UserError(f"--{flag} {value} must be at least 1")
        if self.megabytes is not None and not self.megabytes > 0:
            raise UserError(f"--megabytes {self.megabytes} must be above 0")

    @property
    def limit(self) -> int:
        """Return the maximum size of each text in bytes."""
        return int((self.megabytes or (0.25 if self.quick else 8)) * 1e6)

    @property
    def timed_rounds(self) -> int:
        """Return the number of timed calls per contender."""
        return self.rounds or (3 if self.quick else 5)


def run(options: Options, say: Say, progress: Callable[[int, int, str], None] | None = None) -> list[Row]:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    names = list(options.contenders or peers.names(KIND))
    for name in names:
        module = peers.missing(KIND, name)
        if module is not None:
            say(f"{name}: not installed (no module {module}); left out")
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
        names = _chosen("family", list(FAMILIES) if data is not None else [BPE, UNIGRAM], options.families)
        if data is None:
            available = families.python_workloads(folder, names, options.limit, options.limit)
        else:
            available = families.data_workloads(data, folder, names, options.limit, options.limit, say)
    chosen = _chosen("workload", [workload.name for workload in available], options.workloads)
    return [workload for workload in available if workload.name in chosen]


def _chosen(what: str, names: Sequence[str], parts: Sequence[str]) -> list[str]:
    chosen = [name for name in names if not parts or any(part in name for part in parts)]
    if not chosen:
        raise UserError(
            f"no {what} name contains {' or '.join(parts) or 'that'}; there are {', '.join(names) or 'none'}"
        )
    return chosen


def _measure(
    options: Options,
    names: Sequence[str],
    workloads: Sequence[Workload],
    folder: Path,
    say: Say,
    progress: Callable[[int, int, str], None],
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
    packages = (*peers.distributions(KIND), "fastbert-engine")
    if json is not None:
        records.write(json, records.record(KIND, map(asdict, rows), packages))
    if chart is not None:
        report.chart(chart, rows, title=f"BPE and Unigram tokenizers on {records.machine()['cpu']}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="0.25 MB per text, fewer rounds")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument(
        "--python-text", action="store_true", help="use Python's own documentation, not the data folder"
    )
    parser.add_argument("--folder", type=Path, help="folder with a tokenizer.json, instead of the data; needs --text")
    parser.add_argument("--text", type=Path, help="file with one text per line for --folder")
    parser.add_argument("--families", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--contenders", nargs="+", default=(), metavar="NAME", help="default: all that are installed")
    parser.add_argument("--measures", nargs="+", default=MEASURES, choices=MEASURES, help="default: all")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--threads", type=int, default=1, help="threads of every contender (default: 1)")
    parser.add_argument("--rounds", type=int, help="timed calls per contender (default: 5, quick 3)")
    parser.add_argument("--megabytes", type=float, help="maximum size of each text in MB (default: 8, quick 0.25)")
    parser.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one process per contender (default: yes)",
    )
    parser.add_argument("--hostile", type=int, help="hostile texts per family (default: 200, quick one of each kind)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--chart", type=Path, help="picture to write, .png, .pdf or .svg")
    values = vars(parser.parse_args(arguments))
    json, chart = values.pop("json"), values.pop("chart")
    for name in ("families", "contenders", "measures", "workloads"):
        values[name] = tuple(values[name])
    try:
        options = Options(**values)
        rows = run(options, lambda line: print(line, file=sys.stderr, flush=True))
    except UserError as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    show(rows)
    publish(rows, options, json, chart)
    return 0


if __name__ == "__main__":
    sys.exit(main())
