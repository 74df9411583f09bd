"""Texts and pairs of texts with a class or a number: the files of GLUE, SNLI and CLINC150, and plain tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.io.text import plain_name, whole_characters
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.cells import class_name, number, row_ids
from fastbert.tasks.readers.layouts import Layout, find_layout, is_header, is_plain
from fastbert.tasks.readers.tables import (
    Row,
    Table,
    kind_of,
    name_of,
    opened,
    read_json,
    read_table,
    refuse_squad,
)
from fastbert.tasks.settings import Columns
from fastbert.tasks.text_files import STDIN

QQP = frozenset(("question1", "question2", "is_duplicate"))
NLI = frozenset(("entailment", "neutral", "contradiction"))
NLI_NUMBERS = frozenset(("0", "1", "2"))
NO_GOLD = frozenset(("-", "-1", "None"))  # in SNLI and MNLI if annotators did not agree; -1 and null in copies of them
TREC_COLUMNS = ("label", "coarse", "text")
_TREC = re.compile(r"(([A-Z]{2,8}):[a-z]{2,12}) (\S.*)")  # DESC:manner How did ...

ReadLabel = Callable[[Any, str, str], Any]
"""(value, where, column) -> the label of a cell, checked. Raises UserError, naming the place."""


def read_texts(
    path: str,
    columns: Columns,
    *,
    labelled: bool,
    regression: bool,
    skip_bad: bool | None = None,
    read_label: ReadLabel | None = None,
) -> Dataset[TextExample]:
    """Read the examples of a file: of GLUE, SNLI, CLINC150 (`data_full.json#train`, or `#val+oos_val`) or TREC's
    questions, or any table whose columns `find_layout` finds.

    Without `labelled`, labels are not read, texts may be empty, and a file of plain lines (or `-`, standard input) has
    one text per line, or two separated by a TAB. The broken rows of QQP's official files and, with `labelled`, the
    examples of SNLI and MNLI without a gold label are counted, reported and left out; so is every bad row with
    `skip_bad`. Labels are numbers (`regression`), what `read_label` returns, or the names of classes.

    Raises UserError with file and line.
    """
    check = read_label or (number if regression else class_name)
    file, splits = _split_of(path)
    if splits is not None or _is_clinc(file):
        return _clinc(
            path, file, splits, columns, labelled=labelled, regression=regression, skip_bad=skip_bad, check=check
        )
    bad = BadRows(name_of(file), skip=skip_bad)
    table = _trec(file) or read_table(
        file,
        is_header=lambda cells: is_header(cells, columns, has_names=labelled or not is_plain(file)),
        forgives=QQP.issubset,
        bad=bad,
    )
    table.require_rows()
    layout = find_layout(table, columns, labelled=labelled, regression=regression)
    if table.names == TREC_COLUMNS and layout.label == 0:
        logger.warning(
            "%s: uses the whole label of TREC's questions; --label-column coarse selects its first half", file
        )
    rows = table.numbered(bad)
    if table.names is not None and QQP.issubset(table.names):
        rows = _whole_questions(table, layout, rows)
    if labelled:
        rows = _with_gold(table, layout, rows)
    elif not any(row.cells[index] for _, row in rows for index in layout.texts):
        raise UserError(f"{table.where(rows[0][1])}: {table.column(layout.texts[0])} is empty in all rows; fill it in")
    ids = row_ids(table, rows, columns.id)
    examples = []
    for (_, row), name in zip(rows, ids):
        with bad.row(row.line):
            examples.append(
                TextExample(
                    id=name,
                    location=table.location(row),
                    text=layout.text(table, row, empty=not labelled),
                    pair=None if layout.pair is None else table.text(row, layout.pair, empty=not labelled),
                    label=None
                    if layout.label is None
                    else check(row.cells[layout.label], table.where(row), table.column(layout.label)),
                )
            )
    bad.settle(len(examples))
    return Dataset(table.path, tuple(examples))


def _trec(path: str) -> Table | None:
    """Read a file whose lines all begin with TREC's classes; return None for any other file. Bytes that are not UTF-8
    are read as Latin-1, as in the original training set."""
    if path == STDIN or kind_of(path) != ".txt" or not Path(path).is_file():
        return None
    with opened(path) as stream:
        first = stream.readline()
        if not _TREC.match(first.decode("latin-1")):
            return None
        raw = first + stream.read()
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        logger.warning("%s, line %d: is not UTF-8; the file is read as Latin-1", path, line)
        text = raw.decode("latin-1")
    rows = []
    for i, line in enumerate(text.split("\n"), 1):
        match = _TREC.fullmatch(line.rstrip())
        if match is not None:
            rows.append(Row(i, (match[1], match[2], match[3])))
        elif line.strip():
            return None
    return Table(path, TREC_COLUMNS, rows)


def _whole_questions(table: Table, layout: Layout, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Return the rows of QQP that have both questions; report the broken ones."""
    texts = [*layout.texts] if layout.pair is None else [*layout.texts, layout.pair]
    complete, broken = [], [row.line for row in table.skipped]
    for i, row in rows:
        if all(row.cells[index] and row.cells[index].strip() for index in texts):
            complete.append((i, row))
        else:
            broken.append(row.line)
    if broken:
        counted = "1 row lacks" if len(broken) == 1 else f"{len(broken)} rows, this one first, lack"
        logger.warning("%s, line %d: %s cells or a question; left out", table.path, min(broken), counted)
    return complete


