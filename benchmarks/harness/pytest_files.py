"""Files of pytest-benchmark (`--benchmark-json`) as records, with the fields that `benchmarks/conftest.py` adds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from fastbert.benchmarks.harness.records import SCHEMA_VERSION

MACHINE = "fastbert"  # the field of pytest-benchmark's `machine_info` with the machine and the versions of a record
IQR_TO_FIFTHS = 0.8416 / 0.6745  # of a normal distribution: the 80th percentile relative to the 75th


def is_pytest_benchmark(content: Any) -> bool:
    """Return whether a JSON value is a file of pytest-benchmark."""
    return isinstance(content, dict) and "machine_info" in content and isinstance(content.get("benchmarks"), list)


def from_pytest_benchmark(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of the tests in `benchmarks/`, each row with its benchmark."""
    about = content["machine_info"].get(MACHINE, {})
    rows = [_row(test) for test in content["benchmarks"] if "workload" in test.get("extra_info", {})]
    return {
        "schema": SCHEMA_VERSION,
        "benchmark": "pytest",
        "machine": about.get("machine"),
        "versions": about.get("versions", {}),
        "commit": rows[0]["commit"] if rows else None,
        "rows": rows,
    }


def _row(test: Mapping[str, Any]) -> dict[str, Any]:
    stats, extra = test["stats"], dict(test["extra_info"])
    median = stats["median"]
    seconds = stats.get("data") or []
    if len(seconds) > 1:
        fifths = statistics.quantiles(seconds, n=5, method="inclusive")
        low, high = fifths[0], fifths[-1]
    else:  # without --benchmark-save-data only quartiles are kept
        low, high = (median + (stats[name] - median) * IQR_TO_FIFTHS for name in ("q1", "q3"))
    details = {**extra.pop("details", {}), "rounds": stats["rounds"]}
    return {
        **extra,
        "median_ms": median * 1e3,
        "p20": max(low, 1e-9) * 1e3,
        "p80": max(high, 1e-9) * 1e3,
        "outputs": "not compared",
        "details": details,
    }
