"""The largest batch of each encoder that fits into memory: from the growth of its peak between two batch sizes.

Nothing is computed near the limit: peak memory is taken as a fixed part and one per sequence, measured with few
sequences.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastbert.benchmarks.cpu import memory_needs
from fastbert.benchmarks.cpu.lineup import Absent, Lineup, Result, dtype_of
from fastbert.benchmarks.cpu.workloads import Workload, batch
from fastbert.benchmarks.harness.measure import ContenderFailed, Row
from fastbert.benchmarks.harness.tables import Column, console_of, print_table
from fastbert.config import BertConfig
from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.benchmarks.cpu.memory_needs import BatchSize

COUNTS = {128: (16, 48), 512: (4, 12)}  # sequences of the two measurements by their length
CALLS = 2  # after the first, whose memory may be less than that of later ones
DETAIL = "largest_batch"
UNRELATED = "its peak memory does not grow with the batch: {0} sequences and {1} need {2:.0f} and {3:.0f} MB"
COLUMNS = (
    Column("contender"),
    Column("largest batch"),
    Column("MB per sequence"),
    Column("fixed MB"),
)


def workloads(config: BertConfig) -> list[Workload]:
    """Return a workload per length, of the larger number of sequences."""
    return [replace(full(length, max(counts), config), name=f"{length} tokens") for length, counts in COUNTS.items()]


def full(length: int, count: int, config: BertConfig) -> Workload:
    """Return a batch of sequences of one length."""
    return batch(f"{count}x{length}", [length] * count, length, config)


def memory_bytes(gigabytes: float | None) -> int:
    """Return the memory to fill: `gigabytes`, else what is available. Raises `UserError` where that is unknown."""
    if gigabytes is not None:
        return round(gigabytes * 1e9)
    free = memory_needs.available()
    if free is None:
        raise UserError("--largest-batch: this system does not tell how much memory is available; give --memory-gb")
    return free


def fitted(counts: Sequence[int], peaks: Sequence[int], memory: int) -> dict[str, Any] | None:
    """Return the largest batch that fits into `memory` bytes, the bytes per sequence, and the fixed megabytes, of peak
    memory in two batch sizes; None if it does not grow."""
    growth = (peaks[1] - peaks[0]) / (counts[1] - counts[0])
    if growth <= 0:
        return None
    fixed = peaks[0] - growth * counts[0]
    return {
        DETAIL: max(0, int((memory - fixed) // growth)),
        "bytes_per_sequence": round(growth),
        "fixed_megabytes": round(fixed / 1e6, 1),
        "memory_gigabytes": round(memory / 1e9, 2),
    }


class MemoryLineup(Lineup):
    """The encoders that take part, each in two batch sizes, one process at a time."""

    def __init__(self, *arguments: Any, memory: int, config: BertConfig, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.memory = memory
        self.config = config

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Measure peak memory of every contender that can run here."""
        length = int(workload.arrays["padded_to"])
        self.say(f"{workload.name}: what fits into {memory_needs.gigabytes(self.memory)}")
        rows = []
        for name in self.names:
            row = self._row(name, workload.name, length)
            rows += [] if row is None else [row]
            if name in self.members:
                self.members.pop(name).close()  # its allocator would keep the memory of this length
        measured = {row.contender for row in rows}
        absent = [
            Absent(workload.name, name, dtype_of(self.kind, name), self._reason(workload.name, name))
            for name in self.names
            if name not in measured
        ]
        return Result(rows, absent)

    def _reason(self, workload: str, name: str) -> str:
        return self.failures.get((workload, name)) or self.reasons[name]

    def _row(self, name: str, workload: str, length: int) -> Row | None:
        peaks, milliseconds = [], 0.0
        counts = COUNTS[length]
        for count in counts:
            work, path = full(length, count, self.config), self.folder / "workload.npz"
            work.save(path)
            self.size: BatchSize | None = work.size
            if self._open(name, path, workload) is None:
                return None
            try:
                times = [self.members[name].call("time")[0] for _ in range(CALLS)]
                peak = self.members[name].call("peak_memory")
            except ContenderFailed as error:
                self._drop(name, workload, error)
                return None
            if peak is None:
                self._drop(name, workload, ContenderFailed("this system does not tell the peak memory of a process"))
                return None
            peaks.append(peak)
            milliseconds = statistics.median(times) * 1e3
        details = fitted(counts, peaks, self.memory)
        if details is None:
            reason = UNRELATED.format(*counts, *(peak / 1e6 for peak in peaks))
            self._drop(name, workload, ContenderFailed(reason))
            return None
        tokens = length * max(counts)
        shown = float(f"{milliseconds:.5g}")
        return Row(
            workload=workload,
            contender=name,
            median_ms=shown,
            p20=shown,
            p80=shown,
            tokens_per_second=float(f"{tokens / (milliseconds / 1e3):.5g}"),
            ratio_to_fastbert=None,
            max_abs_difference=0.0,
            outputs="not compared",
            dtype=dtype_of(self.kind, name),
            threads=self.threads,
            details={**details, "workload": f"largest batch in {memory_needs.gigabytes(self.memory)}"},
        )


def record_rows(result: Result) -> list[dict[str, Any]]:
    """Return an object per contender and length for a record, without the time, which is no benchmark of speed."""
    measured = [
        {
            "workload": row.workload,
            "contender": row.contender,
            "dtype": row.dtype,
            "threads": row.threads,
            DETAIL: row.details[DETAIL],
            "megabytes_per_sequence": round(row.details["bytes_per_sequence"] / 1e6, 3),
            "fixed_megabytes": row.details["fixed_megabytes"],
            "details": row.details,
        }
        for row in result.rows
    ]
    return measured + [
        {
            "workload": absent.workload,
            "contender": absent.contender,
            "dtype": absent.dtype,
            "outputs": "not measured",
            "details": {"reason": absent.reason},
        }
        for absent in result.absent
    ]


def show(result: Result, console: Any = None) -> None:
    """Print a table per length, the largest batch first."""
    console = console_of(console)
    for workload in dict.fromkeys(row.workload for row in result.rows):
        rows = [row for row in result.rows if row.workload == workload]
        rows.sort(key=lambda row: -row.details[DETAIL])
        console.print(f"sequences of {workload}: {rows[0].details['workload']}", style="bold", markup=False)
        cells = [
            (
                row.contender,
                f"{row.details[DETAIL]:,}",
                f"{row.details['bytes_per_sequence'] / 1e6:,.2f}",
                f"{row.details['fixed_megabytes']:,.0f}",
            )
            for row in rows
        ]
        print_table(console, COLUMNS, [(line, "") for line in cells])
        console.print()
    for absent in result.absent:
        console.print(
            f"{absent.contender} ({absent.workload}): not measured: {absent.reason}", markup=False, soft_wrap=True
        )
