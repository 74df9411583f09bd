"""Write the measured figures of docs/migration from the records in benchmarks/results, or check that they are theirs.

    python benchmarks/migration_pages.py
    python benchmarks/migration_pages.py --check

In a page, the lines between `<!-- measured -->` and `<!-- end -->` are its tables; in README.md, the last cell of the
row that links to a page is its summary. Run it after a change of a record that `PAGES` names.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.performance import figures
from fastbert.benchmarks.performance.figures import CLASSES, Records, Row, agrees, fastest
from fastbert.benchmarks.performance.markdown import number, table
from fastbert.io.atomic_write import write_atomic

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "docs/migration"
INDEX = "README.md"
BLOCK = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
DTYPES = ("fp32", "bf16", "int8")
OWN, ACCELERATED = "fastbert", "accelerated"


class Shown(NamedTuple):
    """Workloads of a record, the contenders of the other library, and the name in front of ours."""

    benchmark: str
    workloads: tuple[tuple[str, str], ...]
    """Names in the record and on the page."""
    theirs: tuple[str, ...]
    ours: str = OWN

    @property
    def titles(self) -> tuple[str, ...]:
        """Return the names of the workloads on the page."""
        return tuple(title for _, title in self.workloads)


class Line(NamedTuple):
    """A line of a table: one contender on one workload of one class, and our rows of the same run by dtype."""

    benchmark: str
    machine_class: str
    workload: str
    theirs: Row
    ours: dict[str, Row]

    @property
    def place(self) -> tuple[str, str, str]:
        """Return what was timed, in which run."""
        return self.benchmark, self.machine_class, self.workload


BATCHES = (
    ("lognormal", "32 texts of mixed lengths, padded to 128"),
    ("full-128", "32 texts of 128 tokens"),
    ("latency-16", "one text of 16 tokens"),
)
SENTENCES = (("wiki-en sentences", "sentences of Wikipedia"), ("query", "one query, one thread"))
TRAINED = (("wiki-en", "pre-training, base, sentences"), ("finetune", "fine-tuning, MiniLM, sentences"))
PAIRS = (("100 pairs, mixed lengths", "ranking 100 texts of mixed lengths"),)
SERVED = (("single", "requests of one sentence"),)


def _within(kind: str, workloads: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return workloads as the record of `bench_migration` names them."""
    return tuple((f"{kind}, {name}", title) for name, title in workloads)


