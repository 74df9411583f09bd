"""Tables of any kind, with the line of each row: TSV, CSV, JSON lines, JSON and plain lines, also compressed; parquet,
Arrow and folders of `datasets`, with the number of each row.

TSV is what GLUE and most of the field mean by it: cells between TABs, without quoting, so that a quotation mark is a
character like any other. CSV is quoted (RFC 4180), and its cells may hold line breaks.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.text import COMPRESSIONS, plain_name, whole_characters
from fastbert.io.untrusted_input import require_file, shown
from fastbert.tasks.readers import arrow_files
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.text_files import (
    STDIN,
    csv_rows,
    decompressed,
    numbered_lines,
    refuse_binary,
    standard_input,
    utf8_lines,
)

KINDS = (".tsv", ".csv", ".jsonl", ".json", ".txt", ".parquet", ".arrow")
TAGGED_KINDS = (".conll", ".conllu", ".bio", ".iob", ".iob2")
TREC_KIND = ".label"  # as TREC's question classes are distributed
MOST_KEYS = 1000  # of all objects of a file together
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A row: the line at which it begins, from 1, and its cells: strings, or any values of JSON, None if absent."""

    line: int
    cells: tuple[Any, ...]


@dataclass(frozen=True)
class Table:
    """The rows of a file. `names`: the columns, None without a header; `skipped`: ragged rows that were tolerated;
    `unit`: the unit of a row's number."""

    path: str
    names: Names | None
    rows: list[Row]
    skipped: list[Row] = field(default_factory=list)
    unit: str = "line"

    def require_rows(self) -> None:
        """Raise UserError for a table with a header only."""
        if not self.rows:
            raise UserError(f"{self.path}, line 1: has a header and no rows; add examples or name another file")

    def location(self, row: Row) -> str:
        """Return a row's position in the file."""
        return f"{self.unit} {row.line}"

    def where(self, row: Row) -> str:
        """Return the file and position of a row, for error messages."""
        return f"{self.path}, {self.location(row)}"

    def numbered(self, bad: BadRows) -> list[tuple[int, Row]]:
        """Number the rows from 0 in the order of the file, bad ones included."""
        skipped = bad.numbers()
        return [(number + bisect_left(skipped, row.line), row) for number, row in enumerate(self.rows)]

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.names) if self.names is not None else len(self.rows[0].cells) if self.rows else 0

    def find(self, name: str) -> int | None:
        """Return the index of the column with this name, else with this number, from 1; None if there is none."""
        if self.names is not None and name in self.names:
            return self.names.index(name)
        if name.isascii() and name.isdecimal() and len(name) < 10 and 1 <= int(name) <= self.width:
            return int(name) - 1
        return None

    def first(self, names: Sequence[str]) -> int | None:
        """Return the index of the first of these columns that exists."""
        if self.names is None:
            return None
        return next((index for index in map(self.find, names) if index is not None), None)

    def chosen(self, name: str | None, flag: str, usual: int | None) -> int | None:
        """Return the index of the column that the user named by a flag, else the usual one. Raises UserError."""
        return usual if name is None else self.named(name, flag)

    def named(self, name: str, flag: str) -> int:
        """Find a column that the user named by a flag. Raises UserError if it does not exist."""
        index = self.find(name)
        if index is None:
            raise UserError(f"{self.path}, line 1: no column {name!r} ({self.shape}); name another with {flag}")
        return index

    @property
    def shape(self) -> str:
        """The columns, for error messages."""
        if self.names is None:
            cells = ", ".join(repr(str(cell)[:20]) for cell in self.rows[0].cells[:20])
            return f"its cells: {cells}; columns go by such names, or by numbers from 1"
        more = ", ..." if len(self.names) > 20 else ""
        names = (name if name.isprintable() and 0 < len(name) <= 60 else shown(name) for name in self.names[:20])
        return f"columns: {', '.join(names) or 'none'}{more}"

    def text(self, row: Row, index: int, *, empty: bool = False) -> str:
        """Return a cell that must be a text; `empty` allows an empty one. Raises UserError."""
        value = row.cells[index]
        name = self.column(index)
        if value is None and not empty:
            raise UserError(f"{self.where(row)}: has no {name}; give every row one")
        if value is None:
            return ""
        if not isinstance(value, str):
            raise UserError(f"{self.where(row)}: {name} must be a string, not {type(value).__name__}; correct it")
        if not empty and not value.strip():
            raise UserError(f"{self.where(row)}: {name} is empty; fill it in or leave the row out")
        return whole_characters(value)

    def column(self, index: int) -> str:
        """Return a column's name, for error messages."""
        return f"column {index + 1}" if self.names is None else repr(self.names[index])


