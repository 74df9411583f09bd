"""Measure kernel configurations on the GPU: the table and the rows are on disk after each trial."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from typing import Any

from fastbert.benchmarks.gpu.session import Session

WIDTHS = (64,)  # head dimensions: BERT's
SAVED_SECONDS = 5.0  # of the section: reserved for the end
DRY_TARGET, DRY_REGISTERS = "sm_90", 64


def tune(session: Session, seconds: float) -> dict[str, Any]:
    """Tune for at most `seconds`; the section's result.

    A dry run compiles a few trials for a GPU that is not present, and times their launches on the host.
    """
    if importlib.util.find_spec("triton") is None:
        return {"status": "failed", "reason": "triton is not installed"}
    # Child processes, and the table's path, read the environment.
    os.environ.update(session.environment)
    from fastbert.kernels.tuning import tables
    from fastbert.kernels.tuning import tune as tuning

    tables.saved.cache_clear()
    dry = session.options.dry_run
    result: dict[str, Any] = {"path": "tuning.json", "trials": []}

    def measured(trial: tuning.Measured) -> None:
        row = trial.as_json()
        result["trials"].append(row)
        session.show("tune", result)

    path, _ = tuning.tune_for(
        DRY_TARGET if dry else _target(session),
        "cpu" if dry else "cuda",
        widths=WIDTHS,
        seconds=seconds - SAVED_SECONDS,
        measured=measured,
        select=_few if dry else list,
        log=session.log,
        **({"timer": tuning.time_launches} if dry else {}),
    )
    late = [f"{row['kernel']} {row['shape']}" for row in result["trials"] if row["problem"] == tuning.OUT_OF_TIME]
    problems = sorted({row["problem"] for row in result["trials"] if row["problem"]})
    status = "partial" if late else "ok"
    return {**result, "path": path.name, "out_of_time": late, "problems": problems, "status": status}


def _target(session: Session) -> str:
    """Return the compiler's name of the GPU, as the measuring process found it."""
    environment = session.results["sections"].get("environment", {})
    architecture = environment.get("gpu", {}).get("architecture")
    return str(architecture or session.ask("gpu.device:describe", 90.0)["gpu"]["architecture"])


def _few(trials: list[Any]) -> list[Any]:
    """Return the trials of a dry run, of one shape class: what is in use, a candidate, and one that must spill."""
    present, candidate = trials[:2]
    spilling = replace(candidate, config=replace(present.config, max_registers=DRY_REGISTERS))
    return [present, candidate, spilling]
