"""Print the resources of compiled kernels as a table of at most 100 columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from fastbert.kernels.tuning.resources import Body, Resources

HEADINGS = ("kernel", "case", "regs", "spill", "KiB", "prog", "copies", "inner", "/score")
LEGEND = (
    "regs, spill: registers and spilled bytes per thread; KiB: shared memory per program; prog:",
    "programs per multiprocessor; copies: asynchronous ones of 16 bytes, + narrower, T: whole tiles;",
    "inner: instructions per thread of the inner loop, - without one; /score: per attention score.",
)


def cells(row: Resources) -> tuple[str, ...]:
    """Return one kernel's cells, in the order of `HEADINGS`; what is not known is a dash."""
    inner, per_score = row.inner, row.per_score
    return (
        row.kernel,
        row.case,
        str(row.registers),
        str(row.spills),
        f"{row.shared / 1024:.{0 if row.shared >= 10 * 1024 else 1}f}",
        str(row.programs),
        copies(row),
        str(inner.instructions) if inner else "-",
        f"{per_score:.1f}" if per_score else "-",
    )


def copies(row: Resources) -> str:
    """Return the asynchronous copies: "16", "16+4" with narrower ones, "4T" for whole tiles, "-" where none."""
    if row.copies is None:
        return "-"
    wide = row.copies.get(16, 0)
    narrow = sum(row.copies.values()) - wide
    texts = [f"{wide}+{narrow}" if narrow else str(wide)] if row.copies else []
    return " ".join([*texts, *([f"{row.tma}T"] if row.tma else [])]) or "-"


def table(rows: Sequence[Resources], *, loops: bool = False) -> str:
    """Return the table as text, one line per kernel, those that do not fit marked; `loops` adds a line per loop."""
    lines: list[str] = []
    for target, group in itertools.groupby(rows, key=lambda row: row.target):
        of_target = list(group)
        lines += ["", f"{target}:"] if lines else [f"{target}:"]
        lines += _aligned([HEADINGS, *map(cells, of_target)], [_below(row, loops) for row in of_target])
    return "\n".join([*lines, *LEGEND])


def _below(row: Resources, loops: bool) -> list[str]:
    """Return the lines below a kernel's line."""
    lines = [] if row.fits else ["    DOES NOT FIT"]
    return [*lines, *(f"    {body_line(body)}" for body in row.bodies)] if loops else lines


def body_line(body: Body) -> str:
    """Return the counts of a loop, or of a part outside of loops."""
    per_score = f", {body.scores} scores, {body.per_score:.1f} per score" if body.scores else ""
    matmuls = f", {body.matmuls:g} matmuls" if body.matmuls else ""
    kinds = ", ".join(f"{number} {name}" for name, number in body.kinds.items())
    return f"{'loop' if body.loop else 'part'}: {body.instructions} instructions{per_score}{matmuls}: {kinds}"


def _aligned(rows: Sequence[Sequence[str]], below: Sequence[Iterable[str]]) -> list[str]:
    """Return lines with aligned columns, the first two to the left, and further lines below each but the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, others in zip(rows, ([], *below), strict=True):
        texts = [
            f"{text:{'<' if i < 2 else '>'}{width}}" for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines += [" ".join(texts).rstrip(), *others]
    return lines
