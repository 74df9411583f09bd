"""Files of vectors that are written piece by piece, and appear whole or not at all."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from fastbert.errors import UserError
from fastbert.io.atomic_write import name_full_disk, partial_path, replace_synced


class OutputFile(ABC):
    """A file written inside a `with` block: it gets its name when the block ends without an error, else it is removed.

    Raises UserError for an unknown suffix, a missing folder, a file that exists unless `overwrite`, and a missing
    package.
    """

    suffixes: ClassVar[tuple[str, ...]]

    def __init__(self, path: str | Path, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        if self.path.suffix not in self.suffixes:
            raise UserError(f"{self.path}: must end in {', '.join(self.suffixes)}")
        if self.path.is_dir() or not self.path.parent.is_dir():
            problem = "is a folder" if self.path.is_dir() else "cannot be made: its folder is missing"
            raise UserError(f"{self.path} {problem}; name a file")
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path} exists; give another name, or --overwrite to replace it")
        if self.path.suffix == ".parquet":
            import_pyarrow()
        self.partial = partial_path(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
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
    try:
        # By name, since it comes without types.
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            ".parquet needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or write another kind of file"
        ) from None


def vector_column(vectors: Any, width: int) -> Any:
    """Return NumPy vectors fp32 (rows, width) as a column of lists of equal length."""
    pyarrow, _ = import_pyarrow()
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), width)
