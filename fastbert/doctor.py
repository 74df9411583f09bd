"""Collect what was built, which backend runs each operation, and why not a faster one, for `fastbert doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert import requirements, tuning_tables
from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.ops.dispatch import Choice

PACKAGES = ("torch", "triton", "numpy", "safetensors", "transformers", "tokenizers")


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processor, as far as this process can use it."""

    model: str
    architecture: str
    logical_cores: int
    usable_cores: float
    """Fewer than all under a CPU affinity or a container's quota, which may be a fraction."""
    torch_threads: int | None
    features: dict[str, bool]
    """Instruction sets, and True for those that this process can use; from the extension."""
    level: str | None
    """The instruction sets of the CPU kernels: portable, avx2, avx512 or amx; None without the extension."""
    level_reason: str
    matmul: str
    """The library of the matmuls by dtype, and the origin of that choice."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One CUDA device."""

    name: str
    memory_gib: float
    compute_capability: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Everything that decides how fast fastbert runs here."""

    versions: dict[str, str | None]
    """Versions of fastbert, Python, the system and relevant packages; None for a package that is not installed."""
    cpu: Cpu
    gpus: tuple[Gpu, ...]
    gpu_reason: str
    """Why there is no GPU; empty if there is one."""
    extension_problem: str
    """Why the C++ extension does not load; empty if it does."""
    native_kernels: tuple[str, ...]
    """Operations with a native kernel."""
    triton_kernels: tuple[str, ...]
    """Operations with a Triton kernel."""
    triton_reason: str
    """Why no Triton kernel runs; empty if some can."""
    kernel_failures: tuple[str, ...]
    """Triton kernels that do not compile on this GPU, one line each: PyTorch takes their place."""
    kernel_configurations: str
    """The origin of the kernels' tiles and warps: the default table, or one that was measured here."""
    device: str | None
    """The device of `operations` and `fastest_dtype`; None if nothing can run."""
    operations: tuple[Choice, ...]
    fastest_dtype: str | None
    dtype_reason: str
    advice: tuple[str, ...]
    """Suggestions that make this installation faster, one sentence each."""


