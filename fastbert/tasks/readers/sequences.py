"""Texts and their targets: tables, JSON lines, or two parallel files of lines."""

from __future__ import annotations

from pathlib import Path

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, SequenceExample
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.cells import row_ids
from fastbert.tasks.readers.tables import Row, Table, name_of, read_lines, read_table
from fastbert.tasks.settings import Columns
from fastbert.tasks.text_files import STDIN

PAIRS = (
    ("source", "target"),
    ("document", "summary"),
    ("article", "highlights"),
    ("dialogue", "summary"),
    ("text", "summary"),
    ("input", "output"),
)
NESTED = "translation"  # {"translation": {"en": ..., "de": ...}}, as the datasets library writes pairs of languages


def read_sequences(
    path: str, columns: Columns, *, labelled: bool, skip_bad: bool | None = None
) -> Dataset[SequenceExample]:
    """Read the examples of a file: a table or JSON lines of source and target by their usual names or by `columns`
    (text, label, id), or two files of lines, `a.en,a.de`. Without `labelled`, targets are not read, sources may be
    empty, and plain lines (`.txt`, or `-` for standard input) are sources. Raises UserError with file and line, unless
    `skip_bad` leaves bad rows out.
    """
    files = path.split(",")
    if len(files) > 1 and not Path(path).exists():
        return _parallel(path, files, columns, labelled, skip_bad)
    names = {name for pair in PAIRS for name in pair} | {columns.text, columns.label, columns.id}
    numbered = columns.text is not None and columns.text.isdecimal()
    bad = BadRows(name_of(path), skip=skip_bad)
    table = read_table(
        path, is_header=lambda cells: bool(names & set(cells)) or not (numbered or len(cells) == 1), bad=bad
    )
    table = _flat(table, columns)
    table.require_rows()
    source, target = _columns(table, columns, labelled)
    ids = row_ids(table, table.numbered(bad), columns.id)
    examples = []
    for name, row in zip(ids, table.rows):
        with bad.row(row.line):
            examples.append(
                SequenceExample(
                    id=name,
                    location=table.location(row),
                    source=table.text(row, source, empty=not labelled),
                    target=None if target is None else table.text(row, target),
                )
            )
    bad.settle(len(examples))
    if not any(example.source for example in examples):
        raise UserError(f"{table.where(table.rows[0])}: {table.column(source)} is empty in all rows; fill it in")
    return Dataset(table.path, tuple(examples))


def _columns(table: Table, columns: Columns, labelled: bool) -> tuple[int, int | None]:
    if columns.text is None and columns.label is None:
        if table.names is None and table.width == 1 and not labelled:
            return 0, None
        for source, target in PAIRS:
            index, target_index = table.find(source), table.find(target)
            if index is not None and (target_index is not None or not labelled):
                return index, target_index if labelled else None
    elif columns.text is not None and (columns.label is not None or not labelled):
        first = table.named(columns.text, "--text-column")
        return first, table.chosen(columns.label, "--label-column", None) if labelled else None
    raise UserError(
        f"{table.path}, line 1: which columns hold source and target is not clear ({table.shape}); name them with"
        " --text-column and --label-column"
    )


def _flat(table: Table, columns: Columns) -> Table:
    """Return the table of the objects under `translation`, if the named column is in there."""
    index = table.find(NESTED)
    if index is None or columns.text is None or table.find(columns.text) is not None:
        return table
    names: dict[str, None] = {}
    for row in table.rows:
        if not isinstance(row.cells[index], dict):
            raise UserError(f"{table.where(row)}: {NESTED!r} must be an object of texts by language")
        names.update(dict.fromkeys(row.cells[index]))
    rows = [Row(row.line, tuple(map(row.cells[index].get, names))) for row in table.rows]
    return Table(table.path, tuple(names), rows, unit=table.unit)


def _parallel(
    path: str, files: list[str], columns: Columns, labelled: bool, skip_bad: bool | None
) -> Dataset[SequenceExample]:
    """Read two files of lines, the first with the sources."""
    if len(files) != 2 or STDIN in files:
        raise UserError(f"{path}: must be one file, or two with a comma between them, source and target")
    if any((columns.text, columns.label, columns.id)):
        raise UserError(f"{path}: files of lines have no columns; leave --text-column and the like out")
    sources = read_lines(files[0])
    targets = read_lines(files[1]) if labelled else [None] * len(sources)
    if len(sources) != len(targets):
        line = min(len(sources), len(targets)) + 1
        raise UserError(
            f"{files[0]} has {len(sources)} lines and {files[1]} {len(targets)}: from line {line} on there is no pair;"
            " both must have the same number"
        )
    examples = []
    bad = BadRows(files[0], skip=skip_bad, unit="pair")
    for i, (source, target) in enumerate(zip(sources, targets)):
        with bad.row(i):
            for file, text in zip(files, (source, target)):
                if labelled and text is not None and not text.strip():
                    raise UserError(f"{file}, line {i + 1}: is empty; leave the pair out of both files")
            examples.append(SequenceExample(id=str(i), location=f"line {i + 1}", source=source, target=target))
    bad.settle(len(examples))
    if not examples:
        raise UserError(f"{files[0]}, line 1: the file is empty; name one with examples")
    return Dataset(files[0], tuple(examples))
