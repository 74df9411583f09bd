"""Training files of embedders and rerankers: anchors with positives and negatives, pairs with a score, queries with
candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fastbert.errors import UserError
from fastbert.io.text import whole_characters
from fastbert.tasks.examples import Dataset, TextGroup
from fastbert.tasks.readers.bad_rows import BadRows
from fastbert.tasks.readers.cells import class_name, number, row_ids
from fastbert.tasks.readers.group_layouts import GroupColumns, GroupLayout, find_groups, is_header
from fastbert.tasks.readers.tables import Row, Table, name_of, read_table

__all__ = ["Form", "GroupColumns", "TextGroup", "TextGroups", "read_text_groups"]


class Form(StrEnum):
    """The form of a file's groups."""

    PAIRS = "pairs"
    """An anchor and its positive."""
    TRIPLETS = "triplets"
    """An anchor, its positive, and any number of negatives."""
    SCORED = "scored"
    """Two texts and the score of the pair, any number."""
    LABELLED = "labelled"
    """A query, a document and a label: 0 (not relevant), 1, or a higher grade."""
    LISTS = "lists"
    """A query, candidates and a label for each."""


@dataclass(frozen=True)
class TextGroups(Dataset[TextGroup]):
    """The groups of a file, and the columns from which they were read."""

    form: Form
    description: str
    """One line: the columns, with the numbers of negatives or candidates, or the range of scores."""

    @property
    def score_range(self) -> tuple[float, float] | None:
        """The smallest and largest label, or None without labels."""
        labels = [label for group in self.examples for label in group.labels or ()]
        return (min(labels), max(labels)) if labels else None


def read_text_groups(
    path: str, columns: GroupColumns | None = None, *, labelled: bool = True, skip_bad: bool | None = None
) -> TextGroups:
    """Read the groups of a table of any kind (`fastbert.tasks.readers.tables`).

    Columns are found by their usual names (`fastbert.tasks.readers.group_layouts`) or named by `columns`. A row with a
    list of positives gives a group for each of them, with all negatives of the row. A row may have any number of
    negatives, none included. Scores and labels are finite numbers, kept as they are in the file
    (`fastbert.tasks.readers.group_scores` scales them); labels of documents are whole numbers from 0. A list of
    candidates with a teacher's scores needs no labels. Without `labelled`, labels and teachers' scores are not read and
    texts may be empty.

    Raises UserError with file and line, unless `skip_bad` leaves bad rows out.
    """
    columns = columns or GroupColumns()
    bad = BadRows(name_of(path), skip=skip_bad)
    table = read_table(path, is_header=lambda cells: is_header(cells, columns), bad=bad)
    table.require_rows()
    layout = find_groups(table, columns, labelled=labelled)
    rows = table.numbered(bad)
    reader = _Reader(table, layout, labelled)
    read: list[tuple[Row, list[TextGroup]]] = []
    for (_, row), name in zip(rows, row_ids(table, rows, columns.id)):
        with bad.row(row.line):
            read.append((row, reader.groups(row, name)))
    form = _form(table, layout, [group for _, groups in read for group in groups], columns)
    examples: list[TextGroup] = []
    for row, groups in read:
        with bad.row(row.line):
            if form in (Form.LABELLED, Form.LISTS):
                _check_grades(table, layout, groups)
            examples.extend(groups)
    bad.settle(len(examples))
    return TextGroups(table.path, tuple(examples), form, _describe(table, layout, form, examples, len(read)))


