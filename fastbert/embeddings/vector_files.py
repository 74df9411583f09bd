"""Files of vectors, `.npy`, `.parquet` and `.jsonl`: written some thousand at a time, and made of a file of texts."""

from __future__ import annotations

import contextlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fastbert.distributed.shares import Share, in_order
from fastbert.distributed.world import World
from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks
from fastbert.errors import UserError, require_package
from fastbert.io.atomic_write import name_full_disk, partial_path, replace_synced
from fastbert.io.output_files import VECTORS, check_output
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.text_files import TextFile
from fastbert.tokenizers.tokenizer import Tokenizer


class OutputFile(ABC):
    """A file written inside a `with` block: it gets its name when the block ends without an error, else it is removed.

    Raises UserError for an unknown suffix, a missing folder, a file that exists unless `overwrite`, and a missing
    package.
    """

    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path: Path = Path(path)
        check_output(self.path, self.suffixes, overwrite)
        if self.path.suffix == ".parquet":
            import_pyarrow()
        self.partial: Path = partial_path(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            name_full_disk(error, self.path)
            if kind is None:
                self._finish()
                if self.partial.exists():
                    replace_synced(self.partial, self.path)
        except OSError as late:
            name_full_disk(late, self.path)
            raise
        finally:
            with contextlib.suppress(OSError):  # of a full disk, which has been reported
                self._close()
            self.partial.unlink(missing_ok=True)

    @abstractmethod
    def _finish(self) -> None:
        """Complete and close the file."""

    @abstractmethod
    def _close(self) -> None:
        """Close the file, which may be closed or never have been opened."""


def import_pyarrow() -> tuple[Any, Any]:
    """Import pyarrow and its parquet module. Raises UserError if it is not installed."""
    message = ".parquet needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or write another kind of file"
    return require_package("pyarrow", message), require_package("pyarrow.parquet", message)


def vector_column(vectors: Any, width: int) -> Any:
    """Return NumPy vectors fp32 (rows, width) as a column of lists of equal length."""
    pyarrow, _ = import_pyarrow()
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), width)


class VectorWriter(ABC):
    """Writes fp32 (rows, width) arrays one below the other."""

    file: Any

    @abstractmethod
    def write(self, vectors: np.ndarray, first: int) -> None:
        """Append vectors, fp32 (rows, width), of which this is the first row."""

    def finish(self, rows: int) -> None:
        """Complete and close the file, which has this number of rows."""
        self.file.close()


class VectorFile(OutputFile):
    """A file of vectors, written by `append` inside a `with` block.

    `.npy` is fp32 (rows, width); `.parquet` has the columns `index` and `embedding`, a list of fp32, in row groups;
    `.jsonl` has one object per line with the same names. See `OutputFile` for errors.
    """

    suffixes: ClassVar[tuple[str, ...]] = VECTORS

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        super().__init__(path, overwrite=overwrite)
        self._writer: VectorWriter | None = None
        self.rows: int = 0
        self.width: int = 0

    def append(self, vectors: np.ndarray) -> None:
        """Write fp32 (rows, width) after the rows that were written before."""
        if self._writer is None:
            self.width = vectors.shape[1]
            self._writer = WRITERS[self.path.suffix](self.partial, self.width)
        self._writer.write(np.ascontiguousarray(vectors, dtype=np.float32), self.rows)
        self.rows += len(vectors)

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.finish(self.rows)

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.file.close()


class _Npy(VectorWriter):
    def __init__(self, path: Path, width: int) -> None:
        self.file, self.width = path.open("wb"), width
        self._write_header(0)

    def _write_header(self, rows: int) -> None:
        # NumPy leaves room in it for any number of rows.
        description = {"descr": "<f4", "fortran_order": False, "shape": (rows, self.width)}
        np.lib.format.write_array_header_1_0(self.file, description)

    def write(self, vectors: np.ndarray, first: int) -> None:
        self.file.write(vectors.astype("<f4", copy=False).data)

    def finish(self, rows: int) -> None:
        self.file.seek(0)
        self._write_header(rows)
        super().finish(rows)


class _Parquet(VectorWriter):
    def __init__(self, path: Path, width: int) -> None:
        self.pyarrow, parquet = import_pyarrow()
        self.width = width
        fields = {"index": self.pyarrow.int64(), "embedding": self.pyarrow.list_(self.pyarrow.float32(), width)}
        self.schema = self.pyarrow.schema(list(fields.items()))
        # Vectors hold no repetition: dictionaries and compression would only cost time.
        self.file = parquet.ParquetWriter(path, self.schema, use_dictionary=False, compression="none")

    def write(self, vectors: np.ndarray, first: int) -> None:
        index = self.pyarrow.array(np.arange(first, first + len(vectors)))
        columns = [index, vector_column(vectors, self.width)]
        self.file.write_table(self.pyarrow.Table.from_arrays(columns, schema=self.schema))


class _JsonLines(VectorWriter):
    def __init__(self, path: Path, width: int) -> None:
        self.file = path.open("w", encoding="utf-8")
        # Nine digits represent each fp32 exactly.
        self.line = '{"index": %d, "embedding": [' + ", ".join(["%.9g"] * width) + "]}\n"

    def write(self, vectors: np.ndarray, first: int) -> None:
        finite = np.isfinite(vectors).all(axis=1).tolist()
        for index, vector in enumerate(vectors.tolist(), first):
            if finite[index - first]:
                self.file.write(self.line % (index, *vector))
            else:  # NaN and Infinity, as JSON readers accept them
                self.file.write(json.dumps({"index": index, "embedding": vector}) + "\n")


WRITERS: dict[str, Callable[[Path, int], VectorWriter]] = {".npy": _Npy, ".parquet": _Parquet, ".jsonl": _JsonLines}


@dataclass(frozen=True)
class Report:
    """A written file: its counts, the vectors' width, and the time it took."""

    counts: Counts
    width: int
    seconds: float

    def __str__(self) -> str:
        counts = self.counts
        speed = counts.texts / max(self.seconds, 1e-9)
        return (
            f"{counts.texts:,} texts, {counts.tokens:,} tokens, {counts.describe_truncated()}:"
            f" {self.seconds:.1f} s, {speed:,.0f} texts/s"
        )


def embed_file(
    model: EncoderModel,
    tokenizer: Tokenizer,
    texts: TextFile,
    file: VectorFile | None,
    options: EmbedOptions | None = None,
    progress: Callable[[int, int], None] = lambda position, texts: None,
    world: World | None = None,
) -> Report:
    """Write the embeddings of a file's texts, in their order; see `TextFile` and `VectorFile`.

    `progress` is called after each batch with the number of texts done, and the bytes of the file that they take, which
    are estimated from those read. The processes of `world` share the texts, and the first one alone has a file. Raises
    UserError for a file without texts.
    """
    began = time.perf_counter()
    world, counts, position = world or World(), Counts(), 0

    def report(done: int) -> None:
        nonlocal position
        position = max(position, texts.position * done // max(counts.read, 1))
        progress(position, done)

    chunks = embed_chunks(model, texts, tokenizer, options, counts, report, Share(world.rank, world.size))
    with file or contextlib.nullcontext():
        for vectors in in_order(world, chunks, lambda vectors: [vectors], lambda tensors: tensors[0]):
            assert file is not None
            file.append(vectors.numpy())
        counts = counts.of_all(world)
        if not counts.texts:
            raise UserError(f"{texts.name} holds no text")
    return Report(counts, 0 if file is None else file.width, time.perf_counter() - began)
