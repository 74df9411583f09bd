"""Tables of any kind, with the line of each row: TSV, CSV, JSON lines, JSON and plain lines, also compressed.

TSV is what GLUE and most of the field mean by it: cells between TABs, without quoting, so that a quotation mark is a
character like any other. CSV is quoted (RFC 4180), and its cells may hold line breaks.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.regular_file import require_regular_file
from fastbert.tasks.text_files import (
    COMPRESSIONS,
    MOST_FIELD,
    STDIN,
    decompressed,
    standard_input,
    utf8_lines,
    whole_characters,
)

KINDS = (".tsv", ".csv", ".jsonl", ".json", ".txt")
MOST_KEYS = 1000  # of all objects of a file together
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the line at which it begins, from 1, and its cells: strings, or whatever JSON holds, None if absent."""

    line: int
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """The rows of a file. `names`: the columns, None without a header; `skipped`: ragged rows that were forgiven."""

    path: str
    names: Names | None
    rows: list[Row]
    skipped: list[Row] = field(default_factory=list)

    def where(self, row: Row) -> str:
        """A row, as errors name it."""
        return f"{self.path}, line {row.line}"

    @property
    def width(self) -> int:
        """Columns."""
        return len(self.names) if self.names is not None else len(self.rows[0].cells) if self.rows else 0

    def find(self, name: str) -> int | None:
        """The place of the column of this name, else of this number, from 1; None if there is none."""
        if self.names is not None and name in self.names:
            return self.names.index(name)
        if name.isascii() and name.isdecimal() and len(name) < 10 and 1 <= int(name) <= self.width:
            return int(name) - 1
        return None

    def first(self, names: Sequence[str]) -> int | None:
        """The place of the first of these columns that there is."""
        if self.names is None:
            return None
        return next((place for place in map(self.find, names) if place is not None), None)

    def named(self, name: str, flag: str) -> int:
        """`find` for a column that the user named by this flag."""
        place = self.find(name)
        if place is None:
            raise UserError(f"{self.path}, line 1: no column {name!r} ({self.shape}); name another with {flag}")
        return place

    @property
    def shape(self) -> str:
        """The columns in words, for errors."""
        if self.names is None:
            cells = ", ".join(repr(str(cell)[:20]) for cell in self.rows[0].cells[:20])
            return f"its cells: {cells}; columns go by such names, or by numbers from 1"
        more = ", ..." if len(self.names) > 20 else ""
        return f"columns: {', '.join(name or repr(name) for name in self.names[:20]) or 'none'}{more}"

    def text(self, row: Row, place: int, *, empty: bool = False) -> str:
        """A cell that must hold a text; with `empty`, perhaps one of no characters."""
        value = row.cells[place]
        name = self.column(place)
        if value is None and not empty:
            raise UserError(f"{self.where(row)}: has no {name}; every row needs one")
        if value is None:
            return ""
        if not isinstance(value, str):
            raise UserError(f"{self.where(row)}: {name} must be a string, not {type(value).__name__}")
        if not empty and not value.strip():
            raise UserError(f"{self.where(row)}: {name} is empty; fill it in or leave the row out")
        return whole_characters(value)

    def column(self, place: int) -> str:
        """A column, as errors name it."""
        return f"column {place + 1}" if self.names is None else repr(self.names[place])


def read_table(
    path: str | Path,
    *,
    is_header: Callable[[Names], bool] = lambda cells: True,
    forgives: Callable[[Names], bool] = lambda names: False,
) -> Table:
    """Read a table. `is_header` is asked whether the first row of a `.tsv`, `.csv` or `.txt` holds names, and
    `forgives` whether under such names rows of another length are to be kept apart. A JSON object's keys are columns.

    `.txt`, and standard input (`-`), hold JSON lines if the first begins with a brace, else lines whose cells TABs
    part, empty lines included. Raises UserError, with file and line, for what is ragged, damaged or not UTF-8.
    """
    name, kind = name_of(path), kind_of(path)
    with opened(path) as stream:
        if kind == ".json":
            return _of_records(name, json_values(_whole_text(stream, name), name))
        if kind == ".csv":
            return _of_rows(name, _csv_rows(stream, name), is_header, forgives)
        if kind == ".tsv":
            rows = (Row(i, tuple(line.split("\t"))) for i, line in enumerate(utf8_lines(stream, name), 1) if line)
            return _of_rows(name, rows, is_header, forgives)
        lines = list(enumerate(utf8_lines(stream, name), 1))
    if next((line for _, line in lines if line.strip()), "").lstrip().startswith("{") or kind == ".jsonl":
        return _of_records(name, json_lines(lines, name))
    # An empty line of plain text is a text; in a table it is the end of a file, or somebody's ornament.
    return _of_rows(name, (Row(i, tuple(line.split("\t"))) for i, line in lines), is_header, forgives)


def name_of(path: str | Path) -> str:
    """A file, as errors name it."""
    return "standard input" if str(path) == STDIN else str(path)


