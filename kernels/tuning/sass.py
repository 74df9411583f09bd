"""Disassemble kernels compiled for NVIDIA GPUs, and count the instructions of their loops and memory accesses.

Counts are static: each instruction of a loop counts once per iteration, whichever way its branches go.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Classes of instructions by the beginning of their opcode; the first that matches counts.
KINDS = {
    "matmul": r"[A-Z]G?MMA\b|UTC\w*MMA",
    "exp2": r"MUFU\.EX2",
    "special": r"MUFU",
    "multiply": r"IMAD(?!\.(MOV|SHL|IADD))|IMUL|UIMAD",
    "logic": r"U?P?LOP3",
    "permute": r"U?PRMT",
    "add, shift": r"U?IADD|VIADD|U?LEA|U?SHF|IMAD\.(SHL|IADD)|IABS|VIMNMX|IMNMX|U?BMSK|U?SGXT",
    "compare": r"U?ISETP|FSETP|HSETP|VOTE",
    "select": r"U?F?SEL\b",
    "move": r"U?MOV|IMAD\.MOV|CS2R|S2R|S2UR|R2UR|P2R|R2P|U?LDC",
    "convert": r"F2F|I2F|F2I|HADD2\.|I2I",
    "float": r"F[A-Z]|H(ADD|MUL|FMA)|U?VFMNMX",
    "shared": r"LDS|STS|LDSM|STSM",
    "copy": r"LDGSTS",
    "tma": r"UTMA",
    "load": r"LDG?\b",
    "store": r"STG?\b|RED|ATOM",
    "local": r"LDL|STL",
    "tensor memory": r"LDTM|STTM",
    "shuffle": r"SHFL|U?REDUX",
    "barrier": r"BAR|SYNCS|WARPSYNC|WARPGROUP|LDGDEPBAR|DEPBAR|ARRIVES|MEMBAR|FENCE|ERRBAR|BSSY|BSYNC|NANOSLEEP",
    "branch": r"BRA|EXIT|CALL|RET|BRX|JMP|U?BREV",
}
# Of these alone consist loops that wait for a barrier.
WAITING = {"barrier", "branch", "move", "compare", "add, shift", "other"}


@dataclass(frozen=True)
class Instruction:
    """One machine instruction. `target` is the index of the instruction that it branches to."""

    opcode: str
    conditional: bool = False
    target: int | None = None

    @property
    def ends_block(self) -> bool:
        """Return whether control never continues with the next instruction."""
        return not self.conditional and self.opcode.split(".")[0] in ("EXIT", "BRA", "RET", "BRX", "JMP")


@dataclass(frozen=True)
class Body:
    """Instructions that are executed once per iteration of a loop, or once per program."""

    loop: bool
    first: int
    """The index of the first instruction in the kernel."""
    opcodes: Counter[str]

    @property
    def instructions(self) -> int:
        """Return the number of instructions per thread."""
        return self.opcodes.total()

    @property
    def kinds(self) -> dict[str, int]:
        """Return the numbers of instructions by class, without classes that do not occur."""
        counts: Counter[str] = Counter()
        for opcode, number in self.opcodes.items():
            counts[kind(opcode)] += number
        return {name: counts[name] for name in (*KINDS, "other") if counts[name]}

    @property
    def multiply_adds(self) -> int:
        """Return the multiply-adds per warp of its matrix instructions; 0 where opcodes do not name their shapes."""
        return sum(number * matrix_multiply_adds(opcode) for opcode, number in self.opcodes.items())


@functools.cache
def kind(opcode: str) -> str:
    """Return the class of an opcode."""
    return next((name for name, pattern in KINDS.items() if re.match(pattern, opcode)), "other")


def matrix_multiply_adds(opcode: str) -> int:
    """Return the multiply-adds per warp of a matrix instruction, 0 for others and for those of Blackwell."""
    match = re.match(r"[A-Z]GMMA\.(?:SP\.)?(\d+)x(\d+)x(\d+)", opcode)
    if match:
        # Issued by each of four warps for all of them.
        return int(match[1]) * int(match[2]) * int(match[3]) // 4
    match = re.match(r"[A-Z]MMA\.(?:SP\.)?(16|8)8(\d+)", opcode)
    return int(match[1]) * 8 * int(match[2]) if match else 0


def access_bytes(opcode: str) -> int:
    """Return the bytes per thread that a load, store or copy with this opcode transfers."""
    match = re.search(r"\.[US]?(256|128|64|16|8)\b", opcode)
    return int(match[1]) // 8 if match else 4


class Program:
    """The instructions of a kernel, in the order of their addresses."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions: list[Instruction] = list(instructions)

    @property
    def opcodes(self) -> Counter[str]:
        """Return the number of instructions by opcode."""
        return Counter(instruction.opcode for instruction in self.instructions)

    def accesses(self, name: str) -> dict[int, int]:
        """Return the number of instructions whose opcode is `name`, by the bytes that each transfers, widest first."""
        counts: Counter[int] = Counter()
        for opcode, number in self.opcodes.items():
            if opcode.split(".")[0] == name:
                counts[access_bytes(opcode)] += number
        return dict(sorted(counts.items(), reverse=True))

    def number(self, pattern: str) -> int:
        """Return the number of instructions whose opcode begins with a regular expression."""
        return sum(number for opcode, number in self.opcodes.items() if re.match(pattern, opcode))

    def bodies(self) -> list[Body]:
        """Return the innermost loops, and the parts outside of loops that multiply matrices, by address.

        A loop that only waits for a barrier belongs to the code around it. A part outside of loops ends where control
        never continues with the next instruction: the variants of a kernel for different lengths are such parts.
        """
        loops = self._loops()
        inside = set().union(*loops)
        innermost = [loop for loop in loops if not any(other < loop for other in loops)]
        bodies = [self._body(sorted(loop), True) for loop in innermost]
        part: list[int] = []
        for index, instruction in enumerate(self.instructions):
            if index not in inside:
                part.append(index)
            if instruction.ends_block or index == len(self.instructions) - 1:
                straight = self._body(part, False)
                if "matmul" in straight.kinds:
                    bodies.append(straight)
                part = []
        return sorted(bodies, key=lambda body: body.first)

    def _body(self, indices: Sequence[int], loop: bool) -> Body:
        opcodes = Counter(self.instructions[index].opcode for index in indices)
        return Body(loop, min(indices, default=0), opcodes)

    def _loops(self) -> list[frozenset[int]]:
        """Return the indices of each natural loop's instructions, those of loops with one header together."""
        starts, successors = self._blocks()
        dominators = _dominators(successors)
        predecessors: dict[int, list[int]] = {block: [] for block in successors}
        for block, following in successors.items():
            for successor in following:
                predecessors[successor].append(block)
        loops: dict[int, set[int]] = {}
        for block in dominators:
            for header in successors[block]:
                if header in dominators[block]:
                    loops.setdefault(header, {header}).update(_natural_loop(header, block, predecessors))
        ends = dict(zip(starts, [*starts[1:], len(self.instructions)], strict=True))
        indices = [frozenset(i for start in loop for i in range(start, ends[start])) for loop in loops.values()]
        return [loop for loop in indices if not self._waits(loop)]

    def _waits(self, loop: Iterable[int]) -> bool:
        """Return whether a loop only waits: for a barrier, or after the end of the kernel."""
        opcodes = [self.instructions[index].opcode for index in loop]
        waiting = any(opcode.startswith("SYNCS") for opcode in opcodes)
        return len(opcodes) == 1 or (waiting and {kind(opcode) for opcode in opcodes} <= WAITING)

    def _blocks(self) -> tuple[list[int], dict[int, list[int]]]:
        """Return the first instructions of the basic blocks, and for each those of its successors."""
        count = len(self.instructions)
        starts = {0}
        for index, instruction in enumerate(self.instructions):
            if instruction.target is not None:
                starts |= {instruction.target, index + 1}
            elif instruction.ends_block:
                starts.add(index + 1)
        ordered = sorted(start for start in starts if start < count)
        successors: dict[int, list[int]] = {}
        for start, end in zip(ordered, [*ordered[1:], count], strict=True):
            last = self.instructions[end - 1]
            following = [last.target] if last.target is not None else []
            if not last.ends_block and end < count:
                following.append(end)
            successors[start] = following
        return ordered, successors