class _Reader:
    """Read the groups of a row."""

    def __init__(self, table: Table, layout: GroupLayout, labelled: bool) -> None:
        self.table, self.layout, self.labelled = table, layout, labelled

    def groups(self, row: Row, name: str) -> list[TextGroup]:
        """Return the groups of a row. Raises UserError if any of them is wrong."""
        anchor = self.table.text(row, self.layout.anchor, empty=not self.labelled)
        if self.layout.listed:
            return [self._candidates(row, name, anchor)]
        return list(self._positives(row, name, anchor))

    def _candidates(self, row: Row, name: str, anchor: str) -> TextGroup:
        layout = self.layout
        texts = self._texts(row, layout.text)
        if not texts:
            raise UserError(
                f"{self.table.where(row)}: {self.table.column(layout.text)} has no candidates; leave the row out"
            )
        return TextGroup(
            id=name,
            location=self.table.location(row),
            texts=(anchor, *texts),
            labels=None if layout.label is None else self._numbers(row, layout.label, len(texts)),
            teacher=None if layout.teacher is None else self._numbers(row, layout.teacher, len(texts)),
            keys=self._keys(row, len(texts), 0, 1, 0),
        )

    def _positives(self, row: Row, name: str, anchor: str) -> Iterator[TextGroup]:
        layout, table = self.layout, self.table
        positives = self._texts(row, layout.text)
        if not positives:
            raise UserError(f"{table.where(row)}: {table.column(layout.text)} has no positive; leave the row out")
        if len(positives) > 1 and layout.label is not None:
            raise UserError(
                f"{table.where(row)}: {table.column(layout.text)} has {len(positives)} texts for one label; write a row"
                " for each"
            )
        negatives = self._negatives(row)
        for i, positive in enumerate(positives):
            yield TextGroup(
                id=name if len(positives) == 1 else f"{name}.{i}",
                location=table.location(row),
                texts=(anchor, positive, *negatives),
                labels=None if layout.label is None else (self._number(row, layout.label, row.cells[layout.label]),),
                teacher=self._teacher(row, i, len(positives), len(negatives)),
                keys=self._keys(row, len(positives), i, len(positives), len(negatives)),
            )

    def _texts(self, row: Row, index: int) -> tuple[str, ...]:
        """Return the texts of a cell: a string, or a list of strings."""
        value = row.cells[index]
        if not isinstance(value, list):
            if self.layout.listed and index == self.layout.text:
                raise UserError(
                    f"{self.table.where(row)}: {self.table.column(index)} must be a list of strings; correct it"
                )
            return (self.table.text(row, index, empty=not self.labelled),)
        for i, item in enumerate(value):
            problem = (
                f"must be a string, not {type(item).__name__}; correct it"
                if not isinstance(item, str)
                else "is empty; fill it in or leave it out"
                if self.labelled and not item.strip()
                else None
            )
            if problem is not None:
                raise UserError(f"{self.table.where(row)}: item {i} of {self.table.column(index)} {problem}")
        return tuple(map(whole_characters, value))

    def _negatives(self, row: Row) -> tuple[str, ...]:
        """Return the negatives of a row. A null is none, as is an empty cell among several columns."""
        several = len(self.layout.negatives) > 1
        negatives: list[str] = []
        for index in self.layout.negatives:
            value = row.cells[index]
            if value is not None and not (several and value == ""):
                negatives.extend(self._texts(row, index))
        return tuple(negatives)

    def _teacher(self, row: Row, i: int, positives: int, negatives: int) -> tuple[float, ...] | None:
        layout = self.layout
        if layout.teacher is not None:
            if positives > 1:
                raise UserError(
                    f"{self.table.where(row)}: {self.table.column(layout.teacher)} has scores for one positive, and the"
                    f" row has {positives}; write a row for each"
                )
            return self._numbers(row, layout.teacher, 1 + negatives)
        if layout.part_scores is not None:
            scores = self._numbers(row, layout.part_scores[0], positives)
            return (scores[i], *self._numbers(row, layout.part_scores[1], negatives))
        if layout.margin is not None and negatives == 1:
            # The losses that have a teacher depend on differences of its scores only.
            return (self._number(row, layout.margin, row.cells[layout.margin]), 0.0)
        return None

    def _number(self, row: Row, index: int, value: Any) -> float:
        return number(
            float(value) if isinstance(value, bool) else value, self.table.where(row), self.table.column(index)
        )

    def _numbers(self, row: Row, index: int, count: int) -> tuple[float, ...]:
        """Return the numbers of a list, one per text."""
        value = row.cells[index]
        if not isinstance(value, list) or len(value) != count:
            shape = f"{len(value)} of them" if isinstance(value, list) else repr(value)[:40]
            raise UserError(
                f"{self.table.where(row)}: {self.table.column(index)} must be a list of numbers, one for each of"
                f" {count} texts, not {shape}; correct it"
            )
        return tuple(self._number(row, index, item) for item in value)

    def _keys(self, row: Row, texts: int, i: int, positives: int, negatives: int) -> tuple[str, ...] | None:
        """Return the ids of the group: of the anchor, of all candidates or of positive `i`, and of the negatives."""
        anchor, text, negative = self.layout.ids
        if anchor is None and text is None and negative is None:
            return None
        listed = self._ids(row, text, texts)
        return (
            *self._ids(row, anchor, 1),
            *(listed if self.layout.listed else listed[i : i + 1]),
            *self._ids(row, negative, negatives),
        )

    def _ids(self, row: Row, index: int | None, count: int) -> tuple[str, ...]:
        value = None if index is None else row.cells[index]
        if index is None or value is None or value == "":
            return ("",) * count
        values = value if isinstance(value, list) else [value]
        if len(values) != count:
            raise UserError(
                f"{self.table.where(row)}: {self.table.column(index)} has {len(values)} ids for {count} texts;"
                " correct it"
            )
        where, column = self.table.where(row), self.table.column(index)
        return tuple("" if item in (None, "") else class_name(item, where, column) for item in values)


