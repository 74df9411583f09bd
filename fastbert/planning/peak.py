"""Peak arithmetic rates: those of known GPUs from their data sheets, that of a CPU measured once per process."""

from __future__ import annotations

import functools
import re
import time
from dataclasses import dataclass
from typing import Literal

from fastbert.errors import UserError

DType = Literal["bf16", "fp16", "tf32", "fp32"]
CPU_BANDWIDTH = 20.0
"""GB/s of memory, for the update of weights on a CPU that is not measured."""
PROBE_SECONDS = 0.3
PROBE_SHAPE = (1024, 1024, 1024)  # rows, depth, columns


@dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet describes it: dense rates in TFLOP/s, without sparsity."""

    name: str
    pattern: str
    """A regular expression that its device name matches, lower case."""
    memory: float
    """GiB."""
    half: float
    """bf16 and fp16 matmuls with fp32 sums."""
    tf32: float
    single: float
    """fp32 outside of matrix units."""
    bandwidth: float
    """Memory, GB/s."""
    link: float
    """To the other GPUs of a machine, GB/s in one direction; PCIe where there is no faster link."""
    per_node: int = 8
    """GPUs of a usual machine."""
    bf16: bool = True

    def peak(self, dtype: str) -> float:
        """Return the peak of matmuls in a dtype, in FLOP/s."""
        return {"bf16": self.half, "fp16": self.half, "tf32": self.tf32, "fp32": self.single}[dtype] * 1e12


# Data sheets of the vendors; variants that differ are entries of their own, the narrower pattern first.
GPUS: dict[str, Gpu] = {
    "v100": Gpu("V100", r"v100", 32, 125, 15.7, 15.7, 900, 150, bf16=False),
    "t4": Gpu("T4", r"\bt4\b", 16, 65, 8.1, 8.1, 320, 16, per_node=4, bf16=False),
    "a10": Gpu("A10", r"\ba10\b", 24, 125, 62.5, 31.2, 600, 32, per_node=4),
    "a10g": Gpu("A10G", r"a10g", 24, 70, 35, 31.5, 600, 32, per_node=4),
    "a40": Gpu("A40", r"\ba40\b", 48, 149.7, 74.8, 37.4, 696, 56),
    "a100-40gb": Gpu("A100 40 GB", r"a100.*40gb", 40, 312, 156, 19.5, 1555, 300),
    "a100": Gpu("A100 80 GB", r"a100", 80, 312, 156, 19.5, 2039, 300),
    "l4": Gpu("L4", r"\bl4\b", 24, 121, 60, 30.3, 300, 32),
    "l40": Gpu("L40", r"\bl40\b", 48, 181, 90.5, 90.5, 864, 32),
    "l40s": Gpu("L40S", r"l40s", 48, 362, 183, 91.6, 864, 32),
    "rtx-3090": Gpu("RTX 3090", r"rtx 3090", 24, 71, 35.6, 35.6, 936, 32, per_node=2),
    "rtx-4090": Gpu("RTX 4090", r"rtx 4090", 24, 165.2, 82.6, 82.6, 1008, 32, per_node=2),
    "rtx-5090": Gpu("RTX 5090", r"rtx 5090", 32, 209.5, 104.8, 104.8, 1792, 64, per_node=2),
    "rtx-6000-ada": Gpu("RTX 6000 Ada", r"rtx 6000 ada", 48, 364.2, 182.1, 91.1, 960, 32, per_node=4),
    "rtx-a6000": Gpu("RTX A6000", r"rtx a6000", 48, 154.8, 77.4, 38.7, 768, 56, per_node=4),
    "h100-pcie": Gpu("H100 PCIe", r"h100 pcie", 80, 756, 378, 51, 2000, 300),
    "h100-nvl": Gpu("H100 NVL", r"h100 nvl", 94, 835.5, 417.7, 60, 3900, 300),
    "gh200": Gpu("GH200", r"gh200", 96, 989.4, 494.7, 66.9, 4000, 450, per_node=1),
    "h100": Gpu("H100 SXM", r"h100", 80, 989.4, 494.7, 66.9, 3352, 450),
    "h200": Gpu("H200", r"h200", 141, 989.4, 494.7, 66.9, 4800, 450),
    "b200": Gpu("B200", r"b200", 180, 2250, 1125, 75, 7700, 900),
    "mi250x": Gpu("MI250X, one die", r"mi250x", 64, 191.5, 47.9, 47.9, 1638, 200),
    "mi300x": Gpu("MI300X", r"mi300x", 192, 1307.4, 653.7, 163.4, 5300, 448),
}


def gpu(name: str, flag: str = "--gpu") -> Gpu:
    """Return a GPU of the table by its name there. Raises `UserError`, prefixed with `flag`, for others."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    key = f"rtx-{key}" if f"rtx-{key}" in GPUS else key
    if key not in GPUS:
        raise UserError(f"{flag} {name}: is not one of {', '.join(GPUS)}; name the most similar one, or --peak-flops")
    return GPUS[key]


def gpu_of_device(name: str) -> Gpu | None:
    """Return the GPU of the table that a device calls itself ("NVIDIA H100 80GB HBM3"), None for others."""
    return next((each for each in GPUS.values() if re.search(each.pattern, name.lower())), None)


def peak_flops(device: str, dtype: str, device_name: str = "") -> float | None:
    """Return the peak of matmuls of a device (cpu or cuda) in a dtype (bf16, fp16, tf32 or fp32), in FLOP/s; None for
    a GPU that the table lacks.

    That of a CPU is measured with all threads of torch on the first call, which takes less than a second.
    """
    if device == "cpu":
        return cpu_peak(dtype)
    known = gpu_of_device(device_name)
    return None if known is None else known.peak(dtype)


def cpu_peak(dtype: str) -> float:
    """Return the rate of a large matmul on this CPU with all threads of torch, in FLOP/s; measured once per dtype and
    number of threads."""
    import torch

    return _cpu_peak("bf16" if dtype == "bf16" else "fp32", torch.get_num_threads())


@functools.cache
def _cpu_peak(element: str, threads: int) -> float:
    del threads  # a key of the cache
    import torch

    from fastbert.ops.native import matmul, matmul_table

    rows, depth, columns = PROBE_SHAPE
    dtype = torch.bfloat16 if element == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight = torch.randn(columns, depth, generator=generator).to(dtype)
    native = matmul_table.prefers_native(element, rows, columns, depth)
    packed, out = matmul.prepack(weight, element), torch.empty(rows, columns, dtype=dtype)
    best, ends = float("inf"), time.perf_counter() + PROBE_SECONDS
    while best == float("inf") or time.perf_counter() < ends:
        started = time.perf_counter()
        if native:
            matmul.matmul_unchecked(x, packed, out)
        else:
            torch.nn.functional.linear(x, weight)
        best = min(best, time.perf_counter() - started)
    return 2.0 * rows * depth * columns / best