def _dominators(successors: dict[int, list[int]]) -> dict[int, set[int]]:
    """Return the blocks that every path from block 0 to a block passes, for each block that can be reached."""
    order: list[int] = []
    pending, seen = [0], {0}
    while pending:
        block = pending.pop()
        order.append(block)
        for successor in successors[block]:
            if successor not in seen:
                seen.add(successor)
                pending.append(successor)
    predecessors: dict[int, list[int]] = {block: [] for block in order}
    for block in order:
        for successor in successors[block]:
            predecessors[successor].append(block)
    dominators = {block: set(order) for block in order} | {0: {0}}
    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            common = set.intersection(*(dominators[predecessor] for predecessor in predecessors[block])) | {block}
            if common != dominators[block]:
                dominators[block], changed = common, True
    return dominators


def _natural_loop(header: int, last: int, predecessors: dict[int, list[int]]) -> set[int]:
    """Return the blocks from which `last`, which branches back to `header`, is reached without passing `header`."""
    loop, pending = {header}, [last]
    while pending:
        block = pending.pop()
        if block not in loop:
            loop.add(block)
            pending += predecessors[block]
    return loop


def parse(listing: str) -> Program:
    """Return the program of a listing by nvdisasm, without the padding at its end."""
    labels: dict[str, int] = {}
    lines: list[tuple[str, str]] = []
    for line in listing.splitlines():
        label = re.match(r"(\.L_x_\d+):", line)
        if label:
            labels[label[1]] = len(lines)
        match = re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.+?)\s*;", line)
        if match:
            lines.append((match[1], line))
    instructions = []
    for text, _ in lines:
        predicate, opcode, operands = re.match(r"(@!?U?P\w+\s+)?(\S+)\s*(.*)", text).groups()  # type: ignore[union-attr]
        label = re.search(r"`\((\.L_x_\d+)\)", operands) if opcode.startswith(("BRA", "JMP")) else None
        conditional = bool(predicate) or (label is not None and not operands.startswith("`"))
        instructions.append(Instruction(opcode, conditional, labels[label[1]] if label else None))
    while instructions and instructions[-1].opcode == "NOP":
        instructions.pop()
    return Program(instructions)


def disassemble(cubin: bytes) -> Program:
    """Return the program of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "nvdisasm", "-c", "-ndf", file.name]
        return parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def usage(cubin: bytes) -> tuple[int, int]:
    """Return registers and spilled bytes per thread of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [TOOLS / "cuobjdump", "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if match is None:
        raise RuntimeError(f"cuobjdump reports no registers: {text!r}")
    return int(match[1]), int(match[2])
