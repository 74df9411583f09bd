"""The texts to index, one by one, each with its id. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.text import whole_characters
from fastbert.tasks.readers import arrow_files
from fastbert.tasks.text_files import KINDS, TextFile

ID_COLUMNS = ("_id", "id")
"""Columns that hold ids unless one is named."""


class Documents(TextFile):
    """The texts of a file (see `TextFile`; also `.parquet` and `.arrow`) with their ids: a column, else the numbers of
    lines or, of parquet and Arrow, of rows, from 1.

    Without `id_column`, `_id` or `id` is used if the first record has it. In JSON lines of BEIR's layout (an id,
    `title`, `text`) the title precedes the text, with a space between. Texts without a word are left out and counted
    in `empty`. Raises UserError as `TextFile` does, and for a missing id.
    """

    kinds: tuple[str, ...] = (*KINDS, *arrow_files.KINDS)

    def __init__(self, path: str | Path, column: str | None = None, id_column: str | None = None) -> None:
        super().__init__(path, column)
        if self.kind == ".txt" and id_column is not None:
            raise UserError(f"{self.name} has lines of text and no column {id_column!r}: leave --id-column out")
        self.unit: str = "row" if self.kind in arrow_files.KINDS else "line"
        self.id_column: str | None = id_column
        self.empty: int = 0
        self._identifier, self._is_first = "", True

    @property
    def total_bytes(self) -> int | None:
        """The file's size on disk; None where the position is unknown."""
        return None if self.kind in arrow_files.KINDS else super().total_bytes

    @property
    def described(self) -> str:
        """The columns that texts and ids come from, in words; that of ids is known once a record was read."""
        text = "lines" if self.kind == ".txt" else f"column {self.column!r}"
        ids = f"{self.unit} numbers" if self.id_column is None else repr(self.id_column)
        return f"texts from {text}, ids from {ids}"

    def with_ids(self) -> Iterator[tuple[str, str]]:
        """Yield id and text of each text that has a word."""
        self.empty, self._is_first = 0, True
        for number, text in self.numbered():
            if not text.strip():
                self.empty += 1
                continue
            yield self._identifier if self.id_column is not None else str(number), text

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Yield each text with its line or row, from 1."""
        if self.path is None or self.kind not in arrow_files.KINDS:
            yield from super().numbered()
            return
        rows = arrow_files.stream_rows(self.path, self._columns)
        for number, (text, *identifier) in enumerate(rows, 1):
            if text is not None and not isinstance(text, str):
                where = f"{self.name}, {self.unit} {number}"
                raise UserError(f"{where}: {self.column!r} must be a string, not {type(text).__name__}")
            self._set_identifier(identifier, number)
            yield number, whole_characters(text or "")

    def _json(self, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        for line, record, text in self._records(stream):
            self._choose(list(record))
            self._set_identifier([] if self.id_column is None else [record.get(self.id_column)], line)
            yield line, self._with_title(record, text)

    def _with_title(self, record: dict[str, Any], text: str) -> str:
        """Return the text of BEIR's corpus behind its title, as `fastbert evaluate` reads it; others as they are."""
        title = record.get("title") if self.column == "text" and self.id_column in ID_COLUMNS else None
        return whole_characters(f"{title} {text}".strip()) if isinstance(title, str) and title else text

    def _table(self, stream: Any) -> Iterator[tuple[int, str]]:
        for line, (text, *identifier) in self._cells(stream, self._columns):
            self._set_identifier(identifier, line)
            yield line, text

    def _columns(self, names: list[str]) -> list[str]:
        """Return the columns of texts and, if there is one, of ids. Raises UserError for one that is missing."""
        self._choose(names)
        columns = [self.column, *([self.id_column] if self.id_column is not None else [])]
        self._check_columns(columns, names)
        return columns

    def _choose(self, names: list[str]) -> None:
        """Choose the column of ids by the names of the first record."""
        if self.id_column is None and self._is_first:
            self.id_column = next((name for name in ID_COLUMNS if name in names), None)
        self._is_first = False

    def _set_identifier(self, values: list[Any], number: int) -> None:
        """Keep the id of the current text, if there is one. Raises UserError for anything but a word or a number."""
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
                raise UserError(
                    f"{self.name}, {self.unit} {number}: the id in {self.id_column!r} is {value!r}: it must be a string"
                    " or a whole number"
                )
            self._identifier = whole_characters(str(value))
