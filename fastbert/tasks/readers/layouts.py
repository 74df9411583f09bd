"""Find the columns of a table that hold the text, its pair and the label: by flags, names, shape, or as the only ones
left.

Columns without a usual name are reported in one log line, each with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fastbert.errors import UserError
from fastbert.io.log import logger
from fastbert.tasks.readers.cells import IDS
from fastbert.tasks.readers.tables import Names, Row, Table, kind_of, name_of
from fastbert.tasks.settings import Columns
from fastbert.tasks.text_files import STDIN

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

# Names that count if a header has none of the above, in any case.
MORE_PAIRS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"),  # SICK
    ("question1", "question2"),
    ("question", "passage"),  # BoolQ
    ("query", "passage"),
    ("text_1", "text_2"),
)
TITLED = (("title", "description"), ("title", "content"))  # one text: AG News, DBpedia
MORE_SINGLES = (
    "text", "sentence", "review", "tweet", "utterance", "comment", "comment_text", "question", "content", "message",
    "headline",
)  # fmt: skip
MORE_CLASSES = (
    "label", "class", "category", "sentiment", "labels", "class index", "class_index", "intent", "stance", "target",
    "topic", "emotion", "polarity", "fine_label", "coarse_label", "entailment_judgment",
)  # fmt: skip
MORE_NUMBERS = ("score", "label", "similarity", "rating", "relatedness_score")
MORE = frozenset(
    (*(name for pair in MORE_PAIRS + TITLED for name in pair), *MORE_SINGLES, *MORE_CLASSES, *MORE_NUMBERS)
)  # fmt: skip

COLA_TEXT, COLA_LABEL, COLA_WIDTH = 3, 1, 4  # source, label, the linguists' mark, sentence
_MARK = re.compile(r"[^\w\s]{0,4}")  # CoLA's: *, ?, ??, *?, #, ...
_INTEGER = re.compile(r"[+-]?[0-9]{1,4}")
_NAME = re.compile(r"\w{0,40}")
_DECIMAL = re.compile(r"[+-]?[0-9]*\.?[0-9]+")
MOST_WIDE = 4  # columns of class, title and texts, as Yahoo Answers has them
# Columns of splits, dates and addresses: labels only if a flag names them.
NO_LABELS = frozenset(("split", "fold", "subset", "partition", "date", "year", "time", "timestamp", "url", "link"))
FEW_ROWS = 10  # in which all classes may differ
MANY_ROWS = 100  # in which some classes must repeat

# Columns that only files of other tasks have.
OTHER_TASKS = (
    ("choice", frozenset(("ending0", "endings", "choices", "choice1"))),
    ("tagging", frozenset(("tokens", "words", "ner_tags"))),
    ("span", frozenset(("context", "answers"))),
    ("seq2seq", frozenset(("source", "summary", "highlights", "translation"))),
)
BY_FLAG, BY_NAME, LEFT = "by its flag", "by its name", "the only other column"


@dataclass(frozen=True)
class Layout:
    """The indices of the columns; several `texts` are joined by spaces into one."""

    texts: tuple[int, ...]
    pair: int | None = None
    label: int | None = None

    def text(self, table: Table, row: Row, *, empty: bool) -> str:
        """Return a row's text. Raises UserError where it is missing, unless `empty` allows that."""
        if len(self.texts) == 1:
            return table.text(row, self.texts[0], empty=empty)
        parts = [table.text(row, index, empty=True) for index in self.texts]
        return " ".join(filter(str.strip, parts)) or table.text(row, self.texts[-1], empty=empty)


def is_header(cells: Names, columns: Columns, *, has_names: bool = True) -> bool:
    """Return True if a first row holds names: those of flags, or usual ones.

    `has_names=False` is for files of texts or pairs without a header, in which a word like "question" may be a text.
    """
    named = {name for name in (columns.text, columns.pair, columns.label, columns.id) if name is not None}
    numbers = {name for name in named if name.isdecimal()}
    if KNOWN & set(cells) or named != numbers:
        return True
    if numbers:  # numbers are names only if the whole header is numbered
        return numbers <= set(cells) and all(cell.isdecimal() for cell in cells)
    known = [cell.strip().lower() in MORE for cell in cells]
    if not has_names or len(cells) < 2 or any(_DECIMAL.fullmatch(cell.strip()) for cell in cells):
        return False
    # One known word may stand in a row of texts; beside it, a name has no blanks and no punctuation.
    return sum(known) > 1 or (any(known) and all(_NAME.fullmatch(cell.strip()) for cell in cells))


def is_plain(path: str) -> bool:
    """Return True for files without a header: standard input, and lines of text."""
    return path == STDIN or kind_of(path) == ".txt"