def read_table(
    path: str | Path,
    *,
    is_header: Callable[[Names], bool] = lambda cells: True,
    forgives: Callable[[Names], bool] = lambda names: False,
    bad: BadRows | None = None,
) -> Table:
    """Read a table. `is_header` returns True if the first row of a `.tsv`, `.csv` or `.txt` holds names, and `forgives`
    if rows of a different length are tolerated under such names. The keys of JSON objects are columns.

    `.txt`, and standard input (`-`), hold JSON lines if the first begins with a brace, else lines with cells
    separated by TABs; an empty line is a text if lines have one cell. `bad` collects the rows that are ragged, not JSON
    or not UTF-8, for the caller to settle. Raises UserError, naming file and line, for damage, and for bad rows without
    `bad`.
    """
    problems = BadRows(name_of(path)) if bad is None else bad
    table = _read(path, is_header, forgives, problems)
    if bad is None or not table.rows:
        problems.settle(len(table.rows))
    return table


def _read(
    path: str | Path, is_header: Callable[[Names], bool], forgives: Callable[[Names], bool], bad: BadRows
) -> Table:
    name, kind = name_of(path), kind_of(path)
    if kind in arrow_files.KINDS:
        columns = arrow_files.read_columns(path)
        rows = [Row(number, cells) for number, cells in enumerate(zip(*columns.values(), strict=True), 1)]
        if not rows:
            raise UserError(f"{name}, row 1: the file has no rows; name one with examples")
        return Table(name, tuple(columns), rows, unit="row")
    with opened(path) as stream:
        if kind == ".json":
            values = list(json_values("\n".join(utf8_lines(stream, name)), name))
            for line, value in values:
                refuse_squad(name, line, value)
            return _table_of_records(name, values, bad)
        if kind == ".csv":
            cells = (Row(line, tuple(row)) for line, row in csv_rows(stream, name))
            return _table_of_rows(name, cells, is_header, forgives, bad)
        if kind == ".tsv":
            cells = (Row(i, tuple(line.split("\t"))) for i, line in numbered_lines(stream, name, bad.add) if line)
            return _table_of_rows(name, cells, is_header, forgives, bad)
        lines = list(numbered_lines(stream, name, bad.add))
    first = next((line for _, line in lines if line.strip()), "")
    if first.lstrip().startswith("{") or kind == ".jsonl":
        return _table_of_records(name, json_lines(lines, name, bad), bad)
    is_plain = "\t" not in first
    cells = (Row(i, tuple(line.split("\t"))) for i, line in lines if line or is_plain)
    return _table_of_rows(name, cells, is_header, forgives, bad)


def name_of(path: str | Path) -> str:
    """Return a file's name, for error messages."""
    return "standard input" if str(path) == STDIN else str(path)


def kind_of(path: str | Path) -> str:
    """Return the kind of table that a path names, as its suffix. Raises UserError for an unknown one."""
    if str(path) == STDIN:
        return ".txt"
    kind = Path(plain_name(path)).suffix
    kind = {".ndjson": ".jsonl", ".text": ".txt", TREC_KIND: ".txt"}.get(kind, kind)
    if arrow_files.is_arrow(path):
        return ".arrow"
    if kind in TAGGED_KINDS:
        raise UserError(f"{path}: {kind} files hold words with tags; read it with --task tagging, or name another file")
    if kind not in KINDS:
        raise UserError(f"{path}: must be a {', '.join(KINDS)} file, perhaps with {' or '.join(COMPRESSIONS)}")
    return kind


