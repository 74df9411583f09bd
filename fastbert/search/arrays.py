"""Arrays of an index, `.npy`: written some thousand rows at a time, and memory-mapped."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from fastbert.errors import CheckpointError, UserError
from fastbert.io.untrusted_input import require_regular_file

# What NumPy's parser of headers raises for damaged ones, which it reads as Python.
_DAMAGE = (
    OSError,
    ArithmeticError,
    ValueError,
    EOFError,
    SyntaxError,
    TokenError,
    TypeError,
    RecursionError,
    MemoryError,
)


class ArrayWriter:
    """Write an array row by row; its header is completed by `close`."""

    def __init__(self, path: Path, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self.rows: int = 0
        self._dtype, self._row_shape = dtype, row_shape
        self._file = path.open("wb")
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Append rows of the array's dtype (rows, ...)."""
        self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write the number of rows, and close the file."""
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room in it for any number of rows.
        description = {"descr": self._dtype.str, "fortran_order": False, "shape": (self.rows, *self._row_shape)}
        np.lib.format.write_array_header_1_0(self._file, description)


def open_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return a memory-mapped array of this dtype and shape. Raises CheckpointError for anything else in the file."""
    try:
        require_regular_file(path, CheckpointError)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UserError:
        raise
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{path}: damaged: not an array ({reason}); make the index again") from None
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise CheckpointError(
            f"{path}: damaged: holds {array.dtype} {array.shape}, not {dtype} {shape}; make the index again"
        )
    return array
