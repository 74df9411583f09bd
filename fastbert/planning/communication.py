"""What the processes of a run exchange in a step, and how long links take for it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from fastbert.planning.memory import DTYPE_BYTES, FP32, Parallel

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


def communication(parameters: int, devices: int, parallel: Parallel, dtype: str, micro_batches: int) -> Communication:
    """Return the bytes that one of `devices` sends per optimiser step, by ring algorithms.

    DDP reduces gradients in the dtype of matmuls once per step, after the last micro-batch. FSDP gathers the weights
    in that dtype for the forward and for the backward pass of each micro-batch, and reduces gradients in fp32.
    """
    if devices == 1 or parallel == "none":
        return Communication()
    share, element = (devices - 1) / devices, DTYPE_BYTES[dtype]
    if parallel == "ddp":
        return Communication(all_reduce=2 * share * parameters * element)
    return Communication(
        all_gather=2 * share * parameters * element * micro_batches,
        reduce_scatter=share * parameters * FP32 * micro_batches,
    )
