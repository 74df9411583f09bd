"""Text files of any kind: their compression, and characters that text cannot hold."""

from __future__ import annotations

import gzip
import io
import lzma
import re
from pathlib import Path
from typing import IO, Any

COMPRESSIONS = (".gz", ".xz")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def plain_name(path: str | Path) -> str:
    """Return a file's name in lower case, without the suffix of a compression."""
    name = Path(path).name.lower()
    return name[:-3] if name.endswith(COMPRESSIONS) else name


def decompressor(raw: IO[bytes], path: Path) -> Any:
    """Return a stream, with `peek`, of what an open file holds, decompressed according to its suffix."""
    match path.suffix.lower():
        case ".gz":
            return gzip.GzipFile(fileobj=raw)
        case ".xz":
            return io.BufferedReader(lzma.LZMAFile(raw))
        case _:
            return raw


def has_surrogates(text: str) -> bool:
    """Return whether a text holds a lone surrogate, half of a character, which JSON can contain."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def whole_characters(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    return _SURROGATE.sub("\ufffd", text) if has_surrogates(text) else text
