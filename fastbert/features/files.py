"""Write features to files, some thousand texts at a time: `.npy`, `.npz`, `.safetensors`, `.parquet`, `.jsonl`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fastbert.embeddings.vector_files import OutputFile, import_pyarrow, vector_column
from fastbert.features.extract import Features, joined
from fastbert.io.output_files import FEATURES


class FeatureFile(OutputFile):
    """A file of features, written by `append` inside a `with` block.

    `.npz` and `.safetensors` hold `features` fp32 (items, width) and `offsets` int64 (texts + 1,), `.npz` also `items`,
    text; they are collected in memory. `.npy` is the features alone. `.parquet` has one row per item (`text`, `item`,
    `features`), `.jsonl` one line per text (`index`, `items`, `features`). See `OutputFile` for errors.
    """

    suffixes: ClassVar[tuple[str, ...]] = FEATURES

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        super().__init__(path, overwrite=overwrite)
        self._file: Any = None
        self._collected: list[Features] = []
        self.texts: int = 0
        self.items: int = 0
        self.width: int = 0

    def append(self, features: Features) -> None:
        """Write the features of some texts after those that were written before."""
        match self.path.suffix:
            case ".jsonl":
                self._write_lines(features)
            case ".parquet":
                self._write_table(features)
            case _:
                self._collected.append(features)
        self.texts += len(features)
        self.items += len(features.values)
        self.width = features.values.shape[1]

    def _finish(self) -> None:
        if self._collected:
            self._write_arrays()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_lines(self, features: Features) -> None:
        if self._file is None:
            self._file = self.partial.open("wb")
        ends = features.offsets.tolist()
        for index, (first, end) in enumerate(pairwise(ends), self.texts):
            # Nine digits represent each fp32 exactly.
            rows = [[float(f"{value:.9g}") for value in row] for row in features.values[first:end].tolist()]
            line = {"index": index, "items": features.items[first:end], "features": rows}
            self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _write_table(self, features: Features) -> None:
        pyarrow, parquet = import_pyarrow()
        texts = np.repeat(np.arange(len(features)) + self.texts, np.diff(features.offsets))
        vectors = vector_column(features.values.numpy(), features.values.shape[1])
        columns = {"text": pyarrow.array(texts), "item": pyarrow.array(features.items, pyarrow.string())}
        table = pyarrow.table({**columns, "features": vectors})
        if self._file is None:
            # Vectors hold no repetition: compression would only cost time.
            self._file = parquet.ParquetWriter(self.partial, table.schema, compression="none")
        self._file.write_table(table)

    def _write_arrays(self) -> None:
        features = joined(self._collected)
        if self.path.suffix == ".safetensors":
            from fastbert.checkpoints.formats.safetensors import save_tensors

            offsets = torch.from_numpy(features.offsets)
            save_tensors({"features": features.values, "offsets": offsets}, self.partial)
            return
        values = features.values.numpy()
        with self.partial.open("wb") as file:
            if self.path.suffix == ".npy":
                np.save(file, values)
            else:
                np.savez(file, features=values, offsets=features.offsets, items=np.array(features.items, dtype=np.str_))
