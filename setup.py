"""Builds fastbert: the package map and the one C++ extension, compiled through ninja.

`kernels/` and `benchmarks/` are installed inside the package, as `fastbert.kernels` and `fastbert.benchmarks`. The
extension `fastbert._C` is plain pybind11 without torch headers, so one wheel serves every torch release.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGES = [
    "fastbert",
    "fastbert.benchmarks",
    "fastbert.cli",
    "fastbert.data",
    "fastbert.kernels",
    "fastbert.models",
    "fastbert.ops",
    "fastbert.tasks",
    "fastbert.tokenizers",
    "fastbert.training",
]
CXX_FLAGS = ["-std=c++20", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas"]
CXX20_PROBE = "#include <span>\n#include <bit>\nint main() { return std::bit_width(std::span<int>{}.size()); }\n"


def refuse(message: str) -> None:
    """End the build with one line instead of a traceback."""
    sys.stderr.write(f"\nfastbert: {message}\n\n")
    raise SystemExit(1)


def find_compiler(scratch: Path) -> str:
    """The first compiler of $CXX, c++, g++, clang++ that accepts C++20."""
    candidates = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    scratch.mkdir(parents=True, exist_ok=True)
    probe = scratch / "probe.cpp"
    probe.write_text(CXX20_PROBE)
    for candidate in candidates:
        command = [*candidate.split(), "-std=c++20", "-fsyntax-only", str(probe)]
        if shutil.which(command[0]) and subprocess.run(command, capture_output=True).returncode == 0:
            return candidate
    refuse(
        f"no C++20 compiler found (tried {', '.join(candidates)}). Install g++ >= 11 or clang >= 14"
        " (Debian/Ubuntu: apt-get install g++), or set CXX to one."
    )
    raise AssertionError


def find_ninja() -> str:
    """The ninja executable: the Python package's, else one on PATH."""
    try:
        import ninja

        return str(Path(ninja.BIN_DIR) / "ninja")
    except ImportError:
        found = shutil.which("ninja")
        if not found:
            refuse("ninja is missing. `pip install ninja pybind11` first, or build without --no-build-isolation.")
        return str(found)


def stable_pybind11(folder: Path) -> Path:
    """A copy of pybind11's headers that keeps its path and time stamps between isolated builds.

    pip gives each isolated build a new temporary folder; compiling against that one would make every file look changed.
    """
    import pybind11

    target = folder / f"pybind11-{pybind11.__version__}"
    if not target.exists():
        partial = folder / f"pybind11.partial-{os.getpid()}"
        shutil.copytree(pybind11.get_include(), partial)
        partial.rename(target)
    return target


def escape(text: object) -> str:
    """A path as ninja reads it."""
    return str(text).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class NinjaBuild(build_ext):
    """Compile every file of csrc in parallel; a second build compiles only what changed."""

    def build_extension(self, ext: Extension) -> None:
        folder = ROOT / "build" / f"ninja-{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        compiler = find_compiler(folder)
        output = Path(self.get_ext_fullpath(ext.name)).resolve()
        output.parent.mkdir(parents=True, exist_ok=True)
        library = folder / output.name
        includes = [ROOT / "csrc", stable_pybind11(folder), sysconfig.get_path("include")]
        flags = [*CXX_FLAGS, *os.environ.get("CXXFLAGS", "").split(), f"-DFASTBERT_VERSION={self.distribution.get_version()}"]
        link = ["-shared", *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-pthread"])]
        lines = [
            "ninja_required_version = 1.5",
            f"cxx = {compiler}",
            f"flags = {' '.join(flags)} {' '.join(f'-I{escape(path)}' for path in includes)}",
            f"link = {' '.join([*link, *os.environ.get('LDFLAGS', '').split()])}",
            "rule compile\n  command = $cxx $flags -MMD -MF $out.d -c $in -o $out\n  depfile = $out.d\n  deps = gcc\n"
            "  description = compile $in",
            "rule link\n  command = $cxx $in -o $out $link\n  description = link $out",
        ]
        objects = []
        for source in ext.sources:
            path = ROOT / source
            objects.append(folder / Path(source).with_suffix(".o"))
            lines.append(f"build {escape(objects[-1])}: compile {escape(path)}")
        lines.append(f"build {escape(library)}: link {' '.join(escape(path) for path in objects)}")
        build_file = folder / "build.ninja"
        build_file.write_text("\n".join(lines) + "\n")
        command = [find_ninja(), "-C", str(folder), *(["-v"] if self.verbose > 1 else [])]
        if subprocess.run(command).returncode != 0:
            refuse("compiling the C++ extension failed; the compiler's messages are above.")
        shutil.copy2(library, output)


if platform.system() == "Windows":
    refuse("Windows is not supported. Install inside WSL2: https://learn.microsoft.com/windows/wsl/install")

setup(
    packages=PACKAGES,
    package_dir={"fastbert": "fastbert", "fastbert.kernels": "kernels", "fastbert.benchmarks": "benchmarks"},
    package_data={"fastbert": ["py.typed", "*.pyi"]},
    ext_modules=[Extension("fastbert._C", sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/**/*.cpp")))],
    cmdclass={"build_ext": NinjaBuild},
)
