"""The CPU's kernels by name: which there are, and how a test runs one, in software where the processor lacks it.

@pytest.fixture(params=cpu_kernels.KERNELS)
def kernel(request):
    with cpu_kernels.running(request.param):
        yield request.param
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import emulator
import pytest

from fastbert import _C

# What this processor has, by name.
HARDWARE = frozenset(name for name, has in _C.cpu_features().items() if has and name != "amx_in_hardware")
AVX2 = ("avx2", "fma")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq")
# The level needs VNNI too, but its kernels multiply integers in tiles.
AMX = ("avx512_bf16", "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16")


@dataclass(frozen=True)
class Kernel:
    """A level; the features without which there is no such kernel; those with which another one would run."""

    level: str
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    emulated: bool = False  # where the processor lacks it


KERNELS = {
    "portable": Kernel("portable"),
    "avx2": Kernel("avx2", AVX2),
    "avx512": Kernel("avx512", AVX512, without=("avx512_vnni", "avx512_bf16")),
    "avx512-vnni": Kernel("avx512", (*AVX512, "avx512_vnni"), without=("avx512_bf16",)),
    "avx512-bf16": Kernel("avx512", (*AVX512, "avx512_bf16"), emulated=True),
    "amx": Kernel("amx", (*AVX512, *AMX), emulated=True),
}


def in_hardware(name: str) -> bool:
    return HARDWARE.issuperset(KERNELS[name].needs)


# Those that this processor runs itself.
HERE = [name for name in KERNELS if in_hardware(name)]


def why_unavailable(name: str) -> str:
    """Return why neither this processor nor the emulator can run the kernel, or ""."""
    if in_hardware(name):
        return ""
    return emulator.why_unavailable() if KERNELS[name].emulated else f"this processor has no {name}"


def in_software(name: str) -> bool:
    """Return whether the emulator executes the kernel's own instructions, and counts them."""
    if not KERNELS[name].emulated or in_hardware(name):
        return False
    return KERNELS[name].level == "amx" or not emulator.is_bf16_hidden()


@contextmanager
def running(name: str) -> Iterator[None]:
    """Run matmuls, attention and row-wise operations on this kernel; skip the test where nothing can."""
    reason = why_unavailable(name)
    if reason:
        pytest.skip(reason)
    if KERNELS[name].emulated and not in_hardware(name):
        emulator.install()
    kernel = KERNELS[name]
    _C.override_cpu_features(sorted((HARDWARE - {*kernel.without}) | {*kernel.needs}))
    try:
        _C.force_cpu_capability(kernel.level)
        yield
    finally:
        _C.override_cpu_features([])
