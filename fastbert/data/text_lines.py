"""Read text files as lines, in blocks of bounded size: plain or compressed, checked to be UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fastbert import _C
from fastbert.errors import CorpusError
from fastbert.io.sources import Source, open_source, size_of
from fastbert.io.text import COMPRESSIONS, DAMAGED, decompressor

Progress = Callable[[int], None]

# A longer line is cut at a space.
MAX_LINE_BYTES = 1 << 20


def byte_blocks(file: Source, size: int, report: Progress | None = None) -> Iterator[bytes]:
    """Yield the decompressed content of a file in blocks of at most `size` bytes.

    `report` is called with the position in the file on disk. Raises CorpusError for a file that cannot be read.
    """
    try:
        with open_source(file, error=CorpusError) as raw, decompressor(raw, file.name) as stream:
            if size_of(file) == 0:
                return
            while block := stream.read(size):
                yield block
                if report is not None:
                    report(raw.tell())
    except EOFError:
        raise CorpusError(f"{file} is truncated: its data ends too early; copy or download it again") from None
    except DAMAGED as error:
        raise CorpusError(f"{file} is not an intact {file.suffix} file ({error}); copy or download it again") from None
    except OSError as error:
        raise CorpusError(f"{file} cannot be read: {error.strerror or error}") from None


def whole_lines(
    file: Source, size: int, *, max_line: int | None = None, cut: bool = True, report: Progress | None = None
) -> Iterator[bytes]:
    """Yield a file in blocks of whole lines of about `size` bytes, in UTF-8 as they are.

    A byte-order mark is dropped. A line of more than `max_line` bytes (default: MAX_LINE_BYTES) is cut, at a space if
    possible, into blocks of its own; with `cut=False` it raises CorpusError. `report` is called with the position in
    the file on disk.
    """
    max_line = max_line or MAX_LINE_BYTES
    position = 0  # of `pending` in the decompressed stream
    pending = b""
    line_number = 1
    for block in byte_blocks(file, size, report):
        pending += block
        if position == 0 and pending.startswith(b"\xef\xbb\xbf"):
            pending, position = pending[3:], 3
        end = pending.rfind(b"\n") + 1
        if end:
            lines, pending = pending[:end], pending[end:]
            yield _checked(file, lines, position)
            if not cut:
                line_number += lines.count(b"\n")
            position += end
        while len(pending) > max_line:
            if not cut:
                raise CorpusError(f"{file}, line {line_number}: longer than {max_line >> 20} MiB; split the document")
            end = _cut(pending, max_line)
            yield _checked(file, pending[:end], position)
            pending, position = pending[end:], position + end
    if pending:
        yield _checked(file, pending, position)


def line_blocks(
    file: Source, size: int, *, max_line: int | None = None, cut: bool = True, report: Progress | None = None
) -> Iterator[list[str]]:
    """Yield the lines of a file in blocks of about `size` bytes, decoded, without line ends.

    LF, CRLF and CR end a line. Arguments and errors are those of `whole_lines`.
    """
    for block in whole_lines(file, size, max_line=max_line, cut=cut, report=report):
        lines = _with_line_feeds(block.decode("utf-8")).split("\n")
        if block.endswith(b"\n"):
            lines.pop()  # empty: the text after the last line end
        yield lines


def _with_line_feeds(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _cut(line: bytes, limit: int) -> int:
    """Return where to cut a line of more than `limit` bytes: after its last space, else between two characters."""
    space = line.rfind(b" ", limit // 2, limit)
    if space >= 0:
        return space + 1
    end = limit
    while end > limit - 4 and line[end] & 0xC0 == 0x80:  # a continuation byte of UTF-8
        end -= 1
    return end


def _checked(file: Source, data: bytes, position: int) -> bytes:
    """Return bytes that are UTF-8. Raises CorpusError, with their position in the decompressed stream, for others."""
    if _C.is_utf8(data):
        return data
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = position + error.start
        hint = "convert it with `iconv -f ENCODING -t UTF-8`"
        if position == 0 and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            hint = "it looks like UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`"
        where = " of the decompressed text" if file.suffix.lower() in COMPRESSIONS else ""
        byte = f"byte 0x{data[error.start]:02x} at offset {offset}{where}"
        raise CorpusError(f"{file} is not UTF-8: {byte}; {hint}") from None
    raise AssertionError("Python and C++ disagree about UTF-8")
