"""Builds fastbert: the package map and the one C++ extension, compiled through ninja.

`kernels/` and `benchmarks/` are installed inside the package, as `fastbert.kernels` and `fastbert.benchmarks`. The
extension `fastbert._C` is plain pybind11 without torch headers, so one wheel serves every torch release. It links
nothing but the C and C++ runtimes, dynamically: torch loads the system's libstdc++ anyway, and a second, static copy in
the process would gain nothing.

Environment: CXX (compiler, also as "ccache g++"), CXXFLAGS and LDFLAGS (added to ours), MAX_JOBS (compile processes at
a time).
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

import setuptools
from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE_DIR = {"fastbert": "fastbert", "fastbert.kernels": "kernels", "fastbert.benchmarks": "benchmarks"}
PACKAGES = sorted(
    ".".join((package, *file.parent.relative_to(ROOT / folder).parts))
    for package, folder in PACKAGE_DIR.items()
    for file in (ROOT / folder).rglob("__init__.py")
)

# Without contraction a sum is the same bits wherever the compiler inlines it; what should be fused says so.
CXX_FLAGS = ["-std=c++20", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
# Overruns of arrays on the stack and of buffers whose size the compiler knows end the process. A sanitizer, given by
# CXXFLAGS, sees more without the latter.
HARDENING = ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
# Bounds of the standard library's containers are checked where arguments come in, which is in no hot loop.
BINDING_HARDENING = ["-D_GLIBCXX_ASSERTIONS"]
# pybind11's templates take most of the compile time of csrc/bindings, which converts and checks arguments without hot
# loops. Each translation unit compiles them anew, so that files of bindings are compiled in groups, each of them
# included in one translation unit, where each file is a namespace of its own.
BINDINGS = "csrc/bindings/"
BINDING_GROUPS = 4
BINDING_FLAGS = ["-O1", *BINDING_HARDENING, "-Wno-missing-field-initializers"]
# Headers compiled once, for bindings and for the core; compilers that reject the result read the header itself.
PRECOMPILED = {True: "bindings/precompiled.h", False: "common/precompiled.h"}
# What ccache needs in order to keep objects that use a precompiled header, and to find them from another clone.
CCACHE = {"CCACHE_SLOPPINESS": "pch_defines,time_macros", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"}
CXX20_PROBE = ROOT / "csrc/common/cxx20_probe.h"
# Only the module's entry point is visible, so its copies of C++ templates never replace another extension's.
EXPORTS = "{ global: PyInit__C; local: *; };\n"
if sys.platform == "darwin":
    LINK_FLAGS = ["-bundle", "-undefined", "dynamic_lookup", "-Wl,-exported_symbol,_PyInit__C"]
else:
    # Pointers to functions are resolved at the start, and then read-only (full RELRO); no stack is executable.
    LINK_FLAGS = ["-shared", "-pthread", "-Wl,--version-script=exports.map", "-Wl,-z,relro,-z,now,-z,noexecstack"]

BUILD_TOOLS_CURE = "`pip install -U setuptools ninja pybind11`, or build without --no-build-isolation."


def refuse(message: str) -> NoReturn:
    """End the build with one line instead of a traceback."""
    sys.stdout.flush()
    sys.stderr.write(f"\nfastbert: error: {message}\n")
    raise SystemExit(1)


def find_sources() -> list[str]:
    """Return the C++ files to compile, relative to the root."""
    return sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("csrc/**/*.cpp"))


def compiles_cxx20(command: list[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    probe = [*command, "-std=c++20", "-fsyntax-only", "-x", "c++", str(CXX20_PROBE)]
    return subprocess.run(probe, capture_output=True).returncode == 0


def find_compiler() -> list[str]:
    """Return the command of $CXX, or the first of c++, g++, clang++, that compiles C++20."""
    named = os.environ.get("CXX", "").strip()
    candidates = [named] if named else ["c++", "g++", "clang++"]
    for command in map(shlex.split, candidates):
        if compiles_cxx20(command):
            return command
    refuse(
        f"no C++20 compiler found (tried {', '.join(candidates)}): install g++ >= 11 or clang >= 14"
        " (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install), or set CXX to one."
    )


def find_ninja() -> str:
    """Return the ninja executable: the Python package's, else the one on PATH."""
    try:
        from ninja import BIN_DIR
    except ImportError:
        BIN_DIR = ""
    executable = shutil.which("ninja", path=BIN_DIR) or shutil.which("ninja")
    return executable or refuse(f"ninja is missing: {BUILD_TOOLS_CURE}")


def stable_pybind11(folder: Path) -> Path:
    """Return a copy of pybind11's headers that keeps its path and time stamps between isolated builds.

    pip gives each isolated build a new temporary folder; compiling against that one would make every file look changed.
    """
    try:
        import pybind11
    except ImportError:
        refuse(f"pybind11 is missing: {BUILD_TOOLS_CURE}")
    target = folder / f"pybind11-{pybind11.__version__}"
    if not target.exists():
        partial = folder / f"pybind11.partial-{os.getpid()}"
        shutil.copytree(pybind11.get_include(), partial)
        partial.rename(target)
    return target


def group_bindings(sources: list[str]) -> list[list[str]]:
    """Return the files of bindings in groups of about the same size, the same ones for the same files."""
    groups: list[list[str]] = [[] for _ in range(min(BINDING_GROUPS, len(sources)))]
    sizes = {source: (ROOT / source).stat().st_size for source in sources}
    for source in sorted(sources, key=lambda source: (-sizes[source], source)):
        smallest = min(groups, key=lambda group: sum(sizes[each] for each in group))
        smallest.append(source)
    return [sorted(group) for group in groups]


