"""The loops that measure the processor's peak rates, compiled here: the extension has them only on request."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import cpu_kernels
import emulator
import pytest

from fastbert import _C

ROOT = Path(__file__).resolve().parents[3]
SOURCES = (
    "tests/native/peak_checks.cpp",
    *(f"csrc/cpu/peak/{name}.cpp" for name in ("peak", "avx2", "avx512")),
    *(f"csrc/{name}.cpp" for name in ("common/cpu_features", "cpu/runtime/cpu_capability", "cpu/runtime/parallel")),
)
# Elements that the emulator multiplies, by kernel.
EMULATED = {("avx512-bf16", "bf16"), ("amx", "bf16"), ("amx", "int8")}


@pytest.mark.skipif(not (ROOT / "csrc").is_dir(), reason="needs the source tree")
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no c++")
def test_the_peak_is_a_rate_of_the_kernels_own_instructions(tmp_path: Path) -> None:
    library = tmp_path / "peak.so"
    command = ["c++", "-std=c++20", "-O3", "-shared", "-fPIC", "-pthread", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *(ROOT / source for source in SOURCES), "-o", library], check=True)
    peak_at = ctypes.CDLL(str(library)).peak_at
    peak_at.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_double]
    peak_at.restype = ctypes.c_double
    measured = 0
    for name, kernel in cpu_kernels.KERNELS.items():
        if cpu_kernels.why_unavailable(name):
            continue
        with cpu_kernels.running(name):
            features = " ".join((cpu_kernels.HARDWARE - {*kernel.without}) | {*kernel.needs})
            for element in ("fp32", "bf16", "int8"):
                counted = cpu_kernels.in_software(name) and (name, element) in EMULATED
                executed = emulator.executed() if counted else 0
                assert 1e6 < peak_at(features.encode(), kernel.level.encode(), element.encode(), 1e-3) < 1e14
                assert not counted or emulator.executed() > executed, "none of the kernel's own instructions ran"
                measured += 1
    assert measured >= 3


def test_the_peak_refuses_wrong_arguments_by_name() -> None:
    for message, arguments in {
        "element": ("fp64", 1, 0.1),
        "threads": ("fp32", 0, 0.1),
        "seconds": ("fp32", 1, float("nan")),
    }.items():
        with pytest.raises(ValueError, match=message):
            _C.cpu_peak(*arguments)
