"""Vectors to files, some thousand at a time: `.npy`, `.parquet` and `.jsonl`, whole or not at all."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import numpy as np

from fastbert.errors import UserError
from fastbert.io.atomic_write import partial_path, replace_synced

NPY_HEADER = 128  # bytes, whatever the shape


class VectorWriter(Protocol):
    """Writes fp32 (rows, width) arrays one below the other."""

    def write(self, vectors: np.ndarray) -> None: ...

    def close(self) -> None:
        """What makes the file whole."""

    def abandon(self) -> None:
        """Let go of the file, which is removed."""


class VectorFile:
    """A file that vectors are appended to, inside of a `with` block: it gets its name when the block ends well, and is
    removed otherwise.

    `.npy` is fp32 (rows, width); `.parquet` has the columns `index` and `embedding`, a list of fp32, in row groups;
    `.jsonl` has an object a line with the same names. Raises UserError for another kind, a folder that is missing, a
    file that is there, unless it may be replaced, and a package that is missing.
    """

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.partial = partial_path(self.path)
        if self.path.suffix not in WRITERS:
            raise UserError(f"{self.path}: must end in {', '.join(WRITERS)}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            wrong = "is a folder" if self.path.is_dir() else "cannot be made: its folder is missing"
            raise UserError(f"{self.path} {wrong}; name a file")
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path} exists; give another name, or --overwrite to replace it")
        self._make = WRITERS[self.path.suffix]
        if self.path.suffix == ".parquet":
            _pyarrow()
        self._writer: VectorWriter | None = None
        self.rows = self.width = 0

    def __enter__(self) -> Self:
        return self

    def append(self, vectors: np.ndarray) -> None:
        """Write fp32 (rows, width) below what is there."""
        if self._writer is None:
            self.width = vectors.shape[1]
            self._writer = self._make(self.partial, self.width)
        self._writer.write(np.ascontiguousarray(vectors, dtype=np.float32))
        self.rows += len(vectors)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is None and self._writer is not None:
                self._writer.close()
                replace_synced(self.partial, self.path)
        finally:
            if self._writer is not None:
                with contextlib.suppress(OSError):  # of a full disk, which has been reported
                    self._writer.abandon()
            self.partial.unlink(missing_ok=True)


class _Npy:
    def __init__(self, path: Path, width: int) -> None:
        self.file: IO[bytes] = path.open("wb")
        self.rows, self.width = 0, width
        self.file.write(self._header())

    def _header(self) -> bytes:
        description = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self.width)}
        text = repr(description).encode()
        size = NPY_HEADER - 10
        return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1) + b"\n"

    def write(self, vectors: np.ndarray) -> None:
        self.file.write(vectors.astype("<f4", copy=False).data)
        self.rows += len(vectors)

    def close(self) -> None:
        self.file.seek(0)
        self.file.write(self._header())
        self.file.close()

    def abandon(self) -> None:
        self.file.close()


class _Parquet:
    def __init__(self, path: Path, width: int) -> None:
        pyarrow, parquet = _pyarrow()
        self.pyarrow, self.rows, self.width = pyarrow, 0, width
        fields = {"index": pyarrow.int64(), "embedding": pyarrow.list_(pyarrow.float32(), width)}
        self.schema = pyarrow.schema(list(fields.items()))
        # Nothing repeats in vectors: dictionaries and compression would only cost time.
        self.file = parquet.ParquetWriter(path, self.schema, use_dictionary=False, compression="none")

    def write(self, vectors: np.ndarray) -> None:
        index = self.pyarrow.array(np.arange(self.rows, self.rows + len(vectors)))
        flat = self.pyarrow.array(vectors.reshape(-1))
        column = self.pyarrow.FixedSizeListArray.from_arrays(flat, self.width)
        self.file.write_table(self.pyarrow.Table.from_arrays([index, column], schema=self.schema))
        self.rows += len(vectors)

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        self.file.close()


class _JsonLines:
    def __init__(self, path: Path, width: int) -> None:
        self.file = path.open("w", encoding="utf-8")
        self.rows = 0
        # Nine digits give back each fp32 as it was.
        self.line = '{"index": %d, "embedding": [' + ", ".join(["%.9g"] * width) + "]}\n"

    def write(self, vectors: np.ndarray) -> None:
        finite = np.isfinite(vectors).all(axis=1)
        for vector, plain in zip(vectors.tolist(), finite.tolist(), strict=True):
            if plain:
                self.file.write(self.line % (self.rows, *vector))
            else:  # NaN and Infinity, as JSON readers know them
                self.file.write(json.dumps({"index": self.rows, "embedding": vector}) + "\n")
            self.rows += 1

    def close(self) -> None:
        self.file.close()

    def abandon(self) -> None:
        self.file.close()


WRITERS: dict[str, Callable[[Path, int], VectorWriter]] = {".npy": _Npy, ".parquet": _Parquet, ".jsonl": _JsonLines}


def _pyarrow() -> tuple[Any, Any]:
    try:
        # By name, since it comes without types.
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            ".parquet needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or write .npy or .jsonl"
        ) from None
