"""AMX and AVX512_BF16 in software, so that the kernels which use them run on processors without.

`install()` once per process; from then on each such instruction is executed by a signal handler (tests/native). The
process then computes what the hardware would by Intel's manual, some microseconds per instruction. Where the processor
has the instructions and the process may use them, nothing is emulated and the hardware computes.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "native"
# Named instead of -march=native: the handler must never contain an instruction that it emulates.
EMULATOR_FLAGS = ("-O2", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512")
NEEDED = {"avx512f", "avx512bw", "avx512vl", "avx512dq", "fma"}


@cache
def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux names them, empty where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def why_unavailable() -> str:
    """Why this machine cannot emulate, or "" where it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the emulator needs Linux on x86-64, and this is {platform.system()} on {platform.machine()}"
    missing = sorted(NEEDED - cpu_flags())
    if missing:
        return f"the emulator needs AVX-512, and this processor lacks {', '.join(missing)}"
    if shutil.which("c++") is None:
        return "the emulator is compiled when it is needed, and there is no c++"
    return ""


def native() -> bool:
    """Return whether the processor has all of the instructions, so that none is emulated."""
    return {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16"} <= cpu_flags()


@cache
def is_bf16_hidden() -> bool:
    """Return whether the processor executes AVX512_BF16 without listing it, as under a hypervisor that hides it:
    nothing is emulated then. Installs the emulator."""
    if "avx512_bf16" in cpu_flags():
        return False
    install()
    before, zeros = executed(), ctypes.create_string_buffer(64)
    ctypes.CDLL(str(compiled("emulator_checks.cpp", "-O2"))).intrinsic_dot(zeros, zeros, zeros)
    return executed() == before


def compiled(name: str, *flags: str) -> Path:
    """The shared library of `native/name`, compiled once for all processes and kept under the system's temp folder."""
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-ffp-contract=off", *flags]
    key = hashlib.sha256(repr(command).encode())
    for source in sorted(path for path in SOURCES.iterdir() if path.is_file()):
        key.update(source.name.encode() + source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"fastbert-emulator-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    library = folder / f"{Path(name).stem}-{key.hexdigest()[:16]}.so"
    if not library.exists():
        # Several processes may compile at once: each to a name of its own, and the last one to finish stays.
        with tempfile.TemporaryDirectory(dir=folder) as private:
            built = Path(private) / library.name
            result = subprocess.run([*command, str(SOURCES / name), "-o", str(built)], capture_output=True, text=True)
            if result.returncode != 0:
                raise RuntimeError(f"{name} does not compile:\n{result.stderr}")
            built.replace(library)
    return library


@cache
def _library() -> ctypes.CDLL:
    reason = why_unavailable()
    if reason:
        raise RuntimeError(reason)
    library = ctypes.CDLL(str(compiled("emulator.cpp", *EMULATOR_FLAGS)))
    library.emulator_executed.restype = ctypes.c_uint64
    return library


def install() -> None:
    """Emulate from now on, in all threads of this process; again after something else took the signal SIGILL."""
    if _library().emulator_install() != 0:
        raise OSError("the system refuses a handler for SIGILL")


def installed() -> bool:
    """Return whether the emulator handles illegal instructions of this process now."""
    return not why_unavailable() and bool(_library().emulator_installed())


def executed() -> int:
    """Return how many instructions this process has run in software: 0 shows that a test never reached the kernel."""
    return int(_library().emulator_executed())