def examine() -> Diagnosis:
    """Examine the installation and the machine. Runs without torch too, and then reports that it is missing."""
    versions = _versions()
    torch, torch_problem = _import_torch()
    if torch is None and not requirements.installed_torch():
        versions["torch"] = None
    features, extension_problem = _extension()
    advice = [] if features else [extension_problem]
    level, level_reason = _level(advice) if features else (None, "the C++ extension does not load")
    gpus, gpu_reason = _gpus(torch)
    cpu = Cpu(
        model=tuning_tables.cpu_model(),
        architecture=platform.machine(),
        logical_cores=os.cpu_count() or 1,
        usable_cores=_usable_cores(),
        torch_threads=torch.get_num_threads() if torch else None,
        features=features,
        level=level,
        level_reason=level_reason,
        matmul=_matmul() if torch and level else "-",
    )
    operations: tuple[Choice, ...] = ()
    native_kernels: tuple[str, ...] = ()
    triton_kernels: tuple[str, ...] = ()
    kernel_failures: tuple[str, ...] = ()
    device_name = dtype_name = None
    dtype_reason = ""
    if torch is None:
        advice.append(torch_problem)
    else:
        from fastbert.ops import dispatch
        from fastbert.tasks.inference import SHORT_NAMES

        native_kernels, triton_kernels = dispatch.supported_by("native"), dispatch.supported_by("triton")
        device = torch.device("cuda" if gpus else "cpu")
        if level or device.type != "cpu":
            device_name = device.type
            operations = tuple(dispatch.report(device))
            dtype, dtype_reason = dispatch.fastest_dtype(device)
            dtype_name = SHORT_NAMES[dtype]
            if any(choice.backend == "triton" for choice in operations):
                from fastbert.models.kernel_check import failures

                kernel_failures = failures(device, dtype)
    return Diagnosis(
        versions=versions,
        cpu=cpu,
        gpus=gpus,
        gpu_reason=gpu_reason,
        extension_problem=extension_problem,
        native_kernels=native_kernels,
        triton_kernels=triton_kernels,
        triton_reason=_triton_reason(triton_kernels, versions["triton"], bool(gpus)),
        kernel_failures=kernel_failures,
        kernel_configurations=_configurations(triton_kernels, versions["triton"]),
        device=device_name,
        operations=operations,
        fastest_dtype=dtype_name,
        dtype_reason=dtype_reason,
        advice=(*advice, *_advice(cpu, bool(gpus), versions["triton"])),
    )


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {
        "fastbert": _installed("fastbert-engine"),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    return versions | {name: _installed(name) for name in PACKAGES}


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _import_torch() -> tuple[Any, str]:
    """Return the module, or None and why it cannot be used, which is when people run doctor."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return None, f"torch cannot be imported ({error}): see https://pytorch.org/get-started/locally/"
    problem = requirements.version_problem("torch", torch.__version__)
    return (None, problem) if problem else (torch, "")


def _extension() -> tuple[dict[str, bool], str]:
    """Return the CPU's features and an empty string, or why the extension does not load."""
    try:
        extension = requirements.load_extension()
    except UserError as error:
        return {}, str(error)
    return extension.cpu_features(), ""


def _level(advice: list[str]) -> tuple[str | None, str]:
    """Return the level of the CPU kernels and why. A wrong FASTBERT_CPU, which stops kernels, becomes advice."""
    from fastbert import cpu_capability

    try:
        return cpu_capability.current(), cpu_capability.reason()
    except UserError as error:
        advice.append(str(error))
        return None, f"{cpu_capability.VARIABLE} is wrong"


def _matmul() -> str:
    from fastbert import cpu_capability
    from fastbert.ops.native import matmul_table

    rules = matmul_table.DEFAULTS[cpu_capability.current()]
    native = ", ".join(element for element, choice in rules.items() if choice == matmul_table.NATIVE)
    library = ", ".join(element for element, choice in rules.items() if choice != matmul_table.NATIVE)
    rule = f"{native} by fastbert" + (f"; {library} by torch" if library else "")
    path = matmul_table.saved_path()
    if not os.path.exists(path):
        return f"{rule}; `fastbert doctor --tune` measures this CPU (without a GPU)"
    try:
        measured = matmul_table.load(path)
    except UserError as error:
        return f"{rule}, because {error}"
    count = len(measured.get(matmul_table.cpu_key(cpu_capability.current()), {}))
    return f"{rule}, except {count} shapes measured on this CPU, in {path}"


def _usable_cores() -> float:
    """Return the logical cores that affinity and a container's quota (cgroup v2) let this process use."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def _gpus(torch: Any) -> tuple[tuple[Gpu, ...], str]:
    if torch is None:
        return (), "torch is missing"
    from fastbert.ops import gpu

    problem = gpu.problem()
    if problem:
        return (), problem
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return tuple(
        Gpu(
            name=device.name,
            memory_gib=round(device.total_memory / 2**30, 1),
            compute_capability=f"{device.major}.{device.minor}",
        )
        for device in devices
    ), ""


def _triton_reason(kernels: tuple[str, ...], triton: str | None, has_gpu: bool) -> str:
    if not kernels:
        return "this version ships no Triton kernels"
    if triton is None:
        return "triton is not installed"
    return "" if has_gpu else "they need a GPU"


def _configurations(kernels: tuple[str, ...], triton: str | None) -> str:
    if not kernels or triton is None:
        return "-"
    from fastbert.kernels.tuning import tables as tuning

    path = tuning.saved_path()
    if not path.exists():
        return "defaults; `fastbert doctor --tune` measures others on a GPU"
    try:
        tables = tuning.load(path)
    except UserError as error:
        return f"defaults, because {error}"
    counts = [f"{sum(map(len, kernels.values()))} for {gpu}" for gpu, kernels in sorted(tables.items())]
    return f"defaults, and measured ones in {path}: {', '.join(counts)}"


def _advice(cpu: Cpu, has_gpu: bool, triton: str | None) -> list[str]:
    advice = []
    if has_gpu and triton is None:
        advice.append("the GPU runs without triton: `pip install 'fastbert-engine[gpu]'`")
    if cpu.features.get("amx_in_hardware") and not cpu.features["amx_tile"]:
        advice.append("the CPU has AMX, but the system does not let this process use it: Linux does since 5.16")
    if cpu.torch_threads and cpu.torch_threads > max(1, cpu.usable_cores):
        cores = max(1, int(cpu.usable_cores))
        advice.append(
            f"torch runs {cpu.torch_threads} threads on {cpu.usable_cores:g} cores: set OMP_NUM_THREADS={cores}"
        )
    return advice
