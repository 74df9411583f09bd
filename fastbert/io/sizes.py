"""Sizes of files and memory as text."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size_text(size: float) -> str:
    """Return a number of bytes in decimal units with up to three digits: "512 B", "1.5 GB", "128 GB"."""
    value, unit = float(size), 0
    while abs(value) >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 0 if unit == 0 or abs(value) >= 99.95 else 1
    return f"{value:.{digits}f} {_UNITS[unit]}"
