"""Read text files as lines, in blocks of bounded size: plain or compressed (.gz, .xz), decoded from UTF-8."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fastbert.errors import CorpusError
from fastbert.io.text import COMPRESSIONS, decompressor
from fastbert.io.untrusted_input import open_regular

Progress = Callable[[int], None]

# A longer line is cut at a space.
MAX_LINE_BYTES = 1 << 20


def _byte_blocks(file: Path, size: int, report: Progress | None) -> Iterator[bytes]:
    try:
        with open_regular(file, CorpusError) as raw, decompressor(raw, file) as stream:
            if file.stat().st_size == 0:
                return
            while block := stream.read(size):
                yield block
                if report is not None:
                    report(raw.tell())
    except EOFError:
        raise CorpusError(f"{file} is truncated: its data ends too early; copy or download it again") from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{file} is not an intact {file.suffix} file ({error}); copy or download it again") from None
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror or error}") from None


def line_blocks(
    file: Path, size: int, *, max_line: int | None = None, cut: bool = True, report: Progress | None = None
) -> Iterator[list[str]]:
    """Yield the lines of a file in blocks of about `size` bytes, decoded, without line ends.

    LF, CRLF and CR end a line; a byte-order mark is dropped. A line of more than `max_line` bytes (default:
    MAX_LINE_BYTES) is cut, at a space if possible; with `cut=False` it raises CorpusError. `report` is called with the
    position in the file on disk.
    """
    max_line = max_line or MAX_LINE_BYTES
    position = 0  # of `pending` in the decompressed stream
    pending = b""
    line_number = 1
    for block in _byte_blocks(file, size, report):
        pending += block
        if position == 0 and pending.startswith(b"\xef\xbb\xbf"):
            pending, position = pending[3:], 3
        end = pending.rfind(b"\n") + 1
        if end:
            lines = _decode(file, pending[:end], position).split("\n")
            lines.pop()  # empty: the text after the last line end
            line_number += len(lines)
            yield lines
            pending, position = pending[end:], position + end
        while len(pending) > max_line:
            if not cut:
                raise CorpusError(f"{file}, line {line_number}: longer than {max_line >> 20} MiB; split the document")
            end = _cut(pending, max_line)
            yield _decode(file, pending[:end], position).split("\n")
            pending, position = pending[end:], position + end
    if pending:
        yield _decode(file, pending, position).split("\n")


def _cut(line: bytes, limit: int) -> int:
    """Return where to cut a line of more than `limit` bytes: after its last space, else between two characters."""
    space = line.rfind(b" ", limit // 2, limit)
    if space >= 0:
        return space + 1
    end = limit
    while end > limit - 4 and line[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end


def _decode(file: Path, data: bytes, position: int) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = position + error.start
        hint = "convert it with `iconv -f ENCODING -t UTF-8`"
        if position == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
        where = " of the decompressed text" if file.suffix.lower() in COMPRESSIONS else ""
        byte = f"byte 0x{data[error.start]:02x} at offset {offset}{where}"
        raise CorpusError(f"{file} is not UTF-8: {byte}; {hint}") from None
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text
