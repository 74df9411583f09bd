"""Read the texts of a file of any size one by one: lines, or a column of JSON lines or of a table."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fastbert.errors import UserError
from fastbert.io.text import COMPRESSIONS, DAMAGED, DamagedFileError, decompressor, plain_name, whole_characters
from fastbert.io.untrusted_input import require_file

STDIN = "-"
KINDS = (".txt", ".jsonl", ".csv", ".tsv")
MOST_FIELD = (1 << 31) - 1  # characters of a cell
MOST_EXPANSION, FREE_BYTES = 100, 2 << 20
"""Of a compressed file: bytes per byte of it, beyond the first two million. Text takes 3 to 20."""
HEAD = 4096  # bytes by which a binary file is recognised
# First bytes of files that are not text: what they are, and the cure.
MAGIC = (
    (b"\x1f\x8b", "gzip-compressed", "add .gz to its name"),
    (b"\xfd7zXZ\x00", "xz-compressed", "add .xz to its name"),
    (b"PK\x03\x04", "a zip archive", "unpack it"),
    (b"PAR1", "a parquet file", "add .parquet to its name"),
    (b"ARROW1", "an Arrow file", "add .arrow to its name"),
    (b"\xff\xfe", "UTF-16", "save it as UTF-8"),
    (b"\xfe\xff", "UTF-16", "save it as UTF-8"),
)


class TextFile:
    """The texts of a `.txt` file, one per line, empty ones included; or of a column of `.jsonl`, or of `.csv` or `.tsv`
    with a header. All are UTF-8 and may be compressed (`.gz`, `.xz`); `-` reads lines from standard input.

    Raises UserError for other kinds of files and, while reading, for damage, naming the line.
    """

    kinds: tuple[str, ...] = KINDS

    def __init__(self, path: str | Path, column: str | None = None) -> None:
        self.name: str = "standard input" if str(path) == STDIN else str(path)
        self.path: Path | None = None if str(path) == STDIN else Path(path)
        plain = ".txt" if self.path is None else plain_name(self.path)
        kind = next((kind for kind in self.kinds if plain.endswith(kind)), None)
        if kind is None:
            raise UserError(f"{path}: must be a {', '.join(self.kinds)} file, perhaps with {' or '.join(COMPRESSIONS)}")
        if kind == ".txt" and column is not None:
            raise UserError(f"{self.name} has lines of text and no column {column!r}: leave the column out")
        if self.path is not None:
            require_file(self.path)
        self.kind: str = kind
        self.column: str = column or "text"
        self._raw: IO[bytes] | None = None

    @property
    def total_bytes(self) -> int | None:
        """The file's size on disk; None for standard input."""
        return None if self.path is None else self.path.stat().st_size

    @property
    def position(self) -> int:
        """Bytes read from disk so far."""
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self.numbered())

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield each text with the line of the file at which it begins, from 1."""
        if self.path is None:
            yield from numbered_lines(standard_input(), self.name)
            return
        with self.path.open("rb") as raw, decompressed(raw, self.path) as stream:
            self._raw = raw
            match self.kind:
                case ".txt":
                    yield from numbered_lines(stream, self.name)
                case ".jsonl":
                    yield from self._json(stream)
                case _:
                    yield from self._table(stream)

    def _json(self, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        return ((line, text) for line, _, text in self._records(stream))

    def _table(self, stream: Any) -> Iterator[tuple[int, str]]:
        return ((line, text) for line, (text,) in self._cells(stream, lambda names: [self.column]))

    def _records(self, stream: Iterable[bytes]) -> Iterator[tuple[int, dict[str, Any], str]]:
        """Yield the line, the object and the text of JSON lines."""
        for number, line in numbered_lines(stream, self.name):
            if not line.strip():
                continue
            where = f"{self.name}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error}); each line must be an object") from None
            if not isinstance(record, dict) or self.column not in record:
                keys = ", ".join(map(repr, list(record)[:10])) if isinstance(record, dict) else "no object"
                raise UserError(f"{where}: no key {self.column!r} ({keys}); name the column that holds the text")
            text = record[self.column]
            if not isinstance(text, str):
                raise UserError(f"{where}: {self.column!r} must be a string, not {type(text).__name__}")
            yield number, record, whole_characters(text)

    def _cells(self, stream: Any, choose: Callable[[list[str]], list[str]]) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the line and the cells of each row of a table, of the columns that `choose` names, given all names."""
        rows = csv_rows(stream, self.name, "\t" if self.kind == ".tsv" else ",")
        _, names = next(rows, (1, []))
        columns = choose(names)
        self._check_columns(columns, names)
        indices = [names.index(column) for column in columns]
        for line, row in rows:
            if max(indices) >= len(row):
                raise UserError(f"{self.name}, line {line}: has {len(row)} cells, not {len(names)}")
            yield line, tuple(row[index] for index in indices)

    def _check_columns(self, columns: list[str], names: list[str]) -> None:
        """Raise UserError for a column that a table lacks; the first one holds texts, the second ids."""
        for column, content in zip(columns, ("the text", "the ids")):
            if column not in names:
                raise UserError(
                    f"{self.name}: no column {column!r} (columns: {', '.join(names[:20]) or 'none'}); name the column"
                    f" that holds {content}"
                )