def _form(table: Table, layout: GroupLayout, examples: Sequence[TextGroup], columns: GroupColumns) -> Form:
    if layout.listed:
        return Form.LISTS
    if layout.label is None:
        return Form.TRIPLETS if any(len(group.texts) > 2 for group in examples) else Form.PAIRS
    name = "" if table.names is None else table.names[layout.label].strip().lower()
    labels = [label for group in examples for label in group.labels or ()]
    if "score" in name or "similarity" in name or not all(label.is_integer() for label in labels):
        return Form.SCORED
    _refuse_classes(table, layout, labels, columns)
    return Form.LABELLED


def _refuse_classes(table: Table, layout: GroupLayout, labels: Sequence[float], columns: GroupColumns) -> None:
    """Raise UserError for the numbers of entailment, neutral and contradiction, of which 0 is the best."""
    if table.names is None or columns.label is not None or set(labels) - {-1.0} != {0.0, 1.0, 2.0}:
        return
    if table.names[layout.text].strip().lower() == "hypothesis":
        raise UserError(
            f"{table.path}, line 1: {table.column(layout.label or 0)} holds 0, 1 and 2 beside a hypothesis, which"
            " number the classes of natural language inference; use --task classification, or name them with"
            " --label-column if they are grades"
        )


def _check_grades(table: Table, layout: GroupLayout, groups: Sequence[TextGroup]) -> None:
    """Raise UserError for a label of relevance below 0."""
    for group in groups:
        for label in group.labels or ():
            if label < 0:
                raise UserError(
                    f"{table.path}, {group.location}: {table.column(layout.label or 0)} must be 0 or more, not"
                    f" {label:g}; 0 is not relevant, 1 and more are grades of relevance"
                )


def _describe(table: Table, layout: GroupLayout, form: Form, examples: Sequence[TextGroup], rows: int) -> str:
    """Return the columns that were taken from this number of rows, in a line."""
    first, second = {
        Form.PAIRS: ("anchor", "positive"),
        Form.TRIPLETS: ("anchor", "positive"),
        Form.SCORED: ("text1", "text2"),
        Form.LABELLED: ("query", "document"),
        Form.LISTS: ("query", "candidates"),
    }[form]
    counts = [len(group.texts) for group in examples]
    parts = [f"{first}={table.column(layout.anchor)}", f"{second}={table.column(layout.text)}"]
    if form is Form.LISTS:
        parts[-1] += f" ({_span(counts, 1)} per row)"
    elif len(examples) > rows:
        parts[-1] += f" ({len(examples):,} in {rows:,} rows)"
    if form is Form.TRIPLETS:
        names = [table.column(index) for index in layout.negatives]
        shown = " + ".join(names) if len(names) < 4 else f"{names[0]} ... {names[-1]}"
        parts.append(f"negatives={shown} ({_span(counts, 2)} per row)")
    if layout.label is not None:
        labels = [label for group in examples for label in group.labels or ()]
        span = f" ({min(labels):g} to {max(labels):g})" if labels else ""
        name = {Form.SCORED: "score", Form.LABELLED: "label"}.get(form, "labels")
        parts.append(f"{name}={table.column(layout.label)}{span}")
    if layout.teacher is not None:
        parts.append(f"teacher={table.column(layout.teacher)}")
    if layout.part_scores is not None:
        parts.append(f"teacher={' + '.join(map(table.column, layout.part_scores))}")
    if layout.margin is not None:
        parts.append(f"teacher={table.column(layout.margin)} (margin of the positive over the negative)")
    keys = [table.column(index) for index in layout.ids if index is not None]
    if keys:
        parts.append(f"ids={' + '.join(keys)}")
    return "columns: " + ", ".join(parts)


def _span(counts: Sequence[int], before: int) -> str:
    """Return the smallest and largest number of texts after the first `before`."""
    least, most = (min(counts) - before, max(counts) - before) if counts else (0, 0)
    return f"{least}" if least == most else f"{least} to {most}"
