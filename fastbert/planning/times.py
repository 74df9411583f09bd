"""The time of an optimiser step, from a share of the peak or from measured steps."""

from __future__ import annotations

from dataclasses import dataclass

from fastbert.planning import peak
from fastbert.planning.communication import NETWORK
from fastbert.planning.flags import PlanFlags
from fastbert.planning.memory import Parallel

GPU_UTILISATION = 0.4
"""The share of its peak that a GPU is assumed to reach."""
UPDATE_BYTES = 38
"""Memory traffic of the optimiser per parameter: weights, gradients and moments, read and written."""
DDP_OVERLAP = 2 / 3 * 0.9
"""The share of a micro-batch's time behind which DDP hides its exchange: the backward pass, without its end."""
FSDP_OVERLAP = 0.9


@dataclass(frozen=True)
class Times:
    """Seconds of an optimiser step on every device."""

    passes: float
    update: float
    communication: float
    """At the bandwidth of the links, hidden or not."""
    exposed: float
    """What of it the passes do not hide."""

    @property
    def step(self) -> float:
        """Return the seconds of a step."""
        return self.passes + self.exposed + self.update


def device_peak(flags: PlanFlags, gpu: peak.Gpu | None, dtype: str) -> float:
    """Return the peak of one device in FLOP/s; that of a CPU is measured."""
    if flags.peak_flops is not None:
        return flags.peak_flops
    return peak.cpu_peak(dtype) if gpu is None else gpu.peak(dtype)


def link_bandwidth(flags: PlanFlags, gpu: peak.Gpu | None) -> float:
    """Return the GB/s that one device sends to the others."""
    if flags.link_bandwidth is not None:
        return flags.link_bandwidth
    if gpu is None:
        return NETWORK
    return gpu.link if flags.devices <= gpu.per_node else min(gpu.link, NETWORK)


def update_seconds(parameters: float, gpu: peak.Gpu | None) -> float:
    """Return the seconds of the optimiser's step of so many parameters, which its memory traffic takes."""
    bandwidth = peak.CPU_BANDWIDTH if gpu is None else gpu.bandwidth
    return UPDATE_BYTES * parameters / (bandwidth * 1e9)


def exposed_seconds(exchange: float, passes: float, micro_batches: int, parallel: Parallel) -> float:
    """Return what of the `exchange` of a step the `passes` of its micro-batches do not hide, in seconds."""
    hidden = passes * FSDP_OVERLAP if parallel == "fsdp" else passes / micro_batches * DDP_OVERLAP
    return max(exchange - hidden, 0.0)
