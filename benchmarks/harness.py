"""Measuring: outputs are compared first, contenders take turns, and every result says where it was measured."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from fastbert.doctor import examine

PACKAGES = ("fastbert-engine", "torch", "triton", "transformers", "numpy")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contender on one workload: milliseconds a call, and tokens a second at the median."""

    workload: str
    contender: str
    median_ms: float
    p20: float
    p80: float
    tokens_per_second: float
    ratio_to_fastbert: float
    max_abs_difference: float
    dtype: str
    threads: int


def warm(functions: list[Callable[[], Any]], *, agreement: float = 0.05, most: int = 10) -> None:
    """Call every function until two rounds in a row take the same time within `agreement`, at most `most` rounds."""
    before: list[float] | None = None
    for _ in range(most):
        now = [clock(function) for function in functions]
        if before and all(abs(a - b) <= agreement * a for a, b in zip(before, now)):
            return
        before = now


def clock(function: Callable[[], Any]) -> float:
    """Seconds of one call, the device's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def interleave(contenders: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of `rounds` calls of each contender, A B A B, after warming."""
    warm(list(contenders.values()))
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            seconds[name].append(clock(function))
    return seconds


def rows(
    workload: str, seconds: dict[str, list[float]], *, tokens: int, differences: dict[str, float], dtype: str
) -> list[Row]:
    """The table of one workload; ratios are to the contender called fastbert, above 1 where that one is faster."""
    own = statistics.median(seconds["fastbert"])
    table = []
    for name, values in seconds.items():
        fifths = statistics.quantiles(values, n=5) if len(values) > 1 else [values[0]] * 4
        median = statistics.median(values)
        table.append(
            Row(
                workload=workload,
                contender=name,
                median_ms=round(median * 1e3, 2),
                p20=round(fifths[0] * 1e3, 2),
                p80=round(fifths[-1] * 1e3, 2),
                tokens_per_second=round(tokens / median, 1),
                ratio_to_fastbert=round(median / own, 3),
                max_abs_difference=differences.get(name, 0.0),
                dtype=dtype,
                threads=torch.get_num_threads(),
            )
        )
    return table


def machine() -> dict[str, Any]:
    """Where a measurement was made: processor, GPU, versions and the commit of the project's tree."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    commit = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return {
        "cpu": processor(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit or None,
    }


def processor() -> str:
    """The processor's name and number of cores as the system tells them."""
    cpu = examine().cpu
    return f"{cpu.model}, {os.cpu_count()} logical cores"


def write(path: Path, table: list[Row]) -> None:
    """Write rows as JSON, each with the machine it was measured on."""
    here = machine()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{**asdict(row), "machine": here} for row in table], indent=1) + "\n", encoding="utf-8")


def show(table: list[Row]) -> None:
    """Print rows as a table."""
    print(
        f"{'workload':<34}{'contender':<26}{'ms':>10}{'p20':>10}{'p80':>10}{'tokens/s':>12}{'x fastbert':>12}"
        f"{'max diff':>11}"
    )
    for row in table:
        print(
            f"{row.workload:<34}{row.contender:<26}{row.median_ms:>10.1f}{row.p20:>10.1f}{row.p80:>10.1f}"
            f"{row.tokens_per_second:>12,.0f}{row.ratio_to_fastbert:>12.2f}{row.max_abs_difference:>11.1e}"
        )
