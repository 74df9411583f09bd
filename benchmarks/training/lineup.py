"""Measure training: losses and gradients are compared, steps take turns, memory is accounted for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fastbert.benchmarks.cpu.lineup import Lineup, Result, Verdict
from fastbert.benchmarks.cpu.workloads import Workload
from fastbert.benchmarks.harness.measure import ContenderFailed, Row


class Bounds(NamedTuple):
    """The largest differences due to rounding in a dtype: relative in the loss and in the gradient norm, and the
    smallest cosine of sampled gradients."""

    loss: float
    norm: float
    cosine: float


BOUNDS = {"fp32": Bounds(1e-5, 1e-3, 0.9999), "bf16": Bounds(1e-2, 3e-2, 0.99)}


class TrainingLineup(Lineup):
    """The contenders of one workload; if requested, with a profile of each one's step."""

    class_path = "fastbert.benchmarks.training.contender:TrainingContender"
    reports_memory = False  # its parts are reported instead
    profiles = False

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, time, and account for the memory of every contender that can run here."""
        result = super().measure(workload, rounds)
        return Result([self._explained(row) for row in result.rows], result.absent)

    def verdict(self, expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
        return compare(expected, values, dtype, reference)

    def _explained(self, row: Row) -> Row:
        extra: dict[str, Any] = {}
        try:
            memory = self.members[row.contender].call("memory")
            extra |= {"memory": memory} if memory else {}
            if self.profiles:
                extra["profile"] = self.members[row.contender].call("profile", step_ms=row.median_ms)
        except ContenderFailed as error:
            # The times are valid; only the explanation is missing, and reported.
            self.say(f"{row.contender}: {row.workload}: {error}")
            notes = [str(row.details["note"])] if "note" in row.details else []
            extra["note"] = "; ".join([*notes, f"not explained: {error}"])
        return replace(row, details={**row.details, **extra})


def compare(expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
    """Compare two fp64 arrays of loss, gradient norm and sampled gradients."""
    loss, norm = float(values[0]), float(values[1])
    details: dict[str, Any] = {"reference": reference, "loss": _shown(loss), "gradient_norm": _shown(norm)}
    if expected.shape != values.shape:
        return Verdict(f"{len(values)} compared values, not {len(expected)}", float("inf"), details)
    if not np.isfinite(values).all():
        return Verdict("loss or gradients are not finite", float("inf"), {"reference": reference})
    bounds = BOUNDS[dtype]
    off_loss = abs(loss - expected[0]) / max(abs(expected[0]), 1e-30)
    off_norm = abs(norm - expected[1]) / max(abs(expected[1]), 1e-30)
    a, b = expected[2:], values[2:]
    cosine = float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))
    details |= {
        "loss_off": float(f"{off_loss:.3g}"),
        "gradient_norm_off": float(f"{off_norm:.3g}"),
        "smallest_cosine": float(f"{cosine:.7g}"),
        "cosine_bound": bounds.cosine,
    }
    wrong = [
        f"{what} off by {off:.2g}, more than {bound:g}"
        for what, off, bound in (("loss", off_loss, bounds.loss), ("gradient norm", off_norm, bounds.norm))
        if off > bound
    ]
    if cosine < bounds.cosine:
        wrong.append(f"gradient's cosine {cosine:.4g} is below {bounds.cosine}")
    equal = np.array_equal(expected, values)
    outputs = ", ".join(wrong) if wrong else "equal" if equal else "close"
    return Verdict(outputs, float(f"{abs(loss - expected[0]):.3g}"), details)


def _shown(value: float) -> float:
    return float(f"{value:.7g}")
