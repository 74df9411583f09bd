"""Find the columns of training files for embedders and rerankers, by the names that such files use, in any case.

sentence-transformers' data sets have `anchor, positive, negative`, `sentence1, sentence2, score` or `query, document,
label`; FlagEmbedding's have `query, pos, neg`; listwise ones have a query with lists of documents and labels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from fastbert.errors import UserError
from fastbert.tasks.readers.layouts import MORE_PAIRS, PAIRS
from fastbert.tasks.readers.tables import Names, Table

# Names in lower case, the preferred ones first.
SYMMETRIC = tuple(dict.fromkeys((a.lower(), b.lower()) for a, b in (*PAIRS, *MORE_PAIRS, ("text_a", "text_b"))))
ANCHORS = ("anchor", "query", "question", "queries", "query_text")
POSITIVES = ("positive", "pos", "positives", "positive_passages")
DOCUMENTS = (
    "document",
    "doc",
    "passage",
    "answer",
    "response",
    "paragraph",
    "document_text",
    "sentence",
    "text",
    "context",
)
CANDIDATES = ("documents", "candidates", "docs", "passages", "texts")
NEGATIVES = ("negative", "neg", "negatives", "hard_negative", "hard_negatives")
LABELS = ("label", "labels", "relevance", "is_relevant", "is_duplicate", "quality")
SCORES = ("score", "similarity", "similarity_score", "relatedness_score")
TEACHERS = ("teacher_scores", "scores", "ce_scores")
MARGINS = ("score", "margin")
CLASSES = ("gold_label", "entailment_judgment")  # of natural language inference
ANCHOR_IDS = ("anchor_id", "query_id", "query-id", "qid", "question_id")
TEXT_IDS = ("positive_id", "document_id", "doc_id", "docid", "passage_id", "pid", "corpus_id", "corpus-id")
LISTED_IDS = ("document_ids", "candidate_ids", "doc_ids", "passage_ids", "pids")
POSITIVE_IDS = ("positive_ids", "pos_ids", "pos_id")
NEGATIVE_IDS = ("negative_ids", "neg_ids", "negative_id", "neg_id")
_NUMBERED = re.compile(r"(?:hard_)?neg(?:ative)?[ _-]?([0-9]{1,4})")
FIRSTS, SECONDS = (tuple(dict.fromkeys(names)) for names in zip(*SYMMETRIC, strict=True))
KNOWN = frozenset((*FIRSTS, *SECONDS, *ANCHORS, *POSITIVES, *DOCUMENTS, *CANDIDATES, *NEGATIVES, *LABELS, *SCORES))
FLAGS = (
    "--anchor-column, --positive-column and --negative-column, or those of two texts and their score with"
    " --text-column, --pair-column and --label-column"
)


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """Names of columns, or keys of JSON objects, or numbers from 1, that differ from the usual ones."""

    anchor: str | None = None
    """The query or anchor (`--anchor-column`)."""
    positive: str | None = None
    """The text that belongs to it (`--positive-column`)."""
    negative: tuple[str, ...] = ()
    """Texts, or lists of texts, that do not (`--negative-column`)."""
    text1: str | None = None
    """The first text of a pair with a score or label (`--text-column`)."""
    text2: str | None = None
    """Its second text, or the list of a query's candidates (`--pair-column`)."""
    label: str | None = None
    """The score or label, or the list of the candidates' labels (`--label-column`)."""
    id: str | None = None
    """The id of an example (`--id-column`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are given."""
        columns = (self.anchor, self.positive, *self.negative, self.text1, self.text2, self.label, self.id)
        return tuple(name for name in columns if name is not None)


@dataclass(frozen=True, kw_only=True)
class GroupLayout:
    """The indices of the columns."""

    anchor: int
    text: int
    """The positive, second text, document, or list of candidates."""
    listed: bool = False
    """True if `text` holds lists of candidates."""
    negatives: tuple[int, ...] = ()
    label: int | None = None
    teacher: int | None = None
    margin: int | None = None
    """A teacher's score of the positive less that of the only negative."""
    part_scores: tuple[int, int] | None = None
    """A teacher's scores of the positives and of the negatives, as lists."""
    ids: tuple[int | None, int | None, int | None] = (None, None, None)
    """The ids of the anchor, of the text or texts, and of the negatives."""


