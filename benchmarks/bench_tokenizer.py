"""Compare WordPiece tokenizers: ids first, then megabytes of text per second.

    python benchmarks/bench_tokenizer.py --quick
    python benchmarks/bench_tokenizer.py --json rows.json --chart rows.png
    python benchmarks/bench_tokenizer.py --text my.txt --vocab vocab.txt

Without --text the texts come from the folder --data (else FASTBERT_DATA), and without that from Python's own
documentation. docs/benchmarks.md explains the measures and the columns. A megabyte is 10^6 bytes of UTF-8.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fastbert.benchmarks import peers
from fastbert.benchmarks.harness import records, report, texts
from fastbert.benchmarks.harness.measure import Row
from fastbert.benchmarks.harness.texts import Workload
from fastbert.benchmarks.tokenizer import measures
from fastbert.benchmarks.tokenizer.measures import Lineup, Say
from fastbert.errors import UserError

MEASURES = ("cold", "warm", "padded", "aligned", "threads", "load", "memory", "hostile")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The selection and size of the measurement."""

    quick: bool = False
    """Two megabytes of text in all, fewer rounds: under a minute."""
    data: Path | None = None
    """The data folder; None: FASTBERT_DATA, else the one beside the clone, else Python's own documentation."""
    python_text: bool = False
    """Use Python's own documentation even if there is a data folder."""
    text: Path | None = None
    """Instead of these: a file with one text per line; needs `vocab`."""
    vocab: Path | None = None
    """The vocab.txt for `text`."""
    contenders: tuple[str, ...] = ()
    """Contenders; none: all that are installed."""
    measures: tuple[str, ...] = MEASURES
    """The measures."""
    workloads: tuple[str, ...] = ()
    """Only workloads whose name contains one of these."""
    threads: int = 2
    """The number of threads to compare with one."""
    rounds: int | None = None
    """Timed calls per contender; None: five, three if `quick`."""
    megabytes: float | None = None
    """Maximum size of each text; None: eight; if `quick` one, and less of other texts."""
    isolate: bool = True
    """One process per contender."""
    hostile: int | None = None
    """Number of hostile texts; None: 200, 26 if `quick`."""

    def __post_init__(self) -> None:
        if (self.text is None) != (self.vocab is None):
            raise UserError("--text and --vocab belong together: give a file with one text per line and its vocab.txt")
        for name in self.contenders:
            if name not in peers.names("tokenizer"):
                raise UserError(f"unknown contender {name!r}; there are {', '.join(peers.names('tokenizer'))}")
        for name in self.measures:
            if name not in MEASURES:
                raise UserError(f"unknown measure {name!r}; there are {', '.join(MEASURES)}")
        for flag, value, least in (("threads", self.threads, 2), ("rounds", self.rounds, 1)):
            if value is not None and value < least:
                raise UserError(f"--{flag} {value} must be at least {least}")
        if self.megabytes is not None and not self.megabytes > 0:
            raise UserError(f"--megabytes {self.megabytes} must be above 0")

    @property
    def limit(self) -> int:
        """Return the maximum size of each text in bytes."""
        return int((self.megabytes or (1 if self.quick else 8)) * 1e6)

    @property
    def timed_rounds(self) -> int:
        """Return the number of timed calls per contender."""
        return self.rounds or (3 if self.quick else 5)


def run(options: Options, say: Say, progress: Callable[[int, int, str], None] | None = None) -> list[Row]:
    """Measure. `say` receives lines for the user; `progress` the completed steps, all steps and the next one's name."""
    names = list(options.contenders or peers.names("tokenizer"))
    for name in names:
        module = peers.missing("tokenizer", name)
        if module is not None:
            say(f"{name}: not installed (no module {module}); left out")
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
    selected = [
        workload
        for workload in available
        if not options.workloads or any(part in workload.name for part in options.workloads)
    ]
    if not selected:
        raise UserError(
            f"no workload name contains {' or '.join(options.workloads) or 'that'};"
            f" there are {', '.join(workload.name for workload in available) or 'none'}"
        )
    return selected


def _measure(
    options: Options,
    names: Sequence[str],
    workloads: Sequence[Workload],
    folder: Path,
    say: Say,
    progress: Callable[[int, int, str], None],
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


show = report.show


def publish(rows: Sequence[Row], options: Options, json: Path | None, chart: Path | None) -> None:
    """Write the rows to the requested files."""
    if json is not None:
        packages = (*peers.distributions("tokenizer"), "fastbert-engine")
        records.write(json, records.record("tokenizer", map(asdict, rows), packages))
    if chart is not None:
        installed = records.versions(peers.distributions("tokenizer"))
        shown = (f"{name} {version}" for name, version in installed.items() if name not in ("python", "numpy", "torch"))
        report.chart(chart, rows, title=f"WordPiece tokenizers on {records.machine()['cpu']}\n{', '.join(shown)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 MB of text in all, fewer rounds: under a minute")
    parser.add_argument("--data", type=Path, help="data folder (default: FASTBERT_DATA)")
    parser.add_argument(
        "--python-text", action="store_true", help="use Python's own documentation, not the data folder"
    )
    parser.add_argument("--text", type=Path, help="file with one text per line, instead of the data; needs --vocab")
    parser.add_argument("--vocab", type=Path, help="vocab.txt for --text")
    parser.add_argument("--contenders", nargs="+", default=(), metavar="NAME", help="default: all that are installed")
    parser.add_argument("--measures", nargs="+", default=MEASURES, choices=MEASURES, help="default: all")
    parser.add_argument("--workloads", nargs="+", default=(), metavar="PART", help="only those with this in the name")
    parser.add_argument("--threads", type=int, default=2, help="number of threads to compare with one (default: 2)")
    parser.add_argument("--rounds", type=int, help="timed calls per contender (default: 5, quick 3)")
    parser.add_argument("--megabytes", type=float, help="maximum size of each text in MB (default: 8, quick 1)")
    parser.add_argument(
        "--isolate",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="one process per contender (default: yes)",
    )
    parser.add_argument("--hostile", type=int, help="number of hostile texts (default: 200, quick 26)")
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--chart", type=Path, help="picture to write, .png, .pdf or .svg")
    values = vars(parser.parse_args(arguments))
    json, chart = values.pop("json"), values.pop("chart")
    for name in ("contenders", "measures", "workloads"):
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
