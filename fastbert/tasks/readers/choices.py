"""Prompts with possible endings: SWAG, CODAH, HellaSwag and COPA, and JSON lines of the same kind."""

from __future__ import annotations

from collections.abc import Callable

from fastbert.errors import UserError
from fastbert.io.text import whole_characters
from fastbert.tasks.examples import ChoiceExample, Dataset
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.cells import choice_of, row_ids
from fastbert.tasks.readers.tables import Names, Row, Table, name_of, read_table
from fastbert.tasks.settings import Columns

PROMPTS = ("sent1", "prompt", "ctx", "premise", "context", "question")
STARTS = ("sent2",)
LISTS = ("endings", "choices")
CODAH_WIDTH = 7  # category, prompt, four endings, label


def read_choices(
    path: str, columns: Columns, *, labelled: bool, skip_bad: bool | None = None
) -> Dataset[ChoiceExample]:
    """Read the examples of a file: SWAG's CSV or JSON (`sent1`, `sent2`, `ending0` ..., `label`), CODAH's TSV without a
    header, or objects of `prompt` and `endings` or `choices`, a list, or `choice1`, `choice2` ...; labels are from 0.

    `columns` name others for the prompt (text), the beginning of all endings (pair), label and id. All examples have
    the same number of endings. Without `labelled`, labels are not read. Raises UserError with file and line, unless
    `skip_bad` leaves bad rows out.
    """
    bad = BadRows(name_of(path), skip=skip_bad)
    table = read_table(path, is_header=_is_header, bad=bad)
    table.require_rows()
    prompt, start, label = _columns(table, columns, labelled)
    endings_of = _endings(table)
    ids = row_ids(table, table.numbered(bad), columns.id)
    examples: list[ChoiceExample] = []
    for row, name in zip(table.rows, ids):
        with bad.row(row.line):
            endings = endings_of(row)
            if examples and len(endings) != len(examples[0].endings):
                raise UserError(
                    f"{table.where(row)}: has {len(endings)} endings, not {len(examples[0].endings)} as the first"
                    " example; give each as many"
                )
            examples.append(
                ChoiceExample(
                    id=name,
                    location=table.location(row),
                    prompt=table.text(row, prompt),
                    endings=endings,
                    start="" if start is None else table.text(row, start, empty=True),
                    label=None
                    if label is None
                    else choice_of(row.cells[label], table.where(row), table.column(label), len(endings)),
                )
            )
    bad.settle(len(examples))
    return Dataset(table.path, tuple(examples))


def _is_header(cells: Names) -> bool:
    """Return False for CODAH, which has no names but a number at the end of seven cells."""
    return not (len(cells) == CODAH_WIDTH and cells[-1].strip() in ("0", "1", "2", "3"))


def _columns(table: Table, columns: Columns, labelled: bool) -> tuple[int, int | None, int | None]:
    has_names = table.names is not None
    prompt = table.chosen(columns.text, "--text-column", table.first(PROMPTS) if has_names else 1)
    if prompt is None:
        raise UserError(
            f"{table.path}, line 1: which column holds the prompt is not clear ({table.shape}); name it with"
            " --text-column, the beginning of endings by --pair-column, the rest by --label-column and --id-column"
        )
    start = table.chosen(columns.pair, "--pair-column", table.first(STARTS))
    if not labelled:
        return prompt, start, None
    label = table.chosen(columns.label, "--label-column", table.find("label") if has_names else CODAH_WIDTH - 1)
    if label is None:
        raise UserError(f"{table.path}, line 1: no column 'label' ({table.shape}); name another with --label-column")
    return prompt, start, label


def _endings(table: Table) -> Callable[[Row], tuple[str, ...]]:
    """Return a function that reads the endings of a row."""
    index = table.first(LISTS)
    if index is not None:
        return lambda row: _listed(table, row, index)
    if table.names is None:
        indices = list(range(2, CODAH_WIDTH - 1))
    else:
        numbered = (_numbered(table, name, first) for name in ("ending", "choice") for first in (0, 1))
        indices = next(filter(None, numbered), [])
    if len(indices) < 2:
        raise UserError(
            f"{table.path}, line 1: no endings ({table.shape}); they must be in columns ending0, ending1 ... or"
            f" choice1, choice2 ..., or in a list, {' or '.join(LISTS)}"
        )
    return lambda row: tuple(table.text(row, index) for index in indices)


def _numbered(table: Table, name: str, first: int) -> list[int]:
    """Return the columns of a name and the numbers from `first` on."""
    indices: list[int] = []
    while (index := table.find(f"{name}{first + len(indices)}")) is not None:
        indices.append(index)
    return indices


def _listed(table: Table, row: Row, index: int) -> tuple[str, ...]:
    value = row.cells[index]
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(item, str) for item in value):
        raise UserError(f"{table.where(row)}: {table.column(index)} must be a list of two or more strings; correct it")
    for i, item in enumerate(value):
        if not item.strip():
            raise UserError(f"{table.where(row)}: item {i} of {table.column(index)} is empty; fill it in")
    return tuple(map(whole_characters, value))