def is_header(cells: Names, columns: GroupColumns) -> bool:
    """Return True if a first row holds names: those of flags, or at least two usual ones."""
    numbers = {name for name in columns.names if name.isdecimal()}
    if set(columns.names) - numbers:
        return True
    if numbers:
        return numbers <= set(cells) and all(cell.isdecimal() for cell in cells)
    words = [cell.strip().lower() for cell in cells]
    return sum(word in KNOWN or word in CLASSES or _NUMBERED.fullmatch(word) is not None for word in words) > 1


def find_groups(table: Table, columns: GroupColumns, *, labelled: bool) -> GroupLayout:
    """Find the columns. Without `labelled`, labels and teachers' scores are left out.

    Raises UserError for a single column, for columns that are not clear, and for files of natural language inference.
    """
    return _Finder(table, columns, labelled).layout()


class _Finder:
    def __init__(self, table: Table, columns: GroupColumns, labelled: bool) -> None:
        self.table, self.columns, self.labelled = table, columns, labelled
        self.indices: dict[str, int] = {}
        for index, name in enumerate(table.names or ()):
            self.indices.setdefault(name.strip().lower(), index)

    def layout(self) -> GroupLayout:
        table, columns = self.table, self.columns
        if table.width < 2:
            raise UserError(
                f"{table.path}, line 1: has one column ({table.shape}); each row must hold an anchor and a positive,"
                " two texts and a score, or a query and documents: add a column"
            )
        grouped = columns.anchor is not None or columns.positive is not None or bool(columns.negative)
        if grouped and (columns.text1 is not None or columns.text2 is not None):
            raise UserError(
                "--anchor-column, --positive-column and --negative-column name an anchor with its texts, --text-column"
                " and --pair-column a pair; give flags of one kind"
            )
        self._refuse_inference()
        anchor, text = self._texts()
        negatives = self._negatives()
        listed = not negatives and self._lists_candidates(text)
        label = None
        # Flags for anchor and positive say that the texts belong together, whatever other columns hold.
        if columns.label is not None:
            label = table.named(columns.label, "--label-column")
        elif not negatives and (columns.anchor is None or columns.positive is None):
            label = self._first(LABELS) if listed else self._first((*LABELS, *SCORES))
        if label is not None and negatives:
            raise UserError(
                f"{table.path}, line 1: --label-column {columns.label} is for a pair or a list of candidates, and"
                f" {table.column(negatives[0])} holds negatives; leave the flag out"
            )
        self._distinct(anchor, text, label, *negatives)
        teacher, margin, part_scores = self._teacher(listed, negatives, label)
        if listed and self.labelled and label is None and teacher is None:
            raise UserError(
                f"{table.path}, line 1: no labels of the candidates in {table.column(text)} ({table.shape}); name the"
                " column of lists with --label-column"
            )
        return GroupLayout(
            anchor=anchor,
            text=text,
            listed=listed,
            negatives=negatives,
            label=label if self.labelled else None,
            teacher=teacher,
            margin=margin,
            part_scores=part_scores,
            ids=(
                self._first(ANCHOR_IDS),
                self._first(LISTED_IDS if listed else (*TEXT_IDS, *POSITIVE_IDS)),
                self._first(NEGATIVE_IDS) if len(negatives) == 1 else None,
            ),
        )

    def _first(self, names: Sequence[str]) -> int | None:
        return next((self.indices[name] for name in names if name in self.indices), None)

    def _refuse_inference(self) -> None:
        index = self._first(CLASSES)
        if index is None or self.columns.names:
            return
        raise UserError(
            f"{self.table.path}, line 1: {self.table.column(index)} holds classes of natural language inference, not"
            " scores; use --task classification, or write rows of anchor, positive (an entailed sentence) and negative"
            " (a contradicting one)"
        )

    def _texts(self) -> tuple[int, int]:
        """Return the columns of the anchor and of what belongs to it."""
        table, columns = self.table, self.columns
        anchor, text = self._usual()
        if columns.text1 is not None or columns.anchor is None:
            anchor = table.chosen(columns.text1, "--text-column", anchor)
        else:
            anchor = table.named(columns.anchor, "--anchor-column")
        if columns.text2 is not None or columns.positive is None:
            text = table.chosen(columns.text2, "--pair-column", text)
        else:
            text = table.named(columns.positive, "--positive-column")
        if anchor is None or text is None:
            missing = "the anchor (query)" if anchor is None else "the positive (document)"
            self._unclear(missing)
        return anchor, text

    def _usual(self) -> tuple[int | None, int | None]:
        """Return the columns of the anchor and of what belongs to it by their names."""
        positive = self._first(POSITIVES)
        if positive is not None:
            return self._first((*ANCHORS, *FIRSTS)), positive
        anchor, text = self._first(ANCHORS), self._first((*CANDIDATES, *DOCUMENTS))
        if anchor is not None and text is not None:
            return anchor, text
        for names in SYMMETRIC:
            if all(name in self.indices for name in names):
                return self.indices[names[0]], self.indices[names[1]]
        return (
            self._first((*ANCHORS, *FIRSTS)) if anchor is None else anchor,
            self._first(SECONDS) if text is None else text,
        )

    def _negatives(self) -> tuple[int, ...]:
        if self.columns.negative:
            return tuple(self.table.named(name, "--negative-column") for name in self.columns.negative)
        if self.columns.text1 is not None or self.columns.text2 is not None:
            return ()
        numbered = [
            (int(match[1]), index) for name, index in self.indices.items() if (match := _NUMBERED.fullmatch(name))
        ]
        plain = self._first(NEGATIVES)
        return (() if plain is None else (plain,)) + tuple(index for _, index in sorted(numbered))

    def _lists_candidates(self, text: int) -> bool:
        """Return whether a column holds lists of candidates: by its name, or beside lists of labels."""
        if self.table.names is None or self.columns.positive is not None or not self._holds_lists(text):
            return False
        if self.table.names[text].strip().lower() in CANDIDATES or self.columns.text2 is not None:
            return True
        label = self._first(LABELS)
        return label is not None and self._holds_lists(label)

    def _holds_lists(self, index: int) -> bool:
        cell = next((row.cells[index] for row in self.table.rows if row.cells[index] is not None), None)
        return isinstance(cell, list)

    def _teacher(
        self, listed: bool, negatives: tuple[int, ...], label: int | None
    ) -> tuple[int | None, int | None, tuple[int, int] | None]:
        """Return the columns of a teacher's scores: of lists, of margins, and of positives and negatives apart."""
        if not self.labelled or not (listed or negatives):
            return None, None, None
        teacher = self._first(TEACHERS)
        if teacher is None and negatives:
            # sentence-transformers keeps a teacher's scores for margin-MSE in the column of the label.
            lists = (self.indices[name] for name in (*SCORES, *LABELS) if name in self.indices)
            teacher = next((index for index in lists if self._holds_lists(index)), None)
        if teacher is not None and teacher != label:
            return teacher, None, None
        positives, others = self._first(("pos_scores",)), self._first(("neg_scores",))
        if negatives and positives is not None and others is not None:
            # FlagEmbedding writes both columns and leaves them null where no teacher was asked.
            if self._holds_lists(positives) and self._holds_lists(others):
                return None, None, (positives, others)
            return None, None, None
        margin = self._first(MARGINS) if len(negatives) == 1 and not self._holds_lists(negatives[0]) else None
        return None, margin, None

    def _distinct(self, *indices: int | None) -> None:
        used = [index for index in indices if index is not None]
        for index in used:
            if used.count(index) > 1:
                raise UserError(
                    f"{self.table.path}, line 1: {self.table.column(index)} is used twice; name the columns"
                    f" with {FLAGS}"
                )

    def _unclear(self, missing: str) -> NoReturn:
        raise UserError(
            f"{self.table.path}, line 1: which column holds {missing} is not clear ({self.table.shape}); name the"
            f" columns with {FLAGS}"
        )
