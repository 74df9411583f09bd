"""Texts of a file, one after the other, whatever its size: lines, or a column of JSON lines or of a table."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fastbert.errors import UserError
from fastbert.io.regular_file import require_regular_file

STDIN = "-"
KINDS = (".txt", ".jsonl", ".csv", ".tsv")
COMPRESSIONS = (".gz", ".xz")
MOST_FIELD = (1 << 31) - 1  # characters of a cell
_SURROGATE = re.compile(r"[\ud800-\udfff]")


class TextFile:
    """The texts of a `.txt` file, a line each, empty ones included; or of a column of `.jsonl`, `.csv` or `.tsv`, the
    tables with a line of names at the top. All may be compressed (`.gz`, `.xz`) and are UTF-8; `-` is standard input,
    lines of text.

    Raises UserError for another kind of file, and while reading for what is damaged, by its line.
    """

    def __init__(self, path: str | Path, column: str | None = None) -> None:
        self.name = "standard input" if str(path) == STDIN else str(path)
        self.path = None if str(path) == STDIN else Path(path)
        plain = "" if self.path is None else self.path.name.lower()
        for compression in COMPRESSIONS:
            plain = plain.removesuffix(compression)
        kind = ".txt" if self.path is None else next((kind for kind in KINDS if plain.endswith(kind)), None)
        if kind is None:
            raise UserError(f"{path}: must be a {', '.join(KINDS)} file, perhaps with {' or '.join(COMPRESSIONS)}")
        if kind == ".txt" and column is not None:
            raise UserError(f"{self.name} has lines of text and no column {column!r}: leave the column out")
        if self.path is not None and self.path.exists():
            require_regular_file(self.path)
        if self.path is not None and not self.path.is_file():
            raise UserError(f"{self.path}: no such file")
        self.kind, self.column = kind, column or "text"
        self._raw: IO[bytes] | None = None

    @property
    def total_bytes(self) -> int | None:
        """The file's size on disk; None of standard input."""
        return None if self.path is None else self.path.stat().st_size

    @property
    def position(self) -> int:
        """Bytes read from disk so far."""
        return 0 if self._raw is None or self._raw.closed else self._raw.tell()

    def __iter__(self) -> Iterator[str]:
        if self.path is None:
            yield from utf8_lines(standard_input(), self.name)
            return
        with self.path.open("rb") as raw, decompressed(raw, self.path) as stream:
            self._raw = raw
            match self.kind:
                case ".txt":
                    yield from utf8_lines(stream, self.name)
                case ".jsonl":
                    yield from self._json(stream)
                case _:
                    yield from self._table(stream)

    def _json(self, stream: Iterable[bytes]) -> Iterator[str]:
        for number, line in enumerate(utf8_lines(stream, self.name), 1):
            if not line.strip():
                continue
            where = f"{self.name}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error}); each line must be an object") from None
            if not isinstance(record, dict) or self.column not in record:
                keys = ", ".join(map(repr, list(record)[:10])) if isinstance(record, dict) else "no object"
                raise UserError(f"{where}: no key {self.column!r} ({keys}); name the one of the text with --column")
            text = record[self.column]
            if not isinstance(text, str):
                raise UserError(f"{where}: {self.column!r} must be a string, not {type(text).__name__}")
            yield whole_characters(text)

    def _table(self, stream: Any) -> Iterator[str]:
        # The limit, 128 KiB by default, is one of the whole process.
        csv.field_size_limit(max(csv.field_size_limit(), MOST_FIELD))
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
        rows = csv.reader(text, delimiter="\t" if self.kind == ".tsv" else ",", strict=True)
        try:
            names = next(rows, [])
            if self.column not in names:
                raise UserError(
                    f"{self.name}: no column {self.column!r} (columns: {', '.join(names[:20]) or 'none'}); name the one"
                    " of the text with --column"
                )
            place = names.index(self.column)
            for row in rows:
                if not row:
                    continue
                if place >= len(row):
                    raise UserError(f"{self.name}, line {rows.line_num}: has {len(row)} cells, not {len(names)}")
                yield row[place]
        except csv.Error as error:
            raise UserError(f"{self.name}, line {rows.line_num}: not a table ({error})") from None
        except UnicodeDecodeError as error:
            raise UserError(f"{self.name}, after line {rows.line_num}: not UTF-8 ({error.reason})") from None


def standard_input() -> IO[bytes]:
    """The bytes of standard input."""
    if sys.stdin is None:
        raise UserError("standard input is closed: name a file")
    return sys.stdin.buffer


@contextmanager
def decompressed(raw: IO[bytes], path: Path) -> Iterator[Any]:
    """The bytes of an open file, unpacked as its name says; an archive that breaks while it is read is a UserError."""
    try:
        match path.suffix.lower():
            case ".gz":
                yield gzip.GzipFile(fileobj=raw)
            case ".xz":
                yield io.BufferedReader(lzma.LZMAFile(raw))  # noqa: SIM115 (whoever opened `raw` closes it)
            case _:
                yield raw
    except EOFError:
        raise UserError(f"{path}: ends too early; copy or download it again") from None
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path}: no intact {path.suffix} file ({error})") from None


def utf8_lines(stream: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines as editors count them: ended by a line feed, perhaps after a carriage return, by nothing else."""
    for number, line in enumerate(stream, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).decode("utf-8")
        except UnicodeDecodeError as error:
            where = f"{name}, line {number}, byte {error.start + 1}"
            raise UserError(f"{where}: not UTF-8 (0x{line[error.start]:02x}); save the file as UTF-8") from None


def whole_characters(text: str) -> str:
    """The text without the halves of characters that JSON can spell."""
    return text if text.isascii() or not _SURROGATE.search(text) else _SURROGATE.sub("\ufffd", text)
