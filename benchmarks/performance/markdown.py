"""Tables and numbers of the page in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, drop_empty: bool = False) -> list[str]:
    """Return the lines of a table and an empty one; `drop_empty` leaves out columns without content."""
    kept = [index for index in range(len(header)) if not drop_empty or index == 0 or any(row[index] for row in rows)]
    lines = [[header[index] for index in kept], ["---"] * len(kept), *([row[index] for index in kept] for row in rows)]
    return [*("| " + " | ".join(map(_cell, line)) + " |" for line in lines), ""]


def _cell(text: str) -> str:
    """Return the text of a cell without what would end the cell or the table."""
    return text.replace("|", "/").replace("\n", " ").strip()


def number(value: float) -> str:
    """Return a number with three significant digits or more."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text or value == 0 else f"{value:.2e}"


def integer(value: float) -> str:
    """Return a rate: whole from 10 on."""
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share * 100:.0f} %"
