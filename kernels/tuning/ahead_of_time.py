"""Compile the kernels for a GPU that is not present, and report registers, spills and shared memory of each.

`python -P -m fastbert.kernels.tuning.ahead_of_time --target sm_90` prints the table and exits 1 if a kernel spills
registers or needs more shared memory than a program can have. It compiles what the launchers would launch, for the
cases in `compile_cases.py` of every package of kernels.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

if __name__ == "__main__" and importlib.util.find_spec("triton") is None:
    sys.exit("error: compiling kernels needs triton: `pip install 'fastbert-engine[gpu]'`")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastbert.errors import UserError
from fastbert.kernels.configs.defaults import DEFAULTS
from fastbert.kernels.launch import Launch, recording
from fastbert.kernels.tuning.discovery import operation_modules

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# Bytes available to one program, and to all programs of a multiprocessor.
SHARED_MEMORY = {
    "sm_80": (166912, 167936),
    "sm_90": (232448, 233472),
    "sm_100": (232448, 233472),
    "gfx942": (65536, 65536),
}
REGISTERS = {"sm_80": 65536, "sm_90": 65536, "sm_100": 65536, "gfx942": 131072}
POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
}


class Case(Protocol):
    """One variant of an operation, by all that determines the compiled code. `str` names it."""

    def launch(self) -> None:
        """Launch every kernel of forward and backward."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one compiled kernel."""

    kernel: str
    case: str
    target: str
    warps: int
    registers: int
    """Registers per thread."""
    spills: int
    """Spilled bytes per thread; on AMD, registers."""
    shared: int
    """Bytes of shared memory per program."""
    programs: int
    """Programs that fit on a multiprocessor."""
    seconds: float

    @property
    def fits(self) -> bool:
        """Return whether nothing spills and the shared memory suffices."""
        return self.spills == 0 and self.shared <= SHARED_MEMORY[self.target][0]


def cases(full: bool = False) -> list[Case]:
    """Return the cases that the default configurations tell apart, with most flags; with `full`, all combinations."""
    modules = operation_modules("compile_cases")
    return [case for module in modules for case in (module.every() if full else module.demanding())]


def brief_cases() -> list[Case]:
    """Return few cases in which each kernel appears."""
    return [case for module in operation_modules("compile_cases") for case in module.brief()]


def launches(case: Case, target: str) -> list[Launch]:
    """Return the launches of `case`, forward and backward, on `target`."""
    with recording(target) as recorded:
        case.launch()
    return list(recorded)


def source(launch: Launch, target: str) -> ASTSource:
    """Return the kernel with the types and constants of a launch, specialised as by a launch on `target`."""
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    values = dict(zip(launch.kernel.arg_names, launch.arguments, strict=False)) | launch.constants
    for i, parameter in enumerate(launch.kernel.params):
        value = values[parameter.name]
        kind = _kind(value)
        if (
            parameter.is_constexpr
            or value is None
            or (kind == "i32" and value == 1 and not parameter.do_not_specialize)
        ):
            signature[parameter.name], constants[i,] = "constexpr", value
            continue
        signature[parameter.name] = kind
        if kind[0] == "*" or (kind[0] == "i" and not parameter.do_not_specialize and value % 16 == 0):
            attributes[i,] = [["tt.divisibility", 16]]
        if kind[0] == "*" and target.startswith("gfx"):
            # For tensors below 2 GB, the compiler uses loads and stores with 32-bit offsets.
            attributes[i,].append(["tt.pointer_range", 32])
    return ASTSource(launch.kernel, signature=signature, constexprs=constants, attrs=attributes)


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return ""


def gpu_target(target: str) -> GPUTarget:
    """Return the compiler's description of `target`."""
    if target.startswith("gfx"):
        return GPUTarget("hip", target, 64)
    return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)


