"""Measure our products beside the library's on this CPU, and save which is faster: `fastbert doctor --tune`."""

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
SECONDS = 0.02  # a round's least time
MARGIN = 0.97  # of the other's time: what a choice must take at most to replace the shipped one


class Trial(NamedTuple):
    """x (rows, depth) times a weight (columns, depth), in seconds of ours and of the library's."""

    element: str
    rows: int
    columns: int
    depth: int
    own: float
    library: float

    @property
    def choice(self) -> str:
        """The faster one; the shipped choice where they are about the same."""
        shipped = matmul_table.SHIPPED[cpu_capability.level()][self.element]
        times = {matmul_table.OWN: self.own, matmul_table.LIBRARY: self.library}
        other = matmul_table.LIBRARY if shipped == matmul_table.OWN else matmul_table.OWN
        return other if times[other] < MARGIN * times[shipped] else shipped


def measure(element: str, rows: int, columns: int, depth: int) -> Trial:
    """Time both, in turns, on random numbers: chips run faster on zeros."""
    generator = torch.Generator().manual_seed(rows + columns + depth)
    x, weight = (torch.randn(n, depth, generator=generator).to(DTYPES[element]) for n in (rows, columns))
    packed = matmul.pack(weight, element)
    with torch.inference_mode():
        contenders: tuple[Callable[[], Tensor], ...] = (
            lambda: matmul.product(x, packed),
            lambda: F.linear(x, weight),
        )
        times = _interleaved(contenders)
    return Trial(element, rows, columns, depth, *times)


def _interleaved(contenders: tuple[Callable[[], Any], ...]) -> list[float]:
    """The median seconds of each, called in turns."""
    calls = []
    for contender in contenders:
        contender()
        began = time.perf_counter()
        contender()
        calls.append(max(1, round(SECONDS / max(time.perf_counter() - began, 1e-9))))
    found: list[list[float]] = [[] for _ in contenders]
    for _ in range(ROUNDS):
        for contender, count, times in zip(contenders, calls, found, strict=True):
            began = time.perf_counter()
            for _ in range(count):
                contender()
            times.append((time.perf_counter() - began) / count)
    return [statistics.median(times) for times in found]


def run(
    report: Callable[[int, int, str], None] = lambda done, total, text: None, *, widths: tuple[int, ...] = WIDTHS
) -> tuple[Path, list[Trial]]:
    """Try everything, save the table for this CPU at its level, and return where it lies and what was measured."""
    level, path = cpu_capability.level(), matmul_table.saved_path()
    tuning_tables.require_writable(path)
    shapes = [shape for width in widths for shape in matmul_table.layer_shapes(width, 4 * width)]
    todo = [(element, rows, *shape) for element in DTYPES for shape in shapes for rows in ROWS]
    trials = []
    for done, (element, rows, columns, depth) in enumerate(todo):
        report(done, len(todo), f"{element} {rows} x {depth} x {columns}")
        trials.append(measure(element, rows, columns, depth))
    choices = {
        matmul_table.entry(t.element, matmul_table.row_class(t.rows), t.columns, t.depth): t.choice for t in trials
    }
    matmul_table.save(path, matmul_table.processor(level), choices)
    report(len(todo), len(todo), "done")
    return path, trials