def write_if_changed(file: Path, text: str) -> None:
    """Write a file that ninja watches; its time stamp stays if its text does."""
    if not file.exists() or file.read_text() != text:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def shell(words: list[object]) -> str:
    """Return a command's words for a variable of build.ninja: quoted for the shell, then with `$` escaped for ninja."""
    return shlex.join(map(str, words)).replace("$", "$$")


def path(text: object) -> str:
    """Return a path for a build line of build.ninja; ninja itself quotes it for the shell in $in and $out."""
    return str(text).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")


class CompileFirst(build):
    """Build the extension before anything is copied, so that a compiler's error is not buried under file names."""

    sub_commands = sorted(build.sub_commands, key=lambda command: command[0] != "build_ext")

    def run(self) -> None:
        # Left from an earlier build, this folder would carry modules that are gone from the tree into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class NinjaBuild(build_ext):
    """Compile every file of csrc in parallel; a second build compiles only what changed."""

    def build_extension(self, ext: Extension) -> None:
        compiler = find_compiler()
        # Outside setuptools' temporary folders, and one for each Python: this is what survives between two builds.
        folder = ROOT / "build" / f"ninja-{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "exports.map").write_text(EXPORTS)
        output = Path(self.get_ext_fullpath(ext.name))
        self.write_build_file(folder, compiler, ext.sources, output.name)
        command = [find_ninja(), "-C", str(folder)]
        if os.environ.get("MAX_JOBS"):
            command += ["-j", os.environ["MAX_JOBS"]]
        sys.stdout.flush()
        if subprocess.run(command, env={**CCACHE, **os.environ}).returncode != 0:
            refuse("the C++ extension did not compile; see the compiler's messages above.")
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder / output.name, output)

    def write_build_file(self, folder: Path, compiler: list[str], sources: list[str], library: str) -> None:
        includes = [ROOT / "csrc", stable_pybind11(folder), sysconfig.get_path("include")]
        given = shlex.split(os.environ.get("CXXFLAGS", ""))
        hardening = [] if any(flag.startswith("-fsanitize") for flag in given) else HARDENING
        ccache = ["-fpch-preprocess"] if Path(compiler[0]).name == "ccache" and "g++" in compiler[-1] else []
        options = [*hardening, *ccache, *given, *(f"-I{include}" for include in includes)]
        text = f"""\
cxx = {shell(compiler)}
core_flags = {shell([*CXX_FLAGS, *options])}
binding_flags = {shell([*CXX_FLAGS, *BINDING_FLAGS, *options])}
link_flags = {shell([*LINK_FLAGS, *shlex.split(os.environ.get("LDFLAGS", ""))])}

rule compile
  command = $cxx $flags -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = compile $in

rule precompile
  command = $cxx $flags -MMD -MF $out.d -x c++-header -c $in -o $out
  depfile = $out.d
  deps = gcc
  description = precompile $in

rule link
  command = $cxx $in -o $out $link_flags
  description = link $out

"""
        bindings = [source for source in sources if source.startswith(BINDINGS)]
        units = {}  # the bindings first, which take longest
        for index, group in enumerate(group_bindings(bindings)):
            unit = folder / f"bindings/group_{index}.cpp"
            write_if_changed(unit, "".join(f'#include "{Path(source).relative_to("csrc")}"\n' for source in group))
            units[f"bindings/group_{index}.o"] = (unit, True)
        core = {str(Path(source).with_suffix(".o")): (ROOT / source, False) for source in sources}
        units |= {name: unit for name, unit in core.items() if not name.startswith(BINDINGS)}
        for binding, header in PRECOMPILED.items():
            if (ROOT / "csrc" / header).exists():
                flags = "$binding_flags" if binding else "$core_flags"
                text += f"build {header}.gch: precompile {path(ROOT / 'csrc' / header)}\n  flags = {flags}\n"
        for name, (unit, binding) in units.items():
            header = PRECOMPILED[binding]
            precompiled = (ROOT / "csrc" / header).exists()
            text += f"build {path(name)}: compile {path(unit)}" + (f" | {header}.gch\n" if precompiled else "\n")
            flags = "$binding_flags" if binding else "$core_flags"
            text += f"  flags = {flags}" + (f" -include {header}\n" if precompiled else "\n")
        # Of an inline function that several objects hold, the linker takes the first: that of the core.
        objects = sorted(units, key=lambda name: units[name][1])
        text += f"build {path(library)}: link {' '.join(map(path, objects))}\n"
        (folder / "build.ninja").write_text(text)


if platform.system() == "Windows":
    refuse("Windows is not supported; install inside WSL2: https://learn.microsoft.com/windows/wsl/install")
if sys.version_info < (3, 11):  # noqa: UP036 (pip reads requires-python, but setup.py may be run alone)
    refuse(f"Python {platform.python_version()} is too old: install fastbert with Python 3.11 or newer")
if int(setuptools.__version__.split(".")[0]) < 77:
    refuse(f"setuptools {setuptools.__version__} is older than 77: {BUILD_TOOLS_CURE}")

setup(
    packages=PACKAGES,
    package_dir=PACKAGE_DIR,
    package_data={
        "fastbert": ["py.typed", "*.pyi", "training/*.json", "training/run_page/page.*", "serving/page/*.*"],
        "fastbert.models": ["*.pyi"],
        "fastbert.benchmarks": ["serving/load.cpp"],
    },
    include_package_data=False,
    ext_modules=[Extension("fastbert._C", find_sources())],
    cmdclass={"build": CompileFirst, "build_ext": NinjaBuild},
)