def _both(name: str, *dtypes: str, suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{name} {dtype}{suffix}" for dtype in dtypes)


_TRANSFORMERS = _both("transformers sdpa", "fp32", "bf16")
_SENTENCES = _both("sentence-transformers", "fp32", "bf16", suffix=" by 32")
_INFINITY = (*_both("infinity torch", "fp32", "bf16", suffix=" by 32"), "infinity onnxruntime fp32 by 32")
PAGES: dict[str, tuple[Shown, ...]] = {
    "transformers": (
        Shown("encoder", BATCHES, _TRANSFORMERS),
        Shown("encoder", BATCHES, _TRANSFORMERS, ACCELERATED),
        Shown("training", TRAINED, _both("transformers", "fp32", "bf16")),
    ),
    "sentence-transformers": (
        Shown("embed", SENTENCES, _SENTENCES),
        Shown("migration", _within("embed", SENTENCES), _SENTENCES),
        Shown("rerank", PAIRS, ("sentence-transformers fp32 by 8", "sentence-transformers bf16 by 32")),
    ),
    "text-embeddings-inference": (),
    "infinity": (
        Shown(
            "serving",
            SERVED,
            (
                *("infinity torch fp32", "infinity torch fp32, bettertransformer", "infinity torch bf16"),
                *("infinity onnx fp32", "infinity onnx int8"),
            ),
        ),
        Shown("migration", _within("embed", SENTENCES), _INFINITY),
    ),
    "bettertransformer": (
        Shown("migration", _within("encoder", BATCHES), _both("bettertransformer", "fp32", "bf16")),
        Shown("migration", _within("encoder", BATCHES), _both("bettertransformer", "fp32", "bf16"), ACCELERATED),
        Shown("serving", SERVED, ("infinity torch fp32, bettertransformer",)),
    ),
    "ipex": (
        Shown("migration", _within("encoder", BATCHES), _both("ipex", "fp32", "bf16")),
        Shown("migration", _within("encoder", BATCHES), _both("ipex", "fp32", "bf16"), ACCELERATED),
    ),
    "ctranslate2": (Shown("encoder", BATCHES, _both("ctranslate2", "fp32", "int8")),),
}
UNMEASURED = "not measured"


def lines(shown: Shown, everything: Records) -> Iterator[Line]:
    """Return the lines of a table: by class, workload and contender, those that were measured."""
    by_class = everything.get(shown.benchmark, {})
    for machine_class in [name for name in CLASSES if name in by_class]:
        rows = {
            (row["workload"], row["contender"]): row
            for row in by_class[machine_class]["rows"]
            if figures.is_timed(row) and row["median_ms"]
        }
        for workload, title in shown.workloads:
            ours = {dtype: rows.get((workload, f"{shown.ours} {dtype}")) for dtype in DTYPES}
            measured = {dtype: row for dtype, row in ours.items() if row is not None and agrees(row)}
            for name in shown.theirs:
                if measured and (workload, name) in rows:
                    yield Line(shown.benchmark, machine_class, title, rows[workload, name], measured)


def section(shown: Sequence[Shown], everything: Records) -> list[str]:
    """Return the tables of a page."""
    written: list[str] = []
    for one in shown:
        cells = [
            [
                f"[{line.machine_class}](../../{records.RESULTS}/{line.benchmark}/{line.machine_class}.json)",
                line.workload,
                _contender(line.theirs),
                f"{number(line.theirs['median_ms'])} ms",
                *(_times(line.ours.get(dtype), line.theirs) for dtype in DTYPES),
            ]
            for line in lines(one, everything)
        ]
        if cells:
            ours = "accelerated" if one.ours == ACCELERATED else "fastbert"
            header = ["processor", "workload", "beside", "takes", *(f"{ours} {dtype}" for dtype in DTYPES)]
            written += table(header, cells, drop_empty=True)
    return written or [f"There is no record of this comparison: {UNMEASURED}.", ""]


def summary(shown: Sequence[Shown], everything: Records) -> str:
    """Return the range of the ratios of a page's first comparison that was measured, with all that time the same: in
    fp32, and of either library's fastest dtype whose outputs agree."""
    first = next((one for one in shown if any(lines(one, everything))), None)
    if first is None:
        return UNMEASURED
    alike = [one for one in shown if (one.titles, one.ours) == (first.titles, first.ours)]
    measured = [line for one in alike for line in lines(one, everything)]
    plain = [
        _ratio(line.ours["fp32"], line.theirs)
        for line in measured
        if line.theirs["dtype"] == "fp32" and "fp32" in line.ours
    ]
    best = []
    for place in dict.fromkeys(line.place for line in measured):
        here = [line for line in measured if line.place == place]
        theirs = fastest(line.theirs for line in here if agrees(line.theirs))
        ours = fastest(here[0].ours.values())
        best += [] if theirs is None or ours is None else [_ratio(ours, theirs)]
    classes = {line.machine_class for line in measured}
    names = ", ".join(name for name in CLASSES if name in classes)
    ranges = (("fp32", plain), ("fastest dtypes", best))
    return "; ".join(f"{what} {_range(values)}" for what, values in ranges if values) + f" ({names})"


def _headline(shown: Sequence[Shown], everything: Records) -> list[str]:
    text = summary(shown, everything)
    return [] if text == UNMEASURED else [f"In short: {text}.", ""]


def _contender(row: Row) -> str:
    return row["contender"] if agrees(row) else f"{row['contender']} ({row['outputs']})"


def _times(own: Row | None, theirs: Row) -> str:
    return "" if own is None else f"{_factor(_ratio(own, theirs))}x"


def _ratio(own: Row, theirs: Row) -> float:
    return float(theirs["median_ms"]) / float(own["median_ms"])


def _factor(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _range(values: Sequence[float]) -> str:
    low, high = _factor(min(values)), _factor(max(values))
    return f"{low}x" if low == high else f"{low} to {high}x"


def rendered(folder: Path, everything: Records) -> dict[Path, str]:
    """Return the text that each page should have."""
    index = (folder / INDEX).read_text(encoding="utf-8")
    pages = {}
    for name, shown in PAGES.items():
        path = folder / f"{name}.md"
        block = "\n".join(["", *_headline(shown, everything), *section(shown, everything)])
        pages[path] = BLOCK.sub(lambda match, block=block: f"{match[1]}{block}{match[2]}", path.read_text("utf-8"))
        row = re.compile(rf"^(\|.*\]\({re.escape(path.name)}\).*\| )[^|\n]*\|$", re.MULTILINE)
        index = row.sub(lambda match, shown=shown: f"{match[1]}{summary(shown, everything)} |", index)
    return {**pages, folder / INDEX: index}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code: 1 if a page that was checked is not that of the records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page would change")
    options = parser.parse_args(arguments)
    folder = ROOT / FOLDER
    if not folder.is_dir():
        parser.error(f"{folder} is missing: the pages belong to a source tree, and this copy is installed")
    pages = rendered(folder, figures.read(ROOT / records.RESULTS))
    changed = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in changed:
            print(f"{path} differs from the records: run python benchmarks/migration_pages.py", file=sys.stderr)
        return 1 if changed else 0
    for path in changed:
        write_atomic(path, pages[path])
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