@contextmanager
def opened(path: str | Path) -> Iterator[Any]:
    """Open a file, decompressed, or standard input, as bytes."""
    if str(path) == STDIN:
        yield standard_input()
        return
    file = Path(path)
    require_file(file)
    with file.open("rb") as raw, decompressed(raw, file) as stream:
        refuse_binary(stream, str(path))
        yield stream


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a text file, whatever its suffix."""
    with opened(path) as stream:
        return list(utf8_lines(stream, name_of(path)))


def read_json(path: str | Path, **options: Any) -> Any:
    """Return the single JSON value of a file; `options` are those of `json.loads`. Raises UserError."""
    name = name_of(path)
    try:
        return json.loads("\n".join(read_lines(path)), **options)
    except json.JSONDecodeError as error:
        raise UserError(f"{name}, line {error.lineno}: not JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}, line 1 ff.: not JSON ({error})") from None


def json_lines(lines: Iterable[tuple[int, str]], name: str, bad: BadRows | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the values of JSON lines with their line numbers. Other lines go to `bad`, or raise UserError without
    it."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"line {number}: not JSON ({error}); make each line an object"
            if bad is None:
                raise UserError(f"{name}, {problem}") from None
            bad.add(number, problem)
        else:
            yield number, value


def refuse_squad(name: str, line: int, value: Any) -> None:
    """Raise UserError for the object in a SQuAD file."""
    data = value.get("data") if isinstance(value, dict) else None
    if isinstance(data, list) and data and isinstance(data[0], dict) and "paragraphs" in data[0]:
        raise UserError(
            f"{name}, line {line}: is SQuAD's JSON (articles with 'paragraphs' under 'data'); use --task span, or name"
            " another file"
        )


def json_values(text: str, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of a JSON array, or of consecutive values, with the line at which each begins."""
    decoder, end, line, counted = json.JSONDecoder(), len(text), 1, 0
    position = _skip_space(text, 0)
    inside = text.startswith("[", position)
    position = _skip_space(text, position + 1) if inside else position
    between = False  # after a value of the array
    while position < end:
        line, counted = line + text.count("\n", counted, position), position
        if inside and (text[position] == "]" or (between and text[position] == ",")):
            inside, between = text[position] != "]", False
            position = _skip_space(text, position + 1)
            if not inside and position < end:
                line += text.count("\n", counted, position)
                raise UserError(f"{name}, line {line}: something follows the end of the JSON array")
            continue
        try:
            if between:
                raise ValueError("a comma is missing")
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}, line {line}: not JSON ({error})") from None
        yield line, value
        position, between = _skip_space(text, position), inside
    if inside:
        raise UserError(f"{name}, line {line}: the JSON array does not end; copy or download the file again")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _table_of_rows(
    name: str,
    rows: Iterator[Row],
    is_header: Callable[[Names], bool],
    forgives: Callable[[Names], bool],
    bad: BadRows,
) -> Table:
    first = next(rows, None)
    if first is None:
        bad.settle(0)
        raise UserError(f"{name}, line 1: the file is empty; name one with examples")
    has_names = is_header(first.cells)
    names = first.cells if has_names else None
    repeated = next((column for column, count in Counter(names).items() if column and count > 1), None)
    if repeated is not None:
        raise UserError(f"{name}, line {first.line}: two columns are named {repeated!r}; rename one")
    width = len(first.cells)
    good: list[Row] = [] if has_names else [first]
    ragged: list[Row] = []
    for row in rows:
        (good if len(row.cells) == width else ragged).append(row)
    if ragged and names is not None and forgives(names):
        return Table(name, names, good, ragged)
    for row in ragged:
        bad.add(
            row.line,
            f"line {row.line}: has {len(row.cells)} cells, not {width} as line {first.line} has; give each row {width}",
        )
    return Table(name, names, good)


def _table_of_records(name: str, records: Iterable[tuple[int, Any]], bad: BadRows) -> Table:
    objects: list[tuple[int, dict[str, Any]]] = []
    names: dict[str, None] = {}
    for line, record in records:
        if not isinstance(record, dict):
            kind = type(record).__name__
            bad.add(line, f"line {line}: must be a JSON object, not {kind}; make each an object of named values")
            continue
        objects.append((line, record))
        names.update(dict.fromkeys(record))
        if len(names) > MOST_KEYS:
            raise UserError(
                f"{name}, line {line}: the objects so far have {len(names)} different keys; give all the same"
            )
    if not objects:
        bad.settle(0)
        raise UserError(f"{name}, line 1: the file is empty; name one with examples")
    return Table(name, tuple(names), [Row(line, tuple(map(record.get, names))) for line, record in objects])
