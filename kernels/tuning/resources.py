"""Compile one launch for a GPU that is not present, and read the resources and instructions of its machine code."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fastbert.kernels.launch import Launch
from fastbert.kernels.tuning import sass

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
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.bool: "*i1",
    torch.uint8: "*u8",
}


@dataclass(frozen=True, kw_only=True)
class Body:
    """A loop of a compiled kernel, or a part of it outside of loops."""

    loop: bool
    instructions: int
    scores: int | None = None
    """The attention scores that a thread computes per iteration; None where they are not known."""
    matmuls: float | None = None
    """The matmuls over these scores. More than the algorithm has mean that warps repeat each other's work, that tiles
    are padded, or that the compiler unrolled the loop."""
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def per_score(self) -> float | None:
        """Return the instructions per thread and score."""
        return self.instructions / self.scores if self.scores else None


@dataclass(frozen=True, kw_only=True)
class Resources:
    """The resources of one compiled kernel. What is None has not been read: AMD's machine code is not disassembled."""

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
    copies: Mapping[int, int] | None = None
    """Asynchronous copies into shared memory (LDGSTS) in the whole kernel, by the bytes that a thread copies."""
    tma: int | None = None
    """Copies of whole tiles (UTMALDG) in the whole kernel."""
    loads: Mapping[int, int] | None = None
    """Loads from global memory (LDG) in the whole kernel, by the bytes that a thread loads."""
    instructions: int | None = None
    """Instructions of the whole kernel."""
    bodies: tuple[Body, ...] = ()
    """The innermost loops, and the parts outside of loops that multiply matrices."""
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Return whether nothing spills and the shared memory suffices."""
        return self.spills == 0 and self.shared <= SHARED_MEMORY[self.target][0]

    @property
    def inner(self) -> Body | None:
        """Return the body in which the kernel spends its time.

        This is the one that computes the most scores or, among equals and elsewhere, multiplies matrices in a loop.
        Attention has one loop for whole tiles and a longer one for those with a mask: the shorter one counts.
        """

        def rank(body: Body) -> tuple[int, bool, int, int]:
            matmuls = body.kinds.get("matmul", 0)
            size = -body.instructions if body.scores else body.instructions
            return body.scores or 0, body.loop, matmuls, size

        return max(self.bodies, key=rank, default=None)

    @property
    def per_score(self) -> float | None:
        """Return the instructions per thread and score of the inner loop."""
        return self.inner.per_score if self.inner else None


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
    details: dict[str, Any] = {}
    if target.startswith("gfx"):
        registers, spills = _read_amd(compiled.asm["amdgcn"])
    else:
        registers, spills = sass.usage(compiled.asm["cubin"])
        program = sass.disassemble(compiled.asm["cubin"])
        details = {
            "copies": program.accesses("LDGSTS"),
            "tma": program.number("UTMALDG"),
            "loads": program.accesses("LDG"),
            "instructions": len(program.instructions),
            "bodies": tuple(_body(body, launch) for body in program.bodies()),
        }
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
        **details,
        seconds=round(time.perf_counter() - began, 2),
    )


def _body(body: sass.Body, launch: Launch) -> Body:
    """Return a body with the attention scores that a thread computes in it.

    In the loops of a kernel whose configuration has the tile's size, these are its share of the tile. Kernels with
    several tiles compute whole rows of scores, each with one exponential.
    """
    scores = matmuls = None
    exponentials, threads = body.kinds.get("exp2", 0), 32 * launch.config.num_warps
    if "attention" in launch.kernel.__module__ and exponentials and "BLOCK_D" in launch.constants:
        if not {"BLOCK_M", "BLOCK_N"} <= launch.constants.keys():
            scores = exponentials
        elif body.loop:
            scores = launch.constants["BLOCK_M"] * launch.constants["BLOCK_N"] // threads
    if scores and body.multiply_adds:
        matmuls = round(body.multiply_adds / (32 * scores * launch.constants["BLOCK_D"]), 2)
    return Body(loop=body.loop, instructions=body.instructions, scores=scores, matmuls=matmuls, kinds=body.kinds)


def _read_amd(assembly: str) -> tuple[int, int]:
    def number(name: str) -> int:
        match = re.search(rf"\.{name}:\s*(\d+)", assembly)
        if match is None:
            raise RuntimeError(f"the assembly does not contain {name}")
        return int(match[1])

    # Including accumulation registers; scalar registers spill into vector registers, not into memory.
    return number("vgpr_count"), number("vgpr_spill_count")
