"""`fastbert doctor`: what was built, which backend runs each operation, and why not a faster one."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import partial

from fastbert.doctor import Diagnosis, examine
from fastbert.errors import UserError
from fastbert.io.progress import Bars

Row = tuple[str, str]

EXAMPLES = (
    "fastbert doctor",
    "fastbert doctor --json",
)


@dataclass(frozen=True, kw_only=True)
class Config:
    """Print versions, CPU and GPU features, built kernels, and the backend of each operation with the reason."""

    json: bool = False
    """Write one JSON object instead of text."""
    tune: bool = False
    """First measure kernel configurations on this machine's GPU or, without one, matmuls on its CPU (takes
    minutes), and save those faster than the defaults."""


def run(config: Config, *, quiet: bool = False) -> int:
    """Print the diagnosis; return 1 if torch or the C++ extension is missing."""
    if config.tune:
        _tune(quiet)
    diagnosis = examine()
    if config.json:
        print(json.dumps(dataclasses.asdict(diagnosis), indent=2))
    else:
        _show(diagnosis)
    return 0 if diagnosis.device and not diagnosis.extension_problem else 1


def _tune(quiet: bool) -> None:
    """Measure kernel configurations with a bar, and print a summary."""
    import torch

    from fastbert.ops.dispatch import HAS_TRITON

    if not torch.cuda.is_available():
        _tune_matmul(quiet)
        return
    if not HAS_TRITON:
        raise UserError("cannot tune kernels: triton is not installed; `pip install 'fastbert-engine[gpu]'`")
    from fastbert.kernels.tuning import tune

    with Bars(quiet) as bars:
        path, measured = tune.run(torch.device("cuda"), partial(bars.count, "tuning kernels"))
        bars.message(f"{len(measured)} configurations measured; those faster than the defaults are in {path}")


def _tune_matmul(quiet: bool) -> None:
    """Measure the CPU's matmuls with a bar, and print those whose choice differs from the default."""
    from fastbert import cpu_capability
    from fastbert.ops.native import matmul_table, matmul_tune

    with Bars(quiet) as bars:
        path, trials = matmul_tune.run(partial(bars.count, "tuning matmuls"))
        changed = [
            trial for trial in trials if trial.choice != matmul_table.DEFAULTS[cpu_capability.current()][trial.element]
        ]
        for trial in changed:
            shape = f"{trial.element} {trial.rows} x {trial.depth} x {trial.columns}"
            bars.message(
                f"{shape}: {trial.choice} (fastbert {trial.native * 1e3:.2f} ms, torch {trial.torch * 1e3:.2f} ms)"
            )
        bars.message(
            f"{len(trials)} matmuls measured, {len(changed)} choices differ from the defaults; saved in {path}"
        )


def _show(diagnosis: Diagnosis) -> None:
    """Print text to standard output, in colour on a terminal."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    sections = _sections(diagnosis)
    width = max(len(name) for _, rows in sections for name, _ in rows)
    for title, rows in sections:
        console.print(Text(title, style="bold"))
        for name, value in rows:
            console.print(Text.assemble("  ", (f"{name:<{width}}", "cyan"), "  ", value))
        console.print()
    for line in diagnosis.advice:
        console.print(Text.assemble(("advice: ", "bold yellow"), line))


def _sections(diagnosis: Diagnosis) -> list[tuple[str, list[Row]]]:
    cpu, features = diagnosis.cpu, diagnosis.cpu.features
    problem = diagnosis.extension_problem
    threads = "torch is missing" if cpu.torch_threads is None else f"torch uses {_count(cpu.torch_threads, 'thread')}"
    usable = "" if cpu.usable_cores == cpu.logical_cores else f", {cpu.usable_cores:g} usable"
    sections = [
        ("Versions", [(name, version or "not installed") for name, version in diagnosis.versions.items()]),
        (
            "CPU",
            [
                ("model", f"{cpu.model} ({cpu.architecture})"),
                ("cores", f"{cpu.logical_cores} logical{usable}; {threads}"),
                ("kernels", f"{cpu.level or 'none':<7} {cpu.level_reason}"),
                ("matmuls", cpu.matmul),
                ("can use", _names(features, True)),
                ("cannot use", _names(features, False)),
            ],
        ),
        (
            "GPU",
            [
                (f"cuda:{index}", f"{gpu.name}, {gpu.memory_gib:g} GiB, compute capability {gpu.compute_capability}")
                for index, gpu in enumerate(diagnosis.gpus)
            ]
            or [("none", diagnosis.gpu_reason)],
        ),
        (
            "Built",
            [
                ("C++ extension", f"does not load: {problem}" if problem else "loads"),
                ("native kernels", _kernels(diagnosis.native_kernels, problem)),
                ("Triton kernels", _kernels(diagnosis.triton_kernels, diagnosis.triton_reason)),
                *[("not compiled", line) for line in diagnosis.kernel_failures],
                ("configurations", diagnosis.kernel_configurations),
            ],
        ),
    ]
    if diagnosis.device:
        rows = [(choice.operation, f"{choice.backend:<7} {choice.reason}") for choice in diagnosis.operations]
        rows.append(("fastest dtype", f"{diagnosis.fastest_dtype:<7} {diagnosis.dtype_reason}"))
        sections.append((f"Operations on {diagnosis.device}", rows))
    return sections


def _names(features: dict[str, bool], usable: bool) -> str:
    names = [name for name, has in features.items() if has is usable and name != "amx_in_hardware"]
    return " ".join(names) or "-"


def _kernels(operations: tuple[str, ...], problem: str) -> str:
    """Return the operations with a kernel, after the reason why it does not run."""
    names = ", ".join(operations) or "none"
    return f"not used, {problem}: {names}" if problem and operations else names


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")
