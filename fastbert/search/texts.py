"""Texts of an index with their ids: read by number, without reading the others."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Self

import numpy as np

from fastbert.errors import CheckpointError
from fastbert.io.text import whole_characters
from fastbert.io.untrusted_input import UntrustedFile, parse_json
from fastbert.search.arrays import ArrayWriter, open_array
from fastbert.search.format import OFFSETS, TEXTS

INT64 = np.dtype("<i8")


class TextWriter:
    """Write `texts.jsonl` and `texts.offsets.npy` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.count: int = 0
        self._hashes = array("q")  # of ids: eight bytes per text
        self._file = (folder / TEXTS).open("wb")
        self._offsets = ArrayWriter(folder / OFFSETS, INT64, ())
        self._offsets.append(np.zeros(1, dtype=INT64))

    def append(self, identifier: str, text: str) -> None:
        """Append a text; lone surrogates are replaced."""
        record = {"id": whole_characters(identifier), "text": whole_characters(text)}
        self._file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        self._hashes.append(hash(identifier))
        self._offsets.append(np.array([self._file.tell()], dtype=INT64))
        self.count += 1

    def repeated_ids(self) -> tuple[int, int]:
        """Return how many texts have the id of an earlier text, by their 64-bit hashes, and the index of the first."""
        repeated = np.ones(self.count, dtype=bool)
        repeated[np.unique(np.frombuffer(self._hashes, np.int64), return_index=True)[1]] = False
        return int(repeated.sum()), int(repeated.argmax())

    def close(self) -> None:
        """Complete and close both files."""
        self._file.close()
        self._offsets.close()


class Texts:
    """The texts of an index folder, by number."""

    def __init__(self, folder: Path, count: int) -> None:
        self.path: Path = folder / TEXTS
        self._offsets = open_array(folder / OFFSETS, INT64, (count + 1,))
        self._file = UntrustedFile(self.path)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> tuple[str, str]:
        """Return the id and the text of a number. Raises CheckpointError for damage."""
        begin, end = int(self._offsets[index]), int(self._offsets[index + 1])
        record = parse_json(self._file.read(begin, end - begin), f"{self.path}, line {index + 1}")
        if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in ("id", "text")):
            raise CheckpointError(f"{self.path}, line {index + 1}: damaged: holds no id and text; make the index again")
        return record["id"], record["text"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file of texts."""
        self._file.close()
