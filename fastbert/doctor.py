"""What was built, which backend runs what, and why not the faster one: the data that `fastbert doctor` prints."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert import tuning_tables
from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.ops.dispatch import Choice

PACKAGES = ("torch", "triton", "numpy", "safetensors", "transformers", "tokenizers")
# Parts of the extension, each with a name that its bindings define.
EXTENSION_PARTS = {
    "tokenizer": "WordPiece",
    "collator": "EpochPlan",
    "dropout masks": "token_dropout_mask",
    "CPU features": "cpu_features",
    "CPU kernels": "encoder_layer",
}
DTYPE_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """The processor as this process sees it."""

    model: str
    architecture: str
    logical_cores: int
    usable_cores: float
    """Fewer than all under a CPU affinity or a container's quota, which may be a fraction."""
    torch_threads: int | None
    features: dict[str, bool]
    """Instruction sets that this process can use, from the extension."""
    level: str | None
    """What the CPU kernels use: portable, avx2, avx512 or amx; None without the extension."""
    level_reason: str
    products: str
    """Which matrix products are ours, and where that choice comes from."""


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
    """Of fastbert, Python, the system and the packages that matter; None: not installed."""
    cpu: Cpu
    gpus: tuple[Gpu, ...]
    gpu_reason: str
    """Why there is no GPU to use; empty when there is one."""
    extension_parts: dict[str, bool]
    triton_kernels: tuple[str, ...]
    triton_reason: str
    """Why no Triton kernel runs; empty when some can."""
    kernel_configurations: str
    """Where the kernels' tiles and warps come from: the shipped table, or one that was measured here."""
    device: str | None
    """The device that `operations` and `fastest_dtype` speak of; None without torch."""
    operations: tuple[Choice, ...]
    fastest_dtype: str | None
    dtype_reason: str
    advice: tuple[str, ...]
    """What would make this installation faster, a sentence each."""


def examine() -> Diagnosis:
    """Look at the installation and the machine. Runs without torch too, and then says that it is missing."""
    versions = _versions()
    torch, torch_problem = _import_torch()
    if torch is None:
        versions["torch"] = None
    features, parts, advice = _extension()
    level, level_reason = _level(advice) if features else (None, "the C++ extension does not load")
    gpus, gpu_reason = _gpus(torch)
    kernels = _triton_kernels(torch)
    cpu = Cpu(
        model=tuning_tables.cpu_model(),
        architecture=platform.machine(),
        logical_cores=os.cpu_count() or 1,
        usable_cores=_usable_cores(),
        torch_threads=torch.get_num_threads() if torch else None,
        features=features,
        level=level,
        level_reason=level_reason,
        products=_products() if torch and level else "-",
    )
    operations: tuple[Choice, ...] = ()
    device_name = dtype_name = None
    dtype_reason = ""
    if torch is None:
        advice.append(f"torch cannot be imported ({torch_problem}): see https://pytorch.org/get-started/locally/")
    else:
        from fastbert.ops import dispatch

        device = torch.device("cuda" if gpus else "cpu")
        if level or device.type != "cpu":
            device_name = device.type
            operations = tuple(dispatch.report(device))
            dtype, dtype_reason = dispatch.fastest_dtype(device)
            dtype_name = DTYPE_NAMES[str(dtype).removeprefix("torch.")]
    return Diagnosis(
        versions=versions,
        cpu=cpu,
        gpus=gpus,
        gpu_reason=gpu_reason,
        extension_parts=parts,
        triton_kernels=kernels,
        triton_reason=_triton_reason(kernels, versions["triton"], bool(gpus)),
        kernel_configurations=_configurations(kernels, versions["triton"]),
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
    """The module, or None and why it is missing: doctor is what one runs when torch does not load."""
    try:
        import torch
    except (ImportError, OSError) as error:
        return None, str(error)
    return torch, ""


def _extension() -> tuple[dict[str, bool], dict[str, bool], list[str]]:
    """CPU features, built parts, and advice if the extension does not load."""
    try:
        from fastbert import _C
    except ImportError as error:
        parts = dict.fromkeys(EXTENSION_PARTS, False)
        return {}, parts, [f"the C++ extension does not load ({error}): install fastbert again"]
    return _C.cpu_features(), {part: hasattr(_C, name) for part, name in EXTENSION_PARTS.items()}, []


def _level(advice: list[str]) -> tuple[str | None, str]:
    """The level of the CPU kernels and why; a wrong FASTBERT_CPU is said here too, since kernels refuse to run."""
    from fastbert import cpu_capability

    try:
        return cpu_capability.level(), cpu_capability.reason()
    except UserError as error:
        advice.append(str(error))
        return None, f"{cpu_capability.VARIABLE} is wrong"


def _products() -> str:
    from fastbert import cpu_capability
    from fastbert.ops.native import matmul_table

    rules = matmul_table.DEFAULTS[cpu_capability.level()]
    ours = " and ".join(element for element, choice in rules.items() if choice == matmul_table.NATIVE)
    theirs = " and ".join(element for element, choice in rules.items() if choice != matmul_table.NATIVE)
    rule = f"{ours} ours" + (f", {theirs} torch's" if theirs else "")
    path = matmul_table.saved_path()
    if not os.path.exists(path):
        return f"{rule}; `fastbert doctor --tune` measures this CPU's on a machine without a GPU"
    try:
        measured = matmul_table.load(path)
    except UserError as error:
        return f"{rule}, because {error}"
    count = len(measured.get(matmul_table.cpu_key(cpu_capability.level()), {}))
    return f"{rule}, but for what was measured in {path}: {count} shapes of this CPU"


def _usable_cores() -> float:
    """Logical cores that this process may use: by affinity, and by the quota of a container (cgroup v2)."""
    cores = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else min(cores, int(quota) / int(period))


def _gpus(torch: Any) -> tuple[tuple[Gpu, ...], str]:
    if torch is None:
        return (), "torch is missing"
    if torch.version.cuda is None and torch.version.hip is None:
        return (), "this torch is a CPU build, which sees no GPU"
    if not torch.cuda.is_available():
        return (), "torch finds no GPU with a working driver"
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            Gpu(
                name=properties.name,
                memory_gib=round(properties.total_memory / 2**30, 1),
                compute_capability=f"{properties.major}.{properties.minor}",
            )
        )
    return tuple(found), ""


def _triton_kernels(torch: Any) -> tuple[str, ...]:
    """The operations that have a Triton kernel."""
    if torch is None:
        return ()
    return importlib.import_module("fastbert.ops.dispatch").supported_by("triton")


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
        return "shipped; `fastbert doctor --tune` measures others on a GPU"
    try:
        tables = tuning.load(path)
    except UserError as error:
        return f"shipped, because {error}"
    counts = [f"{sum(map(len, kernels.values()))} for {gpu}" for gpu, kernels in sorted(tables.items())]
    return f"shipped, and measured in {path}: {', '.join(counts)}"


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
