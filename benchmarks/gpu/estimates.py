"""Predict the steps of base on a GPU by arithmetic, and compare predictions with measurements.

Parts of a step are sums of measured cases, each times the layers of base and, for attention, the share of heads: cases
have 16 heads, base 12.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastbert.benchmarks.gpu.judging import OURS, fastest

LAYERS, HEADS = 12, 12 / 16
EXPLAINED_ABOVE = 0.2  # a deviation that needs an explanation


@dataclass(frozen=True)
class Estimate:
    """Milliseconds of a step's part on a GPU, and the cases whose times add up to it, each with its factor."""

    name: str
    gpu: str
    """A part of the GPU's name."""
    milliseconds: float
    cases: tuple[tuple[float, str], ...]

    def measured(self, rows: Iterable[Mapping[str, Any]]) -> float | None:
        """Return the measured milliseconds; None if a case is missing."""
        listed, total = list(rows), 0.0
        for factor, workload in self.cases:
            row = fastest([each for each in listed if each["workload"] == workload], OURS)
            if row is None:
                return None
            total += factor * float(row["median_ms"])
        return total

    def deviation(self, rows: Iterable[Mapping[str, Any]]) -> float | None:
        """Return by how much the measurement exceeds the estimate, relative to it; negative if it is below."""
        measured = self.measured(rows)
        return None if measured is None else measured / self.milliseconds - 1


def _attention(length: int) -> tuple[tuple[float, str], ...]:
    directions = ("forward", "backward")
    return tuple((LAYERS * HEADS, f"attention {each} {length} full dropout 0.1") for each in directions)


def _passes(operation: str, times: int) -> tuple[tuple[float, str], ...]:
    return tuple((float(times * LAYERS), f"{operation} {each} 768") for each in ("forward", "backward"))


ESTIMATES = (
    Estimate("a step at 128", "H100", 41.0, ((1.0, "pretraining base 128 full"),)),
    Estimate("a step at 512", "H100", 49.0, ((1.0, "pretraining base 512 full"),)),
    Estimate("attention at 128", "H100", 4.0, _attention(128)),
    Estimate("attention at 512", "H100", 11.7, _attention(512)),
    Estimate("matmuls with GELU", "H100", 7.4, _passes("linear_gelu", 1)),
    Estimate("dropout, residual, LayerNorm", "H100", 3.9, _passes("dropout_add_layer_norm", 2)),
    Estimate("a step at 128", "H200", 37.0, ((1.0, "pretraining base 128 full"),)),
)
