"""The scorecard: 21 promises of reliability and security, and the checks that hold fastbert to them.

A check is a test that is decorated with `scored` and takes the fixture `campaign`, through which it runs in a short
form (always) or in parts of a full form (`--full`), which the ledger counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

PROMISES = {
    1: "Token ids equal those of the reference tokenizers",
    2: "So do all options of a call",
    3: "No input crashes a parser or a tokenizer",
    4: "No input is slow",
    5: "Threads and forks are safe",
    6: "Runs survive kill -9",
    7: "Files survive failing disks and power cuts",
    8: "Every corruption is noticed",
    9: "Resumed runs equal uninterrupted ones",
    10: "Data do not depend on the number of processes and workers",
    11: "Runs survive preemption",
    12: "A background save is a snapshot",
    13: "No weight is poisoned by NaN or Inf",
    14: "Kernels are right",
    15: "Kernels are stable",
    16: "Kernels stay in bounds",
    17: "Data cannot run code",
    18: "No path leads out of a folder",
    19: "A model is used with its own vocabulary",
    20: "Long runs stay flat",
    21: "Quality is kept",
}


@dataclass(frozen=True)
class Check:
    """What a test tries: `short` units in every run of the tests, `full` ones in all, `chunk` at a time."""

    name: str
    row: int
    unit: str
    short: int
    full: int
    chunk: int
    goal: str
    module: str
    summary: str = ""


CHECKS: dict[str, Check] = {}
# Sections of benchmarks/gpu.py that hold for GPUs what the row's checks hold for processors.
SANITIZERS = "`benchmarks/gpu.py sanitize`, unmeasured"
ON_GPUS: dict[int, str] = {9: SANITIZERS, 14: SANITIZERS, 15: SANITIZERS, 16: SANITIZERS}


def scored(
    *, row: int, unit: str, short: int, full: int, goal: str, chunk: int | None = None
) -> Callable[[Callable[..., None]], Any]:
    """Register a test as the check of a row: `unit` is the plural of what it counts, `goal` what must hold.

    `chunk` units, by default a twentieth of the full form, are tried between two entries in the ledger.
    """
    assert row in PROMISES, f"the scorecard has no row {row}"
    assert 0 < short <= full, f"short form of {short}, full form of {full}"

    def decorate(test: Callable[..., None]) -> Any:
        name, module = test.__name__.removeprefix("test_"), test.__module__.rpartition(".")[2]
        summary = " ".join((test.__doc__ or "").split())
        check = Check(name, row, unit, short, full, chunk or max(1, full // 20), goal, module, summary)
        assert CHECKS.setdefault(name, check).module == module, f"two checks are called {name}"
        CHECKS[name] = check
        return pytest.mark.scored(name)(test)

    return decorate
