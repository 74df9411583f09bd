"""Write token vectors and sparse vectors to files: `.safetensors` and `.parquet`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from fastbert.checkpoints.formats.safetensors import save_tensors
from fastbert.distributed.shares import Share, in_order
from fastbert.distributed.world import World
from fastbert.embeddings.embed import Counts
from fastbert.embeddings.vector_files import OutputFile, Report, import_pyarrow, vector_column
from fastbert.errors import UserError
from fastbert.io.output_files import RAGGED
from fastbert.retrieval.encoding import RetrievalModel
from fastbert.retrieval.ragged import SparseVectors, TokenVectors, from_tensors, to_tensors
from fastbert.tasks.text_files import TextFile

Vectors = TokenVectors | SparseVectors


class RaggedFile(OutputFile):
    """A file of token vectors or sparse vectors, written by `append` inside a `with` block.

    `.safetensors` holds `offsets` int64 (texts + 1,), `token_ids` int32 (items,), and `vectors` fp32 (items, width) or
    `weights` fp32 (items,), with `vocab_size` among the metadata; it is collected in memory. `.parquet` has one row per
    text, written in pieces: `index`, `token_ids`, and `vectors` or `weights`, lists with offsets of 64 bits. See
    `OutputFile` for errors.
    """

    suffixes: ClassVar[tuple[str, ...]] = RAGGED

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        super().__init__(path, overwrite=overwrite)
        self._file: Any = None
        self._collected: list[Vectors] = []
        self.texts: int = 0
        self.items: int = 0
        self.width: int = 0

    def append(self, vectors: Vectors) -> None:
        """Write the vectors of some texts after those that were written before."""
        if self.path.suffix == ".parquet":
            self._write_table(vectors)
        else:
            self._collected.append(vectors)
        self.texts += len(vectors)
        self.items += len(vectors.token_ids)
        self.width = vectors.vectors.shape[1] if isinstance(vectors, TokenVectors) else vectors.vocab_size

    def _finish(self) -> None:
        if self._collected:
            self._write_tensors()
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write_table(self, vectors: Vectors) -> None:
        pyarrow, parquet = import_pyarrow()
        name, values = _named_values(vectors)
        flat = values.numpy()
        items = pyarrow.array(flat) if values.dim() == 1 else vector_column(flat, values.shape[1])
        offsets = pyarrow.array(vectors.offsets.numpy())
        lists = pyarrow.LargeListArray.from_arrays
        columns = {
            "index": pyarrow.array(np.arange(self.texts, self.texts + len(vectors))),
            "token_ids": lists(offsets, pyarrow.array(vectors.token_ids.numpy())),
            name: lists(offsets, items),
        }
        table = pyarrow.table(columns)
        if self._file is None:
            # Floats hold no repetition: dictionaries and compression would only cost time.
            self._file = parquet.ParquetWriter(self.partial, table.schema, use_dictionary=False, compression="none")
        self._file.write_table(table)

    def _write_tensors(self) -> None:
        first = self._collected[0]
        metadata = None
        whole: Vectors
        if isinstance(first, SparseVectors):
            parts = [part for part in self._collected if isinstance(part, SparseVectors)]
            whole = SparseVectors.joined(parts, self.width)
            metadata = {"vocab_size": str(self.width)}
        else:
            whole = TokenVectors.joined([part for part in self._collected if isinstance(part, TokenVectors)])
        name, values = _named_values(whole)
        tensors = {name: values, "offsets": whole.offsets, "token_ids": whole.token_ids}
        save_tensors(tensors, self.partial, metadata)


def _named_values(vectors: Vectors) -> tuple[str, Tensor]:
    """Return the name of the values in a file, and the values."""
    return ("vectors", vectors.vectors) if isinstance(vectors, TokenVectors) else ("weights", vectors.weights)


def encode_file(
    model: RetrievalModel[Any],
    texts: TextFile,
    file: RaggedFile | None,
    progress: Callable[[int, int], None] = lambda position, texts: None,
    world: World | None = None,
    **options: Any,
) -> Report:
    """Write the vectors of a file's texts, in their order; `options` are those of the model's `encode`.

    `progress` is called after each chunk with the bytes of the file that are done and the number of texts. The
    processes of `world` share the texts, and the first one alone has a file. Raises UserError for a file without texts.
    """
    began, world, counts = time.perf_counter(), world or World(), Counts()
    chunks = model.encode_chunks(texts, counts=counts, share=Share(world.rank, world.size), **options)
    with file or contextlib.nullcontext():
        for vectors in in_order(world, chunks, to_tensors, from_tensors):
            assert file is not None
            file.append(vectors)
            progress(texts.position, file.texts)
        counts = counts.of_all(world)
        if not counts.texts:
            raise UserError(f"{texts.name} holds no text")
    return Report(counts, 0 if file is None else file.width, time.perf_counter() - began)
