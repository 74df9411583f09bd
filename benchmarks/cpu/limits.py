"""The figures of a row beside what limits them: the peak of its dtype, and a model of the time of a forward pass.

The model adds three times: of matmuls at the peak of their dtype, of attention at the peak of its own, and of the bytes
that must move at the bandwidth of a copy, all measured in the same run. docs/benchmarks.md states its terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fastbert.benchmarks.cpu import peak
from fastbert.benchmarks.cpu.workloads import ForwardWork, Workload
from fastbert.benchmarks.harness.measure import Row

Peaks = Mapping[str, tuple[float, str]]


class ModelDtypes(NamedTuple):
    """How fastbert computes a model in a dtype: the dtypes of matmuls and attention, and the bytes of an element."""

    matmuls: str
    attention: str
    weight_bytes: int
    activation_bytes: int


# An int8 model keeps its activations in bf16, between matmuls and in attention.
DTYPES = {
    "fp32": ModelDtypes("fp32", "fp32", 4, 4),
    "bf16": ModelDtypes("bf16", "bf16", 2, 2),
    "int8": ModelDtypes("int8", "bf16", 1, 2),
}


def with_work(row: Row, workload: Workload, peaks: Peaks, details: Mapping[str, Any], more: Mapping[str, Any]) -> Row:
    """Return the row with its rate of useful work, beside the peak of the machine, and with further details."""
    rate = workload.operations / (row.median_ms / 1e3)
    merged: dict[str, Any] = {**row.details, **details, **more, "gflops": float(f"{rate / 1e9:.4g}")}
    notes = [str(part["note"]) for part in (row.details, details) if "note" in part]
    if workload.note:
        merged["workload"] = workload.note
    if notes:
        merged["note"] = "; ".join(notes)
    if row.dtype in peaks:
        limit, source = peaks[row.dtype]
        merged |= {"share_of_peak": round(rate / limit, 4), "peak_gflops": float(f"{limit / 1e9:.4g}")}
        merged["peak_source"] = source
    if peak.COPY in peaks:
        merged["copy_gigabytes_per_second"] = float(f"{peaks[peak.COPY][0] / 1e9:.3g}")
    return replace(row, details=merged)


def with_model(row: Row, work: ForwardWork | None, peaks: Peaks) -> Row:
    """Return fastbert's row with the model's time beside its own: `model_ms` by term, and their sum's share of the
    measured time; the row itself where a peak or the bandwidth was not measured."""
    terms = None if work is None else model_milliseconds(work, row.dtype, peaks)
    if terms is None:
        return row
    share = round(sum(terms.values()) / row.median_ms, 4)
    rounded = {name: float(f"{value:.4g}") for name, value in terms.items()}
    return replace(row, details={**row.details, "share_of_model": share, "model_ms": rounded})


def model_milliseconds(work: ForwardWork, dtype: str, peaks: Peaks) -> dict[str, float] | None:
    """Return the terms of the model in milliseconds: matmuls, attention, bytes; None without the rates."""
    dtypes = DTYPES.get(dtype)
    if dtypes is None or not {dtypes.matmuls, dtypes.attention, peak.COPY} <= peaks.keys():
        return None
    moved = work.weights * dtypes.weight_bytes + work.activations * dtypes.activation_bytes
    return {
        "matmuls": 1e3 * work.matmuls / peaks[dtypes.matmuls][0],
        "attention": 1e3 * work.attention / peaks[dtypes.attention][0],
        "bytes": 1e3 * moved / peaks[peak.COPY][0],
    }
