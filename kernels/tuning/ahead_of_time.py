"""Compile the kernels for a GPU that is not here, and say what each needs: registers, spills, shared memory.

`python -P -m fastbert.kernels.tuning.ahead_of_time --target sm_90` prints the table and exits 1 if a kernel spills
registers or asks for more shared memory than a program can have. What is compiled is what the launchers would launch.
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
from fastbert.kernels.attention import compile_cases
from fastbert.kernels.configs.defaults import SHIPPED
from fastbert.kernels.dropout import compile_cases as cases_dropout
from fastbert.kernels.embedding import compile_cases as cases_embedding
from fastbert.kernels.launch import Launch, recording
from fastbert.kernels.linear import compile_cases as cases_linear
from fastbert.kernels.loss import compile_cases as cases_loss
from fastbert.kernels.norm import compile_cases as cases_norm
from fastbert.kernels.softmax import compile_cases as cases_softmax

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
# Bytes that one program can have, and that all programs of a multiprocessor share.
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
    """One kind of an operation: what decides which code the compiler writes. `str` names it."""

    def launch(self) -> None:
        """Start every kernel of forward and backward."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one compiled kernel needs."""

    kernel: str
    case: str
    target: str
    warps: int
    registers: int
    """Of each thread."""
    spills: int
    """Bytes a thread keeps in memory because registers ran out; on AMD, registers."""
    shared: int
    """Bytes of shared memory of each program."""
    programs: int
    """That fit on a multiprocessor side by side."""
    seconds: float

    @property
    def fits(self) -> bool:
        return self.spills == 0 and self.shared <= SHARED_MEMORY[self.target][0]


# Each has demanding(), every() and brief(), which give cases.
FAMILIES = (compile_cases, cases_softmax, cases_norm, cases_loss, cases_embedding, cases_linear, cases_dropout)


def cases(full: bool = False) -> list[Case]:
    """Those that the shipped table distinguishes, with the flags that need most registers; or all combinations."""
    return [case for family in FAMILIES for case in (family.every() if full else family.demanding())]


def brief_cases() -> list[Case]:
    """Few cases in which each kernel appears."""
    return [case for family in FAMILIES for case in family.brief()]


def launches(case: Case, target: str) -> list[Launch]:
    """What forward and backward of `case` launch on `target`."""
    with recording(target) as recorded:
        case.launch()
    return list(recorded)


def source(launch: Launch, target: str) -> ASTSource:
    """The kernel with the types and constants of a launch, specialised as a launch on `target` would specialise it."""
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
            # Tensors of less than 2 GB: the compiler then uses the hardware's loads and stores with 32-bit offsets.
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
    if target.startswith("gfx"):
        return GPUTarget("hip", target, 64)
    return GPUTarget("cuda", int(target.removeprefix("sm_")), 32)


def compile_launch(launch: Launch, case: str, target: str) -> Resources:
    """Compile one launch and read what the machine code needs."""
    began = time.perf_counter()
    options = dict(launch.config.options)
    compiled = triton.compile(source(launch, target), target=gpu_target(target), options=options)
    if target.startswith("gfx"):
        registers, spills = _read_amd(compiled.asm["amdgcn"])
    else:
        registers, spills = _read_nvidia(compiled.asm["cubin"])
    threads = launch.config.num_warps * (64 if target.startswith("gfx") else 32)
    shared = int(compiled.metadata.shared)
    # The driver keeps a kilobyte of each program for itself.
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
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {text!r}")
    return int(found[1]), int(found[2])


def _read_amd(assembly: str) -> tuple[int, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s*(\d+)", assembly)
        if found is None:
            raise RuntimeError(f"the assembly says nothing of {name}")
        return int(found[1])

    # Accumulation registers are counted in; scalar registers spill into vector registers, not into memory.
    return number("vgpr_count"), number("vgpr_spill_count")


def _resources_of(case: Case, target: str, kernels: Sequence[str] | None) -> list[Resources]:
    found = [launch for launch in launches(case, target) if kernels is None or launch.kernel.__name__ in kernels]
    return [compile_launch(launch, str(case), target) for launch in found]


def resources(
    target: str,
    chosen: Iterable[Case],
    *,
    kernels: Sequence[str] | None = None,
    processes: int | None = None,
) -> list[Resources]:
    """Compile all launches of `chosen` for `target`, in parallel processes."""
    if target not in TARGETS:
        raise UserError(f"unknown target {target!r}: choose one of {', '.join(TARGETS)}")
    chosen = list(chosen)
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        found = pool.map(_resources_of, chosen, [target] * len(chosen), [kernels] * len(chosen))
        return list(itertools.chain.from_iterable(found))


def table(rows: Sequence[Resources]) -> str:
    """Text, a line a kernel, those that do not fit marked."""
    width, name = (max(len(text) for text in texts) for texts in zip(*((row.case, row.kernel) for row in rows)))
    lines = [f"{'kernel':{name}} {'case':{width}} target warps registers spills  shared programs seconds"]
    for row in rows:
        numbers = f"{row.warps:5} {row.registers:9} {row.spills:6} {row.shared:7} {row.programs:8} {row.seconds:7.1f}"
        verdict = "" if row.fits else "  DOES NOT FIT"
        lines.append(f"{row.kernel:{name}} {row.case:{width}} {row.target:6} {numbers}{verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -P -m fastbert.kernels.tuning.ahead_of_time", description=__doc__)
    parser.add_argument("--target", choices=TARGETS, action="append", help="GPU to compile for (default: all shipped)")
    parser.add_argument("--full", action="store_true", help="all combinations of flags, not only the demanding ones")
    parser.add_argument("--brief", action="store_true", help="each kernel at least once, in bf16 with all flags")
    parser.add_argument("--processes", type=int, default=None, help="compilers at a time (default: one a core)")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="also write the rows there")
    chosen = parser.parse_args(arguments)
    wanted = brief_cases() if chosen.brief else cases(chosen.full)
    rows: list[Resources] = []
    for target in chosen.target or [name for name in TARGETS if name in SHIPPED]:
        rows += resources(target, wanted, processes=chosen.processes)
    print(table(rows))
    if chosen.json:
        record = {"triton": triton.__version__, "rows": [asdict(row) for row in rows]}
        chosen.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row.fits for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(f"error: {error}")