def standard_input() -> IO[bytes]:
    """Return the bytes of standard input. Raises UserError if it is closed."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file")
    return sys.stdin.buffer


@contextmanager
def decompressed(raw: IO[bytes], path: Path) -> Iterator[Any]:
    """Decompress an open file according to its suffix. Raises UserError while reading if it is damaged, or expands as
    no text does."""
    try:
        stream = decompressor(raw, path)
        yield stream if stream is raw else io.BufferedReader(_Bounded(stream, raw), 1 << 16)
    except EOFError:
        raise UserError(f"{path}: ends too early; copy or download it again") from None
    except DAMAGED as error:
        raise UserError(f"{path}: not an intact {path.suffix} file ({error})") from None


class _Bounded(io.RawIOBase):
    """What a compressed file holds, of which all may be kept in memory: its size is limited by that of the file."""

    def __init__(self, stream: Any, raw: IO[bytes]) -> None:
        self._stream, self._raw, self._bytes = stream, raw, 0

    def readable(self) -> bool:
        return True

    def readinto(self, memory: Any) -> int:
        size = int(self._stream.readinto(memory))
        self._bytes += size
        if self._bytes > max(FREE_BYTES, MOST_EXPANSION * self._raw.tell()):
            raise DamagedFileError(f"expands to more than {MOST_EXPANSION} times its size; decompress it first")
        return size


def refuse_binary(stream: Any, name: str) -> None:
    """Raise UserError for an open file that does not begin like text; `stream` has `peek`."""
    head = stream.peek(HEAD)[:HEAD]
    for magic, kind, cure in MAGIC:
        if head.startswith(magic):
            raise UserError(f"{name}, line 1: is {kind}, not text; {cure}")
    zeros = head.count(0)
    if zeros and (zeros > len(head) // 100 + 1 or not _is_utf8(head)):
        raise UserError(f"{name}, line 1: is a binary file, not text; name the file with the examples")


def _is_utf8(head: bytes) -> bool:
    """Return True if bytes are UTF-8, perhaps cut within their last character."""
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(head) - 4
    return True


def csv_rows(stream: Any, name: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a quoted table that are not empty, each with the line at which it begins. Raises UserError."""
    # The limit, 128 KiB by default, is process-wide.
    csv.field_size_limit(max(csv.field_size_limit(), MOST_FIELD))
    rows = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for row in rows:
            if row:
                yield begins, row
            begins = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {begins}: not a table ({error})") from None
    except UnicodeDecodeError as error:
        # All of what was decoded before is read, but for the beginning of a line.
        line = rows.line_num + 1 + error.object[: error.start].count(b"\n")
        raise UserError(f"{name}, line {line}: not UTF-8 ({error.reason}); save it as UTF-8") from None


def utf8_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield lines as editors count them: ended by a line feed, perhaps after a carriage return, by nothing else."""
    return (line for _, line in numbered_lines(stream, name))


def numbered_lines(
    stream: Iterable[bytes], name: str, on_error: Callable[[int, str], None] | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the lines of UTF-8 text with their numbers, from 1.

    A line that is not UTF-8 is left out and passed to `on_error` with its number, or raises UserError without it.
    """
    for number, line in enumerate(stream, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            problem = (
                f"line {number}, byte {error.start + 1}: not UTF-8 (0x{line[error.start]:02x}); save the file as UTF-8"
            )
            if on_error is None:
                raise UserError(f"{name}, {problem}") from None
            on_error(number, problem)
        else:
            yield number, text
