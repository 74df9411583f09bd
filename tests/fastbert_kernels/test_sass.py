"""Machine code is parsed and its loops are found: on listings written here, in the disassembler's format."""

import pytest

pytest.importorskip("triton", reason="needs triton")
from sweeps import sweep

from fastbert.kernels.tuning import sass


def listing(*lines: str) -> str:
    """Return a listing; lines that begin with a dot are labels."""
    texts, address = [], 0
    for line in lines:
        if line.startswith("."):
            texts.append(f"{line}:")
            continue
        texts.append(f"        /*{address:04x}*/                   {line} ;")
        address += 16
    return "\n".join(texts)


# A prologue, a loop in a loop, one that waits out of line, and the trap and padding at the end.
NESTED = listing(
    "S2R R0, SR_CTAID.X",
    "@P0 EXIT",
    ".L_x_0",
    "LDG.E.128.CONSTANT R4, [R2.64]",
    ".L_x_1",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3",
    "@!P1 BRA `(.L_x_3)",
    ".L_x_2",
    "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0",
    "MUFU.EX2 R5, R5",
    "IMAD.WIDE.U32 R6, R7, R8, RZ",
    "@P2 BRA `(.L_x_1)",
    "FADD R1, R1, R2",
    "BRA.U UP0, `(.L_x_0)",
    "STG.E.U16 [R2.64], R1",
    "EXIT",
    ".L_x_3",
    "SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R3",
    "@!P1 BRA `(.L_x_3)",
    "BRA `(.L_x_2)",
    ".L_x_4",
    "BRA `(.L_x_4)",
    "NOP",
    "NOP",
)


def test_loops() -> None:
    program = sass.parse(NESTED)
    assert len(program.instructions) == 17
    bodies = program.bodies()
    # Neither the outer loop, nor the one that waits, nor the trap: what waits out of line belongs to the inner loop.
    assert [(body.loop, body.instructions) for body in bodies] == [(True, 9)]
    assert bodies[0].kinds == {"matmul": 1, "exp2": 1, "multiply": 1, "barrier": 2, "branch": 4}
    assert bodies[0].multiply_adds == 64 * 128 * 16 // 4
    assert program.accesses("LDG") == {16: 1}
    assert program.accesses("STG") == {2: 1}


def test_a_loop_with_a_branch_counts_both_ways() -> None:
    program = sass.parse(
        listing(
            ".L_x_0",
            "@P0 BRA `(.L_x_1)",
            "FADD R1, R1, R2",
            "BRA `(.L_x_2)",
            ".L_x_1",
            "FMUL R1, R1, R2",
            ".L_x_2",
            "@P1 BRA `(.L_x_0)",
            "EXIT",
        )
    )
    assert [(body.loop, body.instructions) for body in program.bodies()] == [(True, 5)]


def test_parts_outside_of_loops_end_where_control_does() -> None:
    program = sass.parse(
        listing(
            "@P0 BRA `(.L_x_0)",
            "HMMA.16816.F32.BF16 R4, R8, R10, R4",
            "HMMA.1688.F32.TF32 R4, R8, R10, R4",
            "@P1 EXIT",
            "STG.E.64 [R2.64], R4",
            "EXIT",
            ".L_x_0",
            "FADD R1, R1, R2",
            "EXIT",
        )
    )
    bodies = program.bodies()
    assert [(body.loop, body.first, body.instructions) for body in bodies] == [(False, 0, 6)]
    assert bodies[0].multiply_adds == 16 * 8 * 16 + 16 * 8 * 8


@sweep(
    ("opcode", "kind", "size"),
    [
        ("LDGSTS.E.BYPASS.LTC128B.128", "copy", 16),
        ("LDGSTS.E", "copy", 4),
        ("LDGSTS.E.64", "copy", 8),
        ("LDG.E.U16", "load", 2),
        ("LDG.E.U8.CONSTANT", "load", 1),
        ("LDG.E.64", "load", 8),
        ("IMAD.MOV.U32", "move", 4),
        ("IMAD.SHL.U32", "add, shift", 4),
        ("IMAD.HI.U32", "multiply", 4),
        ("LDGDEPBAR", "barrier", 4),
        ("UTMALDG.2D", "tma", 4),
        ("UTCHMMA", "matmul", 4),
        ("FSEL", "select", 4),
        ("F2FP.BF16.F32.PACK_AB", "convert", 4),
        ("FFMA.FTZ", "float", 4),
    ],
)
def test_kinds_and_sizes(opcode: str, kind: str, size: int) -> None:
    assert sass.kind(opcode) == kind
    assert sass.access_bytes(opcode) == size
