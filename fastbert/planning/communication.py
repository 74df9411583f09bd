"""What the processes of a run exchange in a step, and how long links take for it. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastbert.planning.memory import FP32, Parallel, reduced_bytes
from fastbert.planning.parameters import PartParameters, total

NETWORK = 50.0
"""GB/s per GPU between machines, in one direction: 400 Gbit/s."""


@dataclass(frozen=True)
class Communication:
    """What one device sends in an optimiser step, in bytes."""

    all_reduce: float = 0.0
    all_gather: float = 0.0
    reduce_scatter: float = 0.0

    @property
    def total(self) -> float:
        """Return the bytes that a device sends, and as many that it receives."""
        return self.all_reduce + self.all_gather + self.reduce_scatter

    def seconds(self, bandwidth: float) -> float:
        """Return the time at `bandwidth` GB/s per device in one direction, without latencies."""
        return self.total / (bandwidth * 1e9)


def communication(
    counted: Sequence[PartParameters], devices: int, parallel: Parallel, dtype: str, micro_batches: int
) -> Communication:
    """Return the bytes that one of `devices` sends per optimiser step, by ring algorithms.

    Gradients are reduced once per step, after the last micro-batch, in bf16 where matmuls are. FSDP gathers weights in
    fp32: those of layers for the forward and for the backward pass of each micro-batch, all others once for both.
    """
    if devices == 1 or parallel == "none":
        return Communication()
    share, count = (devices - 1) / devices, total(counted)
    reduced = share * count * reduced_bytes(dtype)
    if parallel == "ddp":
        return Communication(all_reduce=2 * reduced)
    gathered = sum(part.count * (2 * part.uses if part.is_layers else 1) for part in counted)
    return Communication(all_gather=share * gathered * FP32 * micro_batches, reduce_scatter=reduced)
