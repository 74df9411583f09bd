"""Features to files, some thousand texts at a time: `.npy`, `.npz`, `.safetensors`, `.parquet`, `.jsonl`, whole or not
at all."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import torch

from fastbert.errors import UserError
from fastbert.features.extract import Features
from fastbert.io.atomic_write import partial_path, replace_synced

KINDS = (".npy", ".npz", ".safetensors", ".parquet", ".jsonl")


class FeatureFile:
    """A file that features are appended to, inside of a `with` block: it gets its name when the block ends well, and is
    removed otherwise.

    `.npz` and `.safetensors` hold `features` fp32 (items, width) and `offsets` int64 (texts + 1,), `.npz` also `items`,
    text; they are collected in memory. `.npy` is the features alone. `.parquet` has a row an item (`text`, `item`,
    `features`), `.jsonl` a line a text (`index`, `items`, `features`). Raises UserError for another kind, a folder that
    is missing, a file that is there, unless it may be replaced, and a package that is missing.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.partial = partial_path(self.path)
        if self.path.suffix not in KINDS:
            raise UserError(f"{self.path}: must end in {', '.join(KINDS)}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            wrong = "is a folder" if self.path.is_dir() else "cannot be made: its folder is missing"
            raise UserError(f"{self.path} {wrong}; name a file")
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path} exists; give another name, or --overwrite to replace it")
        self._pyarrow = _pyarrow() if self.path.suffix == ".parquet" else None
        self._file: IO[bytes] | None = None
        self._parquet: Any = None
        self._kept: list[Features] = []
        self.texts = self.items = self.width = 0

    def __enter__(self) -> Self:
        if self.path.suffix == ".jsonl":
            self._file = self.partial.open("wb")
        return self

    def append(self, features: Features) -> None:
        """Write the features of some texts behind what is there."""
        if self._file is not None:
            self._write_lines(self._file, features)
        elif self._pyarrow is not None:
            self._write_table(features)
        else:
            self._kept.append(features)
        self.texts += len(features)
        self.items += len(features.values)
        self.width = features.values.shape[1]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None and self._kept:
                self._write_arrays()
            for opened in (self._file, self._parquet):
                if opened is not None:
                    opened.close()
            if kind is None and self.partial.exists():
                replace_synced(self.partial, self.path)
        finally:
            self.partial.unlink(missing_ok=True)

    def _write_lines(self, file: IO[bytes], features: Features) -> None:
        ends = features.offsets.tolist()
        for index, (first, end) in enumerate(pairwise(ends), self.texts):
            # Nine digits give back each fp32 as it was.
            rows = [[float(f"{value:.9g}") for value in row] for row in features.values[first:end].tolist()]
            line = {"index": index, "items": features.items[first:end], "features": rows}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _write_table(self, features: Features) -> None:
        assert self._pyarrow is not None
        pyarrow, parquet = self._pyarrow
        width = features.values.shape[1]
        texts = np.repeat(np.arange(len(features)) + self.texts, np.diff(features.offsets))
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(features.values.numpy().reshape(-1)), width)
        columns = {"text": pyarrow.array(texts), "item": pyarrow.array(features.items, pyarrow.string())}
        table = pyarrow.table({**columns, "features": vectors})
        if self._parquet is None:
            # Nothing repeats in vectors: compression would only cost time.
            self._parquet = parquet.ParquetWriter(self.partial, table.schema, compression="none")
        self._parquet.write_table(table)

    def _write_arrays(self) -> None:
        values = torch.cat([one.values for one in self._kept])
        if self.path.suffix == ".npy":
            with self.partial.open("wb") as file:
                np.save(file, values.numpy())
            return
        ends = np.cumsum([0, *(count for one in self._kept for count in np.diff(one.offsets))]).astype(np.int64)
        if self.path.suffix == ".safetensors":
            from fastbert.checkpoints.formats.safetensors import save_tensors

            save_tensors({"features": values, "offsets": torch.from_numpy(ends)}, self.partial)
            return
        items = np.array([item for one in self._kept for item in one.items], dtype=np.str_)
        with self.partial.open("wb") as file:
            np.savez(file, features=values.numpy(), offsets=ends, items=items)


def _pyarrow() -> tuple[Any, Any]:
    try:
        # By name, since it comes without types.
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            ".parquet needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or write another kind of file"
        ) from None
