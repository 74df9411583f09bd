"""Single operations of an encoder as workloads, and their contenders: values first, then GFLOP/s or GB/s.

An operation is limited either by its multiplications and additions or by the bytes that it must move; a workload counts
one of them. Bytes are the fewest: every input is read once and every output written once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastbert.benchmarks.cpu.lineup import Lineup, Result, Verdict, dtype_of
from fastbert.benchmarks.cpu.workloads import LONGEST, Workload, lognormal_lengths
from fastbert.benchmarks.harness.measure import Row
from fastbert.config import BertConfig

KIND = "kernel"
DTYPE_BYTES = {"fp32": 4, "bf16": 2}
MASKED = 0.15  # of the tokens have the vocabulary's logits
FORWARD, BOTH = "forward", "forward and backward"
LIMITS = ("peak_gflops", "peak_source", "copy_gigabytes_per_second")
# The largest error of a row of values relative to its length; that of bf16 includes the rounded inputs.
MOST_ERROR = {"fp32": 2e-5, "bf16": 5e-2}


@dataclass(frozen=True, kw_only=True)
class OperationWorkload(Workload):
    """One call of an operation, forward or forward and backward."""

    elements: float = 0.0
    """Elements that must be read or written; 0 for an operation whose `operations` count."""
    dtypes: tuple[str, ...] = tuple(DTYPE_BYTES)
    """The dtypes in which it is measured."""


def workloads(config: BertConfig, quick: bool = False) -> list[OperationWorkload]:
    """Return the operations of a model's size; `quick` ones have an eighth of the sequences."""
    many, few = (4, 1) if quick else (32, 8)
    width, inner, vocabulary = config.hidden_size, config.intermediate_size, config.vocab_size
    heads, tokens = config.num_attention_heads, many * LONGEST
    labels = round(MASKED * tokens)
    made = [
        *_pair("linear, width to inner", "linear", (tokens, width, inner), operations=2.0 * tokens * width * inner),
        *_pair("linear, inner to width", "linear", (tokens, inner, width), operations=2.0 * tokens * width * inner),
    ]
    for name, lengths in (
        ("full-128", [LONGEST] * many),
        ("full-512", [512] * few),
        ("lognormal", lognormal_lengths(many, LONGEST)),
    ):
        squares = 4.0 * width * sum(length * length for length in lengths)
        # Backward computes the scores again: five matmuls beside forward's two.
        made += _pair(
            f"attention {name}", "attention", (heads, width // heads), lengths, operations=squares, backward=2.5
        )
    scores = many * heads * LONGEST * LONGEST
    rowwise = (
        ("layer-norm", (tokens, width), tokens * width),
        ("gelu", (tokens, inner), tokens * inner),
        ("softmax", (many, heads, LONGEST), scores),
    )
    for name, shape, elements in rowwise:
        made += _pair(name, name, shape, elements=2.0 * elements, backward=1.5)
    moved = 2.0 * tokens * width
    # Backward reads the rows of the tables again, and writes a dense gradient.
    gradients = moved + vocabulary * width
    made += _pair("embedding", "embedding", (tokens, width, vocabulary), elements=moved, backward=gradients / moved)
    logits = 2.0 * labels * width * vocabulary
    made += _pair("cross-entropy", "cross-entropy", (labels, width, vocabulary), operations=logits)
    layer = 4 * width * width + 2 * width * inner + 9 * width + inner
    parameters = (1 if quick else config.num_hidden_layers) * layer
    # Weight, gradient and two moments are read, all but the gradient written.
    layers = "one layer" if quick else f"{config.num_hidden_layers} layers"
    step = _workload("adamw, step", "adamw", (parameters,), elements=7.0 * parameters, note=layers)
    return [*made, replace(step, dtypes=("fp32",))]


def _pair(
    name: str,
    operation: str,
    shape: Sequence[int],
    lengths: Sequence[int] = (),
    *,
    operations: float = 0.0,
    elements: float = 0.0,
    backward: float = 2.0,
) -> list[OperationWorkload]:
    """Return an operation forward, and forward and backward, which takes `backward` times the forward's work more."""
    return [
        _workload(f"{name}, {what}", operation, shape, lengths, operations * factor, elements * factor, what == BOTH)
        for what, factor in ((FORWARD, 1.0), (BOTH, 1.0 + backward))
    ]


def _workload(
    name: str,
    operation: str,
    shape: Sequence[int],
    lengths: Sequence[int] = (),
    operations: float = 0.0,
    elements: float = 0.0,
    backward: bool = False,
    note: str = "",
) -> OperationWorkload:
    arrays = {
        "operation": np.asarray(operation),
        "shape": np.asarray(shape, np.int64),
        "lengths": np.asarray(lengths, np.int64),
        "backward": np.asarray(backward),
    }
    sizes = " x ".join(map(str, shape))
    note = note or (f"{sum(lengths):,} tokens, {shape[0]} heads of {shape[1]}" if lengths else sizes)
    tokens = sum(lengths) or int(shape[0])
    return OperationWorkload(
        name=name, tokens=tokens, operations=operations, elements=elements, arrays=arrays, note=note
    )


class OperationLineup(Lineup):
    """The libraries that take part; one sits out where an operation is not measured in its dtype.

    The peak rates take turns with the contenders of the first operation alone, and are shown beside all.
    """

    limits: dict[str, dict[str, Any]] | None = None
    """By dtype, the peak rates as the details of a row have them."""

    def measure(self, workload: Workload, rounds: int) -> Result:
        """Compare, then time, with the bytes moved per second."""
        assert isinstance(workload, OperationWorkload)
        every = self.names
        self.names: list[str] = [name for name in every if dtype_of(self.kind, name) in workload.dtypes]
        try:
            result = super().measure(workload, rounds)
        finally:
            self.names = every
        if self.limits is None:
            self.limits = {row.dtype: {name: row.details.get(name) for name in LIMITS} for row in result.rows}
        rows = [with_rates(row, workload, self.limits.get(row.dtype, {})) for row in result.rows]
        return Result(rows, result.absent)

    def _peak(self) -> dict[str, dict[str, Any]]:
        return super()._peak() if self.limits is None else {}

    def verdict(self, expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
        return compare(expected, values, dtype, reference)


def compare(expected: np.ndarray, values: np.ndarray, dtype: str, reference: str) -> Verdict:
    """Return the largest error of a row of two fp32 arrays (rows, width), relative to the row's length."""
    details = {"reference": reference}
    if expected.shape != values.shape:
        return Verdict(f"shape {values.shape}, not {expected.shape}", float("inf"), details)
    if not np.isfinite(values).all():
        return Verdict("holds values that are not finite", float("inf"), details)
    differences = np.linalg.norm((expected - values).astype(np.float64), axis=1)
    lengths = np.linalg.norm(expected.astype(np.float64), axis=1)
    # Rows of zeros have no length of their own.
    worst = float((differences / np.where(lengths > 0, lengths, 1.0)).max(initial=0.0))
    bound = MOST_ERROR[dtype]
    outputs = "equal" if not worst else "close" if worst <= bound else f"error {worst:.2g} is above {bound:g}"
    largest = float(np.abs(expected - values).max(initial=0.0))
    return Verdict(outputs, float(f"{largest:.3g}"), details | {"error": float(f"{worst:.2g}"), "error_bound": bound})


def with_rates(row: Row, workload: OperationWorkload, limits: Mapping[str, Any]) -> Row:
    """Return the row with the rate that limits its operation, and its share of the machine's."""
    details = {**row.details, **{name: limit for name, limit in limits.items() if limit is not None}}
    if workload.elements:
        rate = workload.elements * DTYPE_BYTES[row.dtype] / (row.median_ms / 1e3) / 1e9
        details = {name: value for name, value in details.items() if name not in ("gflops", "share_of_peak")}
        details["gigabytes_per_second"] = float(f"{rate:.4g}")
        share, limit = "share_of_copy", details.get("copy_gigabytes_per_second")
    else:
        share, rate, limit = "share_of_peak", details["gflops"], details.get("peak_gflops")
    return replace(row, details=details | ({share: round(rate / limit, 4)} if limit else {}))
