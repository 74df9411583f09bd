"""Texts and pairs of texts with a class or a number: the files of GLUE, SNLI and CLINC150, and plain tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.tasks.examples import Dataset, TextExample
from fastbert.tasks.readers.cells import IDS, class_name, number, row_ids
from fastbert.tasks.readers.tables import Names, Row, Table, kind_of, name_of, plain_name, read_json, read_table
from fastbert.tasks.text_files import STDIN, whole_characters

if TYPE_CHECKING:
    from fastbert.tasks.task import Columns

logger = logging.getLogger("fastbert")

# The columns of two texts, then those of one, by the names that files of the field give them.
PAIRS = (
    ("#1 String", "#2 String"),  # MRPC
    ("question1", "question2"),  # QQP
    ("question", "sentence"),  # QNLI
    ("sentence1", "sentence2"),  # STS-B, MNLI, RTE, WNLI, SNLI, the diagnostics (AX)
    ("premise", "hypothesis"),
    ("Premise", "Hypothesis"),  # the diagnostics with their labels
    ("text", "pair"),
    ("text1", "text2"),
    ("text_a", "text_b"),
)
SINGLES = ("sentence", "text")
CLASSES = ("gold_label", "label", "Label", "is_duplicate", "Quality", "class", "intent", "stance")
NUMBERS = ("score", "similarity_score", "label")
KNOWN = frozenset((*(name for pair in PAIRS for name in pair), *SINGLES, *CLASSES, *NUMBERS, *IDS))
QQP = frozenset(("question1", "question2", "is_duplicate"))
COLA_TEXT, COLA_LABEL = 3, 1  # source, label, the linguists' mark, sentence
NLI = frozenset(("entailment", "neutral", "contradiction"))
NLI_NUMBERS = frozenset(("0", "1", "2"))
NO_GOLD = frozenset(("-", "-1"))  # the label of SNLI and MNLI where the annotators did not agree; so in copies of them


@dataclass(frozen=True)
class _Places:
    """The columns, by their places."""

    text: int
    pair: int | None = None
    label: int | None = None


def read_texts(path: str, columns: Columns, *, labelled: bool, regression: bool) -> Dataset[TextExample]:
    """The examples of a file: the forms of GLUE, of SNLI, of CLINC150 (`data_full.json#train`, or `#val+oos_val`), or
    any table whose columns are known by their names or by `columns`, names or numbers from 1. Columns of which only
    numbers are known have no header.

    Without `labelled`, labels are not looked at, texts may be empty, and a file of plain lines, `-` for standard input
    included, has a text a line, or two with a TAB between them. The broken rows of QQP's official files, and of what is
    labelled the examples of SNLI and MNLI without a gold label, are counted, reported and left out.

    Raises UserError with file and line.
    """
    file, splits = _split_of(path)
    if splits is not None or _is_clinc(file):
        return _clinc(path, file, splits, columns, labelled=labelled, regression=regression)
    table = read_table(file, is_header=lambda cells: _is_header(cells, columns), forgives=QQP.issubset)
    if not table.rows:
        raise UserError(f"{table.path}, line 1: has a header and no rows")
    places = _places(table, columns, labelled=labelled, regression=regression)
    rows = list(enumerate(table.rows))
    if table.names is not None and QQP.issubset(table.names):
        rows = _whole_questions(table, places, rows)
    if labelled:
        rows = _with_gold(table, places, rows)
    elif not any(row.cells[places.text] for _, row in rows):
        raise UserError(f"{table.where(rows[0][1])}: {table.column(places.text)} is empty in all rows")
    ids = row_ids(table, rows, columns.id)
    examples = []
    for (_, row), name in zip(rows, ids):
        label = None if not labelled or places.label is None else _label(table, row, places.label, regression)
        examples.append(
            TextExample(
                id=name,
                place=f"line {row.line}",
                text=table.text(row, places.text, empty=not labelled),
                pair=None if places.pair is None else table.text(row, places.pair, empty=not labelled),
                label=label,
            )
        )
    return Dataset(table.path, tuple(examples))


def _label(table: Table, row: Row, place: int, regression: bool) -> str | float:
    check = number if regression else class_name
    return check(row.cells[place], table.where(row), table.column(place))


def _is_header(cells: Names, columns: Columns) -> bool:
    named = {columns.text, columns.pair, columns.label, columns.id} - {None}
    return bool((named | KNOWN) & set(cells)) or not all(str(name).isdecimal() for name in named)


def _places(table: Table, columns: Columns, *, labelled: bool, regression: bool) -> _Places:
    """Where the columns are: as the user says, else as their names say, else as the table's shape says."""
    text, pair = _texts(table, columns, labelled)
    label = None
    if labelled and columns.label is not None:
        label = table.named(columns.label, "--label-column")
    elif labelled and _is_cola(table):
        label = COLA_LABEL
    elif labelled:
        label = table.first(NUMBERS if regression else CLASSES)
        if label is None:
            kind = "numbers" if regression else "classes"
            raise UserError(
                f"{table.path}, line 1: no column of {kind} is known by its name ({table.shape}); name it with"
                " --label-column"
            )
    return _Places(text, pair, label)