def find_layout(table: Table, columns: Columns, *, labelled: bool, regression: bool) -> Layout:
    """Find the columns; `labelled` requires a label, a number with `regression`.

    Raises UserError if the names are ambiguous.
    """
    if table.names is None and not any((columns.text, columns.pair, columns.label)):
        shaped = _by_shape(table, labelled)
        if shaped is not None:
            return shaped if labelled else Layout(shaped.texts, shaped.pair)
    return _Finder(table, columns, labelled, regression).layout()


def is_cola(table: Table) -> bool:
    """Return True for CoLA's labelled tables: no header, the sentence in the last of four columns."""
    if table.names is not None or table.width != COLA_WIDTH:
        return False
    return all(row.cells[COLA_LABEL] in ("0", "1") and _MARK.fullmatch(row.cells[2].strip()) for row in table.rows)


def _by_shape(table: Table, labelled: bool) -> Layout | None:
    """Return the columns of a table without a header, if its shape is unambiguous."""
    if is_cola(table):
        cola = Layout((COLA_TEXT,), None, COLA_LABEL)
        if labelled:
            _report(table, cola, dict.fromkeys(("text", "label"), "as in CoLA, which has no header"))
        return cola
    if not labelled and table.width <= 2 and (table.path == name_of(STDIN) or is_plain(table.path)):
        return Layout((0,), 1 if table.width == 2 else None)
    if not 2 <= table.width <= MOST_WIDE:
        return None
    counted = [index for index in range(table.width) if _holds_classes(table, index)]
    if counted == [0] and (table.width == 2 or kind_of(table.path) == ".csv"):
        layout = Layout(tuple(range(1, table.width)), None, 0)
    elif counted == [1] and table.width == 2:
        layout = Layout((0,), None, 1)
    else:
        return None
    if labelled:
        _report(table, layout, {"text": "the rest, without a header", "label": "whole numbers throughout"})
    return layout


def _holds_classes(table: Table, index: int) -> bool:
    """Return True if a column holds small integers that are not merely row numbers."""
    values = [row.cells[index].strip() for row in table.rows]
    if not all(map(_INTEGER.fullmatch, values)):
        return False
    return len(values) <= FEW_ROWS or len(set(values)) < len(values)


def _report(table: Table, layout: Layout, reasons: Mapping[str, str], kind: str = "class") -> None:
    """Log one line with the columns that are used, and why."""
    roles = [("text", layout.texts, "text")]
    if layout.pair is not None:
        roles = [("first text", layout.texts, "text"), ("second text", (layout.pair,), "pair")]
    if layout.label is not None:
        roles.append((kind, (layout.label,), "label"))
    listed = [
        f"{role} from {' and '.join(map(table.column, columns))} ({reasons[reason]})" for role, columns, reason in roles
    ]
    logger.warning("%s: took %s; flags like --text-column name others", table.path, ", ".join(listed))


def _found(named: Iterable[Sequence[str]], find: Callable[[str], int | None]) -> list[tuple[int, ...]]:
    """Return the columns of each group of names that are all there."""
    groups = [tuple(map(find, names)) for names in named]
    return [tuple(index for index in group if index is not None) for group in groups if None not in group]


