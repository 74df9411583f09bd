"""Check what fastbert runs on: the Python and the system it was built for, torch, NumPy. Each problem is one line.

`fastbert/__init__.py` imports this module where something is wrong, and when a public name or the extension is first
used. Nothing here imports torch.
"""

import importlib
import platform
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from fastbert.errors import RequirementError

# As in pyproject.toml: the oldest version, and the first that is too new.
REQUIRED: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]] = {
    "torch": ((2, 8), None),
    "numpy": ((1, 26), (3,)),
    "safetensors": ((0, 4, 5), (1,)),
}
_CURES = {"torch": " (https://pytorch.org/get-started/locally/ lists the builds for CPUs and GPUs)"}
_REBUILD = "compile it on this system: `pip install .` in fastbert's source tree"


def version_problem(package: str, version: str) -> str:
    """Return why a version of torch, numpy or safetensors cannot be used, and the cure; "" if it can."""
    least, limit = REQUIRED[package]
    match = re.match(r"\d+(?:\.\d+)*", version)
    numbers = tuple(map(int, match[0].split("."))) if match else least
    if numbers >= least and (limit is None or numbers < limit):
        return ""
    return f"fastbert needs {_asked_for(package)}, found {version}: `pip install -U '{_specifier(package)}'`"


def installed_torch() -> str:
    """Return the version of torch without importing it; "" if it is missing or its version cannot be read."""
    if "torch" in sys.modules:
        return str(getattr(sys.modules["torch"], "__version__", ""))
    spec = PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = Path(spec.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    match = re.search(r"^__version__\s*(?::.*)?=\s*['\"]([^'\"]+)", text, flags=re.MULTILINE)
    return match[1] if match else ""


def check_torch() -> None:
    """Raise RequirementError if the installed torch is too old. A missing one counts only where it is needed."""
    version = installed_torch()
    if version and (problem := version_problem("torch", version)):
        raise RequirementError(problem)


def missing_package(error: ImportError) -> str:
    """Return one line with the cure if torch, NumPy or safetensors is missing; "" for other errors."""
    package = (error.name or "").partition(".")[0]
    if package not in REQUIRED or not isinstance(error, ModuleNotFoundError):
        return ""
    if "." in (error.name or "") and PathFinder.find_spec(package) is not None:
        return ""  # a part of an installed package: its version is the matter
    cure = f"`pip install '{_specifier(package)}'`{_CURES.get(package, '')}"
    return f"fastbert needs {_asked_for(package)}, which is not installed: {cure}"


def load_extension() -> ModuleType:
    """Import `fastbert._C`, the C++ core. Raises RequirementError, with the cure, if it cannot be loaded."""
    try:
        import numpy
    except ModuleNotFoundError as error:
        raise RequirementError(missing_package(error) or str(error)) from None
    if problem := version_problem("numpy", numpy.__version__):
        raise RequirementError(problem)
    try:
        return importlib.import_module("fastbert._C")
    except ImportError as error:
        raise RequirementError(_extension_problem(str(error))) from error


def missing_extension(folder: str) -> str:
    """Return why a package folder holds no extension for this Python: never compiled, or for another one."""
    names = sorted(file.name for file in Path(folder).glob("_C.*") if file.suffix in (".so", ".pyd"))
    if not names:
        return (
            f"{folder} is fastbert's source tree, which is not compiled: run `pip install .` in it and start Python in"
            " another folder (or use the `fastbert` command), or run `pip install -e .` to use the tree itself"
        )
    running = f"Python {platform.python_version()} on {sys.platform} {platform.machine()}"
    return (
        f"fastbert in {folder} was compiled for a different Python or system ({', '.join(names)}), and this is"
        f" {running}: install fastbert with this Python, {sys.executable}"
    )


def _extension_problem(reason: str) -> str:
    """Return one line with the cure for an error of the dynamic linker."""
    libc = re.search(r"version `GLIBC_([\d.]+)' not found", reason)
    if libc:
        return f"fastbert's extension needs glibc {libc[1]}, found {_glibc()}: {_REBUILD}, or use a newer system"
    runtime = re.search(r"version `((?:GLIBCXX|CXXABI)_[\d.]+)' not found \(required by", reason)
    if runtime:
        return f"fastbert's extension needs a newer libstdc++, with {runtime[1]}: update it, or {_REBUILD}"
    if re.search(r"invalid ELF header|wrong ELF class|not a mach-o file|incompatible architecture", reason):
        system = f"{sys.platform} {platform.machine()}"
        return f"fastbert's extension was built for a different system than {system}: {_REBUILD}"
    reason = " ".join(reason.split())
    return f"fastbert's extension does not load ({reason}): install fastbert again, or {_REBUILD}"


def _glibc() -> str:
    name, version = platform.libc_ver()
    return version if name == "glibc" else "another C library"


def _asked_for(package: str) -> str:
    least, limit = REQUIRED[package]
    return f"{package} >= {_dotted(least)}" + (f", < {_dotted(limit)}" if limit else "")


def _specifier(package: str) -> str:
    least, limit = REQUIRED[package]
    return f"{package}>={_dotted(least)}" + (f",<{_dotted(limit)}" if limit else "")


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
