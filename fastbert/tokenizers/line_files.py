"""Read the lines of text files in batches of bounded size."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from fastbert.errors import UserError
from fastbert.io.text import COMPRESSIONS, DAMAGED, decompressor
from fastbert.io.untrusted_input import open_regular


def read_line_batches(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], batch_bytes: int
) -> Iterator[list[str]]:
    """Yield whole lines, about `batch_bytes` bytes per batch; a batch never spans two files."""
    if batch_bytes < 1:
        raise ValueError(f"batch_bytes={batch_bytes} must be at least 1")
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        yield from _read_file(Path(path), batch_bytes)


def _read_file(path: Path, batch_bytes: int) -> Iterator[list[str]]:
    lines_before = 0
    try:
        with open_regular(path) as raw, decompressor(raw, path) as file:
            while block := _read_block(file, batch_bytes):
                lines = _decode(block, path, lines_before)
                lines_before += len(lines)
                yield lines
    except (OSError, EOFError, *DAMAGED) as error:
        known = " or ".join(COMPRESSIONS)
        raise UserError(f"{path}: cannot be read ({error}); name a text file, plain or as {known}") from None


def _read_block(file: IO[bytes], size: int) -> bytes:
    """Read about `size` bytes, to the end of a line."""
    block = file.read(size)
    return block if block.endswith(b"\n") or len(block) < size else block + file.readline()


def _decode(block: bytes, path: Path, lines_before: int) -> list[str]:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = lines_before + block.count(b"\n", 0, error.start) + 1
        column = error.start - block.rfind(b"\n", 0, error.start)
        raise UserError(
            f"{path}, line {line}, byte {column}: not UTF-8 (0x{block[error.start]:02x}); save the file as UTF-8"
        ) from None
    lines = text.replace("\r\n", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    return lines