def plain_name(path: str | Path) -> str:
    """The file's name in lower case, without what says that it is compressed."""
    plain = Path(path).name.lower()
    for compression in COMPRESSIONS:
        plain = plain.removesuffix(compression)
    return plain


def kind_of(path: str | Path) -> str:
    """The kind of table that a path names."""
    if str(path) == STDIN:
        return ".txt"
    kind = Path(plain_name(path)).suffix
    kind = {".ndjson": ".jsonl", ".text": ".txt"}.get(kind, kind)
    if kind not in KINDS:
        raise UserError(f"{path}: must be a {', '.join(KINDS)} file, perhaps with {' or '.join(COMPRESSIONS)}")
    return kind


@contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """The bytes of a file, unpacked, or of standard input."""
    if str(path) == STDIN:
        yield standard_input()
        return
    file = Path(path)
    if file.exists():
        require_regular_file(file)
    if not file.is_file():
        raise UserError(f"{path}: no such file")
    with file.open("rb") as raw, decompressed(raw, file) as stream:
        yield stream


def read_lines(path: str | Path) -> list[str]:
    """The lines of a file of text, whatever its name."""
    with opened(path) as stream:
        return list(utf8_lines(stream, name_of(path)))


def read_json(path: str | Path) -> Any:
    """The one JSON value of a file."""
    name = name_of(path)
    with opened(path) as stream:
        text = _whole_text(stream, name)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}, line 1 ff.: not JSON ({error})") from None


def json_lines(lines: Iterable[tuple[int, str]], name: str) -> Iterator[tuple[int, Any]]:
    """The values of JSON lines with the line of each."""
    for number, line in lines:
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{name}, line {number}: not JSON ({error}); each line must be an object") from None


def json_values(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """The values of a JSON array, or of values that follow each other, with the line at which each begins."""
    decoder, end, line, counted = json.JSONDecoder(), len(text), 1, 0
    place = _skip_space(text, 0)
    inside = text.startswith("[", place)
    place = _skip_space(text, place + 1) if inside else place
    between = False  # after a value of the array
    while place < end:
        line, counted = line + text.count("\n", counted, place), place
        if inside and (text[place] == "]" or (between and text[place] == ",")):
            inside, between = text[place] != "]", False
            place = _skip_space(text, place + 1)
            if not inside and place < end:
                line += text.count("\n", counted, place)
                raise UserError(f"{name}, line {line}: something follows the end of the JSON array")
            continue
        try:
            if between:
                raise ValueError("a comma is missing")
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {line}: not JSON ({error})") from None
        yield line, value
        place, between = _skip_space(text, place), inside
    if inside:
        raise UserError(f"{name}, line {line}: the JSON array does not end; copy or download the file again")


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _whole_text(stream: Any, name: str) -> str:
    return "\n".join(utf8_lines(stream, name))


def _csv_rows(stream: Any, name: str) -> Iterator[Row]:
    # The limit, 128 KiB by default, is one of the whole process.
    csv.field_size_limit(max(csv.field_size_limit(), MOST_FIELD))
    rows = csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline=""), strict=True)
    begins = 1
    try:
        for row in rows:
            if row:
                yield Row(begins, tuple(row))
            begins = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {begins}: not a table ({error})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, after line {rows.line_num}: not UTF-8 ({error.reason}); save it as UTF-8") from None


def _of_rows(
    name: str, rows: Iterator[Row], is_header: Callable[[Names], bool], forgives: Callable[[Names], bool]
) -> Table:
    first = next(rows, None)
    if first is None:
        raise UserError(f"{name}, line 1: the file is empty")
    has_names = is_header(first.cells)
    names = first.cells if has_names else None
    if names is not None:
        _no_name_twice(name, first.line, names)
    good: list[Row] = [] if has_names else [first]
    ragged: list[Row] = []
    for row in rows:
        (good if len(row.cells) == len(first.cells) else ragged).append(row)
    if ragged and not (names is not None and forgives(names)):
        row, width = ragged[0], len(first.cells)
        raise UserError(
            f"{name}, line {row.line}: has {len(row.cells)} cells, not {width} as line {first.line} has"
            f" ({len(ragged)} such rows in all); give each row {width}"
        )
    return Table(name, names, good, ragged)


def _no_name_twice(name: str, line: int, names: Sequence[str]) -> None:
    seen = set()
    for column in names:
        if column and column in seen:
            raise UserError(f"{name}, line {line}: two columns are named {column!r}; rename one")
        seen.add(column)


def _of_records(name: str, records: Iterator[tuple[int, Any]]) -> Table:
    found: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, None] = {}
    for line, record in records:
        if not isinstance(record, dict):
            raise UserError(f"{name}, line {line}: must be a JSON object, not {type(record).__name__}")
        found.append((line, record))
        names.update(dict.fromkeys(record))
        if len(names) > MOST_KEYS:
            raise UserError(
                f"{name}, line {line}: the objects so far have {len(names)} different keys; give all the same"
            )
    if not found:
        raise UserError(f"{name}, line 1: the file is empty")
    return Table(name, tuple(names), [Row(line, tuple(map(record.get, names))) for line, record in found])