class _Finder:
    """The search for the columns of one table; `reasons` are those of its columns, `is_usual` is True while there is
    nothing to report."""

    def __init__(self, table: Table, columns: Columns, labelled: bool, regression: bool) -> None:
        self.table, self.columns, self.labelled, self.regression = table, columns, labelled, regression
        self.reasons = dict.fromkeys(("text", "pair", "label"), BY_NAME)
        self.is_usual = True

    def layout(self) -> Layout:
        """Return the columns. Raises UserError if they are ambiguous."""
        texts, pair = self._texts()
        label = self._label()
        taken = {*texts, pair, label} - {None}
        rest = [index for index in range(self.table.width) if index not in taken and not self._is_id(index)]
        names = self.table.names
        left = rest[0] if len(rest) == 1 and names is not None else None
        if left is not None and names is not None and not self.is_usual and len(names[left].split()) > 2:
            left = None  # a text, in a row taken for a header because of a different word in it
        if not texts and label is not None and left is not None:
            self._take("text", LEFT)
            texts = (left,)
        elif not texts:
            raise self._unclear()
        elif label is None and self.labelled:
            if left is None or not self._may_be_label(left):
                raise self._no_label(left)
            self._take("label", LEFT)
            label = left
        layout = Layout(texts, pair, label if self.labelled else None)
        if not self.is_usual:
            _report(self.table, layout, self.reasons, "number" if self.regression else "class")
        return layout

    def _take(self, role: str, reason: str) -> None:
        """Record a column without a usual name."""
        self.reasons[role] = reason
        self.is_usual = self.is_usual and reason == BY_FLAG

    def _texts(self) -> tuple[tuple[int, ...], int | None]:
        """Return the columns of the texts and of the pair."""
        table, columns = self.table, self.columns
        pair = None
        if columns.pair is not None:
            pair = table.named(columns.pair, "--pair-column")
            self._take("pair", BY_FLAG)
        if columns.text is not None:
            self._take("text", BY_FLAG)
            return (table.named(columns.text, "--text-column"),), pair
        if is_cola(table):
            return (COLA_TEXT,), pair
        pairs, singles = _found(PAIRS, table.find), _found(zip(SINGLES), table.find)
        if not pairs and not singles:
            return self._texts_by_more_names(pair)
        if len(pairs) == 1 and pair is None:
            return pairs[0][:1], pairs[0][1]
        if not pairs and len(singles) == 1:
            return singles[0], pair
        raise self._unclear()

    def _texts_by_more_names(self, pair: int | None) -> tuple[tuple[int, ...], int | None]:
        pairs = _found(MORE_PAIRS, self._like) if pair is None else []
        if pairs:
            self._take("text", BY_NAME)
            return pairs[0][:1], pairs[0][1]
        titled = _found(TITLED, self._like)
        if titled:
            self._take("text", "by their names, joined by a blank")
            return titled[0], pair
        singles = _found(zip(MORE_SINGLES), self._like)
        if not singles:
            return (), pair
        if len(singles) > 1:
            raise self._unclear()
        self._take("text", BY_NAME)
        return singles[0], pair

    def _label(self) -> int | None:
        table, label = self.table, self.columns.label
        if label is not None:
            self._take("label", BY_FLAG)
            return table.named(label, "--label-column") if self.labelled else table.find(label)
        if is_cola(table):
            return COLA_LABEL
        known = table.first(NUMBERS if self.regression else CLASSES)
        if known is not None:
            return known
        more = MORE_NUMBERS if self.regression else MORE_CLASSES
        known = next((index for index in map(self._like, more) if index is not None), None)
        if known is not None and self.labelled:
            self._take("label", BY_NAME)
        return known

    def _like(self, name: str) -> int | None:
        """Return the index of the one column of a name, in whatever case."""
        names = self.table.names or ()
        indices = [index for index, column in enumerate(names) if column.strip().lower() == name]
        return indices[0] if len(indices) == 1 else None

    def _is_id(self, index: int) -> bool:
        """Return True if a column holds ids or row numbers."""
        if self.columns.id is not None and self.table.find(self.columns.id) == index:
            return True
        name = self.table.names[index].lower() if self.table.names is not None else ""
        return name in {"", *(usual.lower() for usual in IDS)} or name.startswith("unnamed:")

    def _may_be_label(self, index: int) -> bool:
        """Return True if a column without a usual name can hold labels: not scores for classes, not one value per
        row."""
        name = (self.table.names or ())[index].strip().lower()
        if name in NO_LABELS:
            return False
        if self.regression:
            return True
        different = {str(row.cells[index]) for row in self.table.rows}
        return name not in (*NUMBERS, *MORE_NUMBERS) and not MANY_ROWS <= len(different) == len(self.table.rows)

    def _unclear(self) -> UserError:
        for task, names in OTHER_TASKS:
            if names & set(self.table.names or ()):
                return UserError(
                    f"{self.table.path}, line 1: is a file for --task {task} by its names ({self.table.shape}); use"
                    " that task, or name the columns of the text and label with --text-column and --label-column"
                )
        return UserError(
            f"{self.table.path}, line 1: which column holds the text is not clear ({self.table.shape});"
            f" {self._separator_hint()}name the columns with --text-column, --pair-column, --label-column and"
            " --id-column"
        )

    def _separator_hint(self) -> str:
        """Return the suffix that the file should have, if it seems to have one column only because of its suffix."""
        names = self.table.names or tuple(map(str, self.table.rows[0].cells))
        if len(names) != 1 or self.table.path == name_of(STDIN):
            return ""
        kind = kind_of(self.table.path)
        for separator, word, suffix in (("\t", "TABs", ".tsv"), (",", "commas", ".csv")):
            if separator in names[0] and kind in (".tsv", ".csv") and kind != suffix:
                return f"its cells seem to be separated by {word}: rename it to {suffix}, or "
        return "its cells seem to be separated by semicolons: use commas, or " if ";" in names[0] else ""

    def _no_label(self, left: int | None) -> UserError:
        path, kind = self.table.path, "numbers" if self.regression else "classes"
        message = f"{path}, line 1: no column of {kind} is known by its name ({self.table.shape})"
        score = next((index for index in map(self._like, MORE_NUMBERS) if index is not None), None)
        if not self.regression and score is not None:
            return UserError(
                f"{message}, and {self.table.column(score)} is one of numbers; use --task regression, or name another"
                " with --label-column"
            )
        if left is not None and (self.table.names or ())[left].strip().lower() in NO_LABELS:
            message += f", and {self.table.column(left)} is unlikely to be the label"
        elif left is not None:
            message += f", and {self.table.column(left)} differs in each of the {len(self.table.rows)} rows"
        return UserError(f"{message}; name it with --label-column; without labels a file is for fastbert predict")
