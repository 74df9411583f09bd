"""What the page shows of a record: fastbert's rows, the best peer beside each, and the limit of the same run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastbert.benchmarks.harness import records
from fastbert.benchmarks.harness.measure import AGREEING, FASTBERT

CLASSES = tuple(name for _, name in records.CPU_CLASSES)
DTYPES = ("fp32", "bf16", "fp16", "int8")  # of computations; those of ids differ by library and mean nothing
ACCELERATED = "accelerated"
NOT_MEASURED = "not measured"
_OWN = {("prepare", "1 worker")}  # fastbert's contenders without its name in theirs
# Matrices of BERT-base's 12 layers, which a pass over one short sequence has to read whole.
_WEIGHTS = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
_WIDTHS = {"fp32": 4, "bf16": 2, "int8": 1}

Row = Mapping[str, Any]
Record = Mapping[str, Any]
Records = Mapping[str, Mapping[str, Record]]
"""Records by benchmark and class."""


class Comparison(NamedTuple):
    """A row of fastbert, and the fastest peers whose outputs agree: of the same dtype, and of any."""

    row: Row
    same: Row | None
    best: Row | None


def read(results: Path) -> dict[str, dict[str, Record]]:
    """Return the records of classes of processors in a folder, by benchmark and class, both in order."""
    found: dict[str, dict[str, Record]] = {}
    for folder in sorted(path for path in results.iterdir() if path.is_dir()):
        paths = {name: folder / f"{name}.json" for name in CLASSES}
        present = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.is_file()}
        if present:
            found[folder.name] = present
    return found


def is_timed(row: Row) -> bool:
    """Return whether a row is a contender's time with its spread, as the harness measures it."""
    return all(name in row for name in ("contender", "median_ms", "p20", "p80", "outputs"))


def is_own(benchmark: str, contender: str) -> bool:
    """Return whether a contender is fastbert, in whatever form."""
    return FASTBERT in contender or contender.startswith(ACCELERATED) or (benchmark, contender) in _OWN


def workloads(by_class: Mapping[str, Record]) -> list[str]:
    """Return the workloads of a benchmark over all classes, in the order of the records."""
    return list(dict.fromkeys(row["workload"] for record in by_class.values() for row in record["rows"]))


def compare(benchmark: str, record: Record, workload: str, *, accelerated: bool = False) -> list[Comparison]:
    """Return fastbert's rows of a workload, narrower dtypes last, beside the best peers.

    `accelerated` selects the models of transformers with fastbert's kernels instead, beside transformers alone.
    """
    rows = [row for row in record["rows"] if row["workload"] == workload and is_timed(row) and row["median_ms"]]
    of_fastbert = [row for row in rows if is_own(benchmark, row["contender"])]
    of_fastbert = [row for row in of_fastbert if row["contender"].startswith(ACCELERATED) == accelerated]
    others = [row for row in rows if not is_own(benchmark, row["contender"]) and agrees(row)]
    if accelerated:
        others = [row for row in others if row["contender"].startswith("transformers")]
    of_fastbert.sort(key=lambda row: DTYPES.index(row["dtype"]) if row["dtype"] in DTYPES else 0)
    return [
        Comparison(row, fastest(peer for peer in others if peer["dtype"] == row["dtype"]), fastest(others))
        for row in of_fastbert
    ]


def agrees(row: Row) -> bool:
    """Return whether the outputs of a row agree with the reference, as far as they were compared."""
    return row["outputs"] in AGREEING


def fastest(rows: Iterable[Row]) -> Row | None:
    """Return the row with the least time; None without rows."""
    return min(rows, key=lambda row: float(row["median_ms"]), default=None)


def ratio(row: Row, peer: Row | None) -> float | None:
    """Return the time of a peer relative to that of a row: above 1 the row is faster."""
    return None if peer is None else float(peer["median_ms"]) / float(row["median_ms"])


def leading(comparisons: Sequence[Comparison]) -> Comparison | None:
    """Return fastbert's fastest row whose outputs agree."""
    agreeing = [comparison for comparison in comparisons if agrees(comparison.row)]
    return min(agreeing, key=lambda comparison: float(comparison.row["median_ms"]), default=None)


def share_of_copy(row: Row) -> float | None:
    """Return the rate at which a pass over one sequence has read BERT-base's weights, relative to a copy of the same
    run; None for other rows."""
    copied, width = row.get("details", {}).get("copy_gigabytes_per_second"), _WIDTHS.get(row.get("dtype", ""))
    if not copied or not width or not row["workload"].startswith("latency-"):
        return None
    return _WEIGHTS * width / (row["median_ms"] / 1e3) / (copied * 1e9)


def share_of_peak(row: Row) -> float | None:
    """Return the share of the matmul peak that was measured in the same run; None without one."""
    share = row.get("details", {}).get("share_of_peak")
    return None if share is None else float(share)


def is_timed_or_absent(row: Row) -> bool:
    """Return whether a row is a contender's, measured or with the reason why not."""
    return "contender" in row and "outputs" in row