def _with_gold(table: Table, layout: Layout, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """Return the rows with a gold label if the file is of SNLI or MNLI, else all. Raises UserError for a test set, none
    of whose rows has a label."""
    index = layout.label
    if index is None or not rows:
        return rows
    if all(row.cells[index] in (None, "") for _, row in rows):
        raise UserError(
            f"{table.where(rows[0][1])} ff.: {table.column(index)} is empty in all rows; this is a test set: use it to"
            " predict"
        )
    if layout.pair is None:
        return rows
    labels = {str(row.cells[index]) for _, row in rows}
    # Three numbers besides -1 are a copy of these; -1, 0 and 1 may be classes of any other task.
    numbers = NLI_NUMBERS <= labels <= NLI_NUMBERS | NO_GOLD
    if not (table.column(index) == repr("gold_label") or labels <= NLI | NO_GOLD or numbers):
        return rows
    labelled = [(i, row) for i, row in rows if str(row.cells[index]) not in NO_GOLD]
    if len(labelled) == len(rows):
        return rows
    first = next(row for _, row in rows if str(row.cells[index]) in NO_GOLD)
    if not labelled:
        raise UserError(f"{table.where(first)}: no pair has a gold label; this is a test set: use it to predict")
    counted = f"{len(rows) - len(labelled)} of {len(rows)} pairs, this one first, have no gold label"
    logger.warning("%s: %s (%s); left out", table.where(first), counted, first.cells[index])
    return labelled


def _split_of(path: str) -> tuple[str, list[str] | None]:
    """Split `file.json#train+oos_train` into file and splits, unless a file has that very name."""
    file, sign, splits = path.rpartition("#")
    if not sign or Path(path).exists() or not plain_name(file).endswith(".json"):
        return path, None
    return file, splits.split("+")


def _is_clinc(path: str) -> bool:
    if path == STDIN or kind_of(path) != ".json" or not Path(path).is_file():
        return False
    try:
        value = read_json(path)
    except UserError:
        return False  # perhaps consecutive objects: the reader of tables reports what is wrong
    return isinstance(value, dict) and bool(value) and all(isinstance(part, list) for part in value.values())


def _clinc(
    path: str,
    file: str,
    splits: list[str] | None,
    columns: Columns,
    *,
    labelled: bool,
    regression: bool,
    skip_bad: bool | None,
    check: ReadLabel,
) -> Dataset[TextExample]:
    """Read CLINC150's form: lists of [text, intent] under the names of splits."""
    if regression or any((columns.text, columns.pair, columns.label, columns.id)):
        raise UserError(f"{path}: holds lists of [text, class] by split, and has neither columns nor numbers")
    content = read_json(file)
    refuse_squad(file, 1, content)
    if not isinstance(content, Mapping):
        raise UserError(f"{file}, line 1: is not a JSON object of splits, so {path!r} names none; leave the # out")
    if splits is None and len(content) == 1:
        splits = list(content)
    names = ", ".join(list(content)[:20])
    if splits is None:
        raise UserError(f"{file}, line 1: has the splits {names}; name one, or several: {file}#{next(iter(content))}")
    examples: list[TextExample] = []
    bad, number = BadRows(file, skip=skip_bad, unit="item"), 0
    for split in splits:
        if not isinstance(content.get(split), list):
            raise UserError(f"{file}, line 1: has no split {split!r}; choose among {names}")
        for i, item in enumerate(content[split]):
            with bad.row(number):
                examples.append(
                    _clinc_example(file, f"{split} item {i + 1}", item, str(number), check if labelled else None)
                )
            number += 1
    bad.settle(len(examples))
    if not examples:
        raise UserError(f"{path}: has no examples; name a file that does")
    return Dataset(file, tuple(examples))


def _clinc_example(file: str, index: str, item: Any, name: str, check: ReadLabel | None) -> TextExample:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
        raise UserError(f"{file}, {index}: must be [text, class]; correct it")
    text = whole_characters(item[0])
    if check is not None and not text.strip():
        raise UserError(f"{file}, {index}: the text is empty; fill it in or leave it out")
    label = None if check is None else check(item[1], f"{file}, {index}", "the class")
    return TextExample(id=name, location=index, text=text, label=label)
