"""Measure native matmuls against PyTorch's on this CPU, and save which is faster: `fastbert doctor --tune`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert import cpu_capability, tuning_tables
from fastbert.ops.native import matmul, matmul_table

WIDTHS = (384, 768, 1024)  # of MiniLM, and of BERT's base and large
ROWS = (*matmul_table.ROWS, 4096)  # one of each class
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ROUNDS = 7
SECONDS = 0.02  # the minimum time of a round
MARGIN = 0.97  # of the default's time: the most that another choice may take to replace it


class Trial(NamedTuple):
    """The seconds of x (rows, depth) times a weight (columns, depth), natively and by PyTorch."""

    element: str
    rows: int
    columns: int
    depth: int
    native: float
    torch: float

    @property
    def choice(self) -> str:
        """The faster one; the default where they are about equal."""
        default = matmul_table.DEFAULTS[cpu_capability.current()][self.element]
        times = {matmul_table.NATIVE: self.native, matmul_table.TORCH: self.torch}
        other = matmul_table.TORCH if default == matmul_table.NATIVE else matmul_table.NATIVE
        return other if times[other] < MARGIN * times[default] else default


def measure(element: str, rows: int, columns: int, depth: int) -> Trial:
    """Time both in turns on random numbers, because processors run faster on zeros."""
    generator = torch.Generator().manual_seed(rows + columns + depth)
    x, weight = (torch.randn(n, depth, generator=generator).to(DTYPES[element]) for n in (rows, columns))
    packed = matmul.prepack(weight, element)
    with torch.inference_mode():
        contenders: tuple[Callable[[], Tensor], ...] = (
            lambda: matmul.matmul(x, packed),
            lambda: F.linear(x, weight),
        )
        times = _interleaved(contenders)
    return Trial(element, rows, columns, depth, *times)


def _interleaved(contenders: tuple[Callable[[], Any], ...]) -> list[float]:
    """Return the median seconds of each contender, called in turns."""
    calls = []
    for contender in contenders:
        contender()
        began = time.perf_counter()
        contender()
        calls.append(max(1, round(SECONDS / max(time.perf_counter() - began, 1e-9))))
    rounds: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for contender, count, times in zip(contenders, calls, rounds, strict=True):
            began = time.perf_counter()
            for _ in range(count):
                contender()
            times.append((time.perf_counter() - began) / count)
    return [statistics.median(times) for times in rounds]


def run(
    report: Callable[[int, int, str], None] = lambda done, total, text: None, *, widths: tuple[int, ...] = WIDTHS
) -> tuple[Path, list[Trial]]:
    """Measure all shapes, save the table for this CPU at its level, and return its path and the trials."""
    level, path = cpu_capability.current(), matmul_table.saved_path()
    tuning_tables.require_writable(path)
    shapes = [shape for width in widths for shape in matmul_table.layer_shapes(width, 4 * width)]
    pending = [(element, rows, *shape) for element in DTYPES for shape in shapes for rows in ROWS]
    trials = []
    for done, (element, rows, columns, depth) in enumerate(pending):
        report(done, len(pending), f"{element} {rows} x {depth} x {columns}")
        trials.append(measure(element, rows, columns, depth))
    choices = {
        matmul_table.entry_name(t.element, matmul_table.row_class(t.rows), t.columns, t.depth): t.choice for t in trials
    }
    matmul_table.save(path, matmul_table.cpu_key(level), choices)
    report(len(pending), len(pending), "done")
    return path, trials
