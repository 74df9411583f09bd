"""Describe why a contender failed: with the number of bytes that it lacked, where it ran out of memory."""

from __future__ import annotations

import re

# What libraries say when an allocation fails; the group, if any, is the number of bytes.
REFUSALS = (
    r"you tried to allocate (\d+) bytes",  # torch
    r"[Ff]ailed to allocate memory for requested buffer of size (\d+)",  # ONNX Runtime
    r"failed to allocate (?:CPU )?buffer of size (\d+)",  # llama.cpp
    r"bad[_ ]alloc",
    r"[Cc]annot allocate memory|[Oo]ut of memory",
)
# numpy rounds, and names the unit.
NUMPY = re.compile(r"Unable to allocate ([\d.]+) ([KMGTPE]i)?B\b|Unable to allocate (\d+) bytes")
UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


def describe(error: BaseException) -> str:
    """Return an exception in one line: its class and the first line of its message, or how much memory it lacked."""
    text = str(error).strip()
    first = (text.splitlines() or [""])[0]
    shown = f"{type(error).__name__}: {first}".removesuffix(": ")
    refused, size = refusal(text)
    if not refused and not isinstance(error, MemoryError):
        return shown
    return f"not enough memory{f' for {megabytes(size)}' if size else ''} ({shown})"


def refusal(text: str) -> tuple[bool, int | None]:
    """Return whether a message says that memory was refused, and the number of bytes if it gives that."""
    if found := NUMPY.search(text):
        exact = int(found[3]) if found[3] else None
        return True, exact or int(float(found[1]) * 1024 ** UNITS.index(found[2] or ""))
    for pattern in REFUSALS:
        if found := re.search(pattern, text):
            return True, int(found[1]) if found.groups() else None
    return False, None


def killed(peak: int) -> str:
    """Return the reason of a process that was killed, which had at most `peak` bytes in memory."""
    return f"its process was killed (signal 9), as happens without enough memory; it had {megabytes(peak)}"


def megabytes(size: float) -> str:
    """Format bytes."""
    return f"{size / 1e6:,.0f} MB"