def _texts(table: Table, columns: Columns, labelled: bool) -> tuple[int, int | None]:
    if columns.text is not None:
        pair = None if columns.pair is None else table.named(columns.pair, "--pair-column")
        return table.named(columns.text, "--text-column"), pair
    if columns.pair is None and _is_cola(table):
        return COLA_TEXT, None
    if columns.pair is None and table.names is None and not labelled and table.width <= 2 and _is_plain(table.path):
        return 0, 1 if table.width == 2 else None
    found = [pair for pair in PAIRS if all(table.find(name) is not None for name in pair)]
    singles = [name for name in SINGLES if table.find(name) is not None]
    if len(found) == 1 and columns.pair is None:
        return table.named(found[0][0], "--text-column"), table.named(found[0][1], "--pair-column")
    if not found and len(singles) == 1:
        pair = None if columns.pair is None else table.named(columns.pair, "--pair-column")
        return table.named(singles[0], "--text-column"), pair
    raise UserError(
        f"{table.path}, line 1: which column holds the text is not clear ({table.shape}); name the columns with"
        " --text-column, --pair-column, --label-column and --id-column"
    )


def _is_plain(path: str) -> bool:
    return path == name_of(STDIN) or kind_of(path) == ".txt"


def _is_cola(table: Table) -> bool:
    """CoLA's training and development sets: no header, the sentence in the last of four columns."""
    if table.names is not None or table.width != 4:
        return False
    return all(row.cells[COLA_LABEL] in ("0", "1") and row.cells[2] in ("", "*", "?", "??", "?*") for row in table.rows)


def _whole_questions(table: Table, places: _Places, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """The rows of QQP that have both questions; what is broken is reported."""
    texts = [places.text] if places.pair is None else [places.text, places.pair]
    kept, broken = [], [row.line for row in table.skipped]
    for i, row in rows:
        if all(row.cells[place] and row.cells[place].strip() for place in texts):
            kept.append((i, row))
        else:
            broken.append(row.line)
    if broken:
        counted = "1 row lacks" if len(broken) == 1 else f"{len(broken)} rows, this one first, lack"
        logger.warning("%s, line %d: %s cells or a question; left out", table.path, min(broken), counted)
    return kept


def _with_gold(table: Table, places: _Places, rows: list[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """The rows that have a gold label, where the file is one of SNLI's or MNLI's."""
    place = places.label
    if place is None or places.pair is None:
        return rows
    found = {str(row.cells[place]) for _, row in rows}
    # Three numbers beside -1 are a copy of them; -1, 0 and 1 may be classes of any other task.
    numbers = NLI_NUMBERS <= found <= NLI_NUMBERS | NO_GOLD
    if not (table.column(place) == repr("gold_label") or found <= NLI | NO_GOLD or numbers):
        return rows
    kept = [(i, row) for i, row in rows if str(row.cells[place]) not in NO_GOLD]
    if len(kept) == len(rows):
        return rows
    first = next(row for _, row in rows if str(row.cells[place]) in NO_GOLD)
    if not kept:
        raise UserError(f"{table.where(first)}: no pair has a gold label; this is a test set: use it to predict")
    counted = f"{len(rows) - len(kept)} of {len(rows)} pairs, this one first, have no gold label"
    logger.warning("%s: %s (%s); left out", table.where(first), counted, first.cells[place])
    return kept


def _split_of(path: str) -> tuple[str, list[str] | None]:
    """`file.json#train+oos_train` as file and splits; a file of that very name is that file."""
    file, sign, splits = path.rpartition("#")
    if not sign or Path(path).exists() or not plain_name(file).endswith(".json"):
        return path, None
    return file, splits.split("+")


def _is_clinc(path: str) -> bool:
    if path == STDIN or kind_of(path) != ".json" or not Path(path).is_file():
        return False
    value = _json_or_none(path)
    return isinstance(value, dict) and bool(value) and all(isinstance(part, list) for part in value.values())


def _json_or_none(path: str) -> Any:
    try:
        return read_json(path)
    except UserError:
        return None  # objects that follow each other, perhaps: the table's reader says what is wrong


def _clinc(
    path: str, file: str, splits: list[str] | None, columns: Columns, *, labelled: bool, regression: bool
) -> Dataset[TextExample]:
    """CLINC150's form: lists of [text, intent] under the names of splits."""
    if regression or any((columns.text, columns.pair, columns.label, columns.id)):
        raise UserError(f"{path}: holds lists of [text, class] by split, and has neither columns nor numbers")
    content = read_json(file)
    if not isinstance(content, Mapping):
        raise UserError(f"{file}, line 1: is no JSON object of splits, so {path!r} names none; leave the # out")
    if splits is None and len(content) == 1:
        splits = list(content)
    found = ", ".join(list(content)[:20])
    if splits is None:
        raise UserError(f"{file}, line 1: has the splits {found}; name one, or several: {file}#{next(iter(content))}")
    examples: list[TextExample] = []
    for split in splits:
        if not isinstance(content.get(split), list):
            raise UserError(f"{file}, line 1: has no split {split!r} ({found})")
        for i, item in enumerate(content[split]):
            examples.append(_clinc_example(file, f"{split} item {i + 1}", item, str(len(examples)), labelled))
    if not examples:
        raise UserError(f"{path}: has no examples")
    return Dataset(file, tuple(examples))


def _clinc_example(file: str, place: str, item: Any, name: str, labelled: bool) -> TextExample:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
        raise UserError(f"{file}, {place}: must be [text, class]")
    text = whole_characters(item[0])
    if labelled and not text.strip():
        raise UserError(f"{file}, {place}: the text is empty")
    label = class_name(item[1], f"{file}, {place}", "the class") if labelled else None
    return TextExample(id=name, place=place, text=text, label=label)
