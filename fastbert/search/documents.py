"""The texts to index, one by one, each with its id. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
from fastbert.io.text import whole_characters
from fastbert.tasks.text_files import TextFile, csv_rows, numbered_lines

ID_COLUMNS = ("_id", "id")
"""Columns that hold ids unless one is named."""


class Documents(TextFile):
    """The texts of a file (see `TextFile`) with their ids: a column of `.jsonl`, `.csv` or `.tsv`, else line numbers.

    Without `id_column`, `_id` or `id` is used if the first record has it. Texts without a word are left out and counted
    in `empty`. Raises UserError as `TextFile` does, and for a missing id.
    """

    def __init__(self, path: str | Path, column: str | None = None, id_column: str | None = None) -> None:
        super().__init__(path, column)
        if self.kind == ".txt" and id_column is not None:
            raise UserError(f"{self.name} has lines of text and no column {id_column!r}: leave --id-column out")
        self.id_column = id_column
        self.empty = 0
        self._identifier, self._is_first = "", True

    @property
    def described(self) -> str:
        """The columns that texts and ids come from, in words; that of ids is known once a record was read."""
        text = "lines" if self.kind == ".txt" else f"column {self.column!r}"
        return f"texts from {text}, ids from {'line numbers' if self.id_column is None else repr(self.id_column)}"

    def with_ids(self) -> Iterator[tuple[str, str]]:
        """Yield id and text of each text that has a word."""
        self.empty, self._is_first = 0, True
        for line, text in self.numbered():
            if not text.strip():
                self.empty += 1
                continue
            yield self._identifier if self.id_column is not None else str(line), text

    def _json(self, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
        for number, line in numbered_lines(stream, self.name):
            if not line.strip():
                continue
            where = f"{self.name}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error}); each line must be an object") from None
            keys = record if isinstance(record, dict) else {}
            if self.column not in keys:
                listed = ", ".join(map(repr, list(keys)[:10])) or "no object"
                raise UserError(f"{where}: no key {self.column!r} ({listed}); name the column that holds the text")
            text = keys[self.column]
            if not isinstance(text, str):
                raise UserError(f"{where}: {self.column!r} must be a string, not {type(text).__name__}")
            self._choose(list(keys))
            if self.id_column is not None:
                self._identifier = self._checked(keys.get(self.id_column), where)
            yield number, whole_characters(text)

    def _table(self, stream: Any) -> Iterator[tuple[int, str]]:
        rows = csv_rows(stream, self.name, "\t" if self.kind == ".tsv" else ",")
        _, names = next(rows, (1, []))
        self._choose(names)
        columns = [self.column, *([self.id_column] if self.id_column is not None else [])]
        for name in columns:
            if name not in names:
                listed = ", ".join(names[:20]) or "none"
                raise UserError(
                    f"{self.name}: no column {name!r} (columns: {listed}); name the columns of texts and ids"
                )
        places = [names.index(name) for name in columns]
        for line, row in rows:
            if max(places) >= len(row):
                raise UserError(f"{self.name}, line {line}: has {len(row)} cells, not {len(names)}")
            if self.id_column is not None:
                self._identifier = self._checked(row[places[1]], f"{self.name}, line {line}")
            yield line, row[places[0]]

    def _choose(self, names: list[str]) -> None:
        """Choose the column of ids by the names of the first record."""
        if self.id_column is None and self._is_first:
            self.id_column = next((name for name in ID_COLUMNS if name in names), None)
        self._is_first = False

    def _checked(self, value: object, where: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            raise UserError(
                f"{where}: the id in {self.id_column!r} is {value!r}: it must be a string or a whole number"
            )
        return str(value)