def compile_launch(launch: Launch, case: str, target: str) -> Resources:
    """Compile one launch and read the resources of its machine code."""
    began = time.perf_counter()
    options = dict(launch.config.options)
    compiled = triton.compile(source(launch, target), target=gpu_target(target), options=options)
    if target.startswith("gfx"):
        registers, spills = _read_amd(compiled.asm["amdgcn"])
    else:
        registers, spills = _read_nvidia(compiled.asm["cubin"])
    threads = launch.config.num_warps * (64 if target.startswith("gfx") else 32)
    shared = int(compiled.metadata.shared)
    # The driver reserves a kilobyte per program.
    by_memory = SHARED_MEMORY[target][1] // (shared + 1024) if shared else 32
    by_registers = REGISTERS[target] // (max(-(-registers // 8) * 8, 1) * threads)
    return Resources(
        kernel=launch.kernel.__name__,
        case=case,
        target=target,
        warps=launch.config.num_warps,
        registers=registers,
        spills=spills,
        shared=shared,
        programs=min(by_memory, by_registers, 2048 // threads),
        seconds=round(time.perf_counter() - began, 2),
    )


def _read_nvidia(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise RuntimeError(f"cuobjdump reports no registers: {text!r}")
    return int(match[1]), int(match[2])


def _read_amd(assembly: str) -> tuple[int, int]:
    def number(name: str) -> int:
        match = re.search(rf"\.{name}:\s*(\d+)", assembly)
        if match is None:
            raise RuntimeError(f"the assembly does not contain {name}")
        return int(match[1])

    # Including accumulation registers; scalar registers spill into vector registers, not into memory.
    return number("vgpr_count"), number("vgpr_spill_count")


def _resources_of(case: Case, target: str, kernels: Sequence[str] | None) -> list[Resources]:
    selected = [launch for launch in launches(case, target) if kernels is None or launch.kernel.__name__ in kernels]
    return [compile_launch(launch, str(case), target) for launch in selected]


def resources(
    target: str,
    cases: Iterable[Case],
    *,
    kernels: Sequence[str] | None = None,
    processes: int | None = None,
) -> list[Resources]:
    """Compile all launches of `cases` for `target`, in parallel processes."""
    if target not in TARGETS:
        raise UserError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    cases = list(cases)
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        rows = pool.map(_resources_of, cases, [target] * len(cases), [kernels] * len(cases))
        return list(itertools.chain.from_iterable(rows))


def table(rows: Sequence[Resources]) -> str:
    """Return the table as text, one line per kernel, those that do not fit marked."""
    width, name = (max(len(text) for text in texts) for texts in zip(*((row.case, row.kernel) for row in rows)))
    lines = [f"{'kernel':{name}} {'case':{width}} target warps registers spills  shared programs seconds"]
    for row in rows:
        numbers = f"{row.warps:5} {row.registers:9} {row.spills:6} {row.shared:7} {row.programs:8} {row.seconds:7.1f}"
        verdict = "" if row.fits else "  DOES NOT FIT"
        lines.append(f"{row.kernel:{name}} {row.case:{width}} {row.target:6} {numbers}{verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m fastbert.kernels.tuning.ahead_of_time", description=__doc__)
    parser.add_argument(
        "--target", choices=TARGETS, action="append", help="GPU to compile for (default: all that have configurations)"
    )
    parser.add_argument("--full", action="store_true", help="all combinations of flags, not only the demanding ones")
    parser.add_argument("--brief", action="store_true", help="each kernel at least once, in bf16 with all flags")
    parser.add_argument("--processes", type=int, default=None, help="concurrent compilers (default: one per core)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the rows there")
    options = parser.parse_args(arguments)
    selected = brief_cases() if options.brief else cases(options.full)
    rows: list[Resources] = []
    for target in options.target or [name for name in TARGETS if name in DEFAULTS]:
        rows += resources(target, selected, processes=options.processes)
    print(table(rows))
    if options.json:
        record = {"triton": triton.__version__, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.fits for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
