"""Read a column of text from parquet and Arrow files, as a stream: some hundred rows in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from fastbert.data.text_lines import Progress
from fastbert.errors import CorpusError, require_package
from fastbert.io.sources import Source, open_source, size_of

_ROWS = 256
_BUFFER_BYTES = 1 << 20
_ARROW_FILE = b"ARROW1"  # the first bytes of the format with an index; `datasets` writes the one without


def parquet_texts(file: Source, column: str, report: Progress | None = None) -> Iterator[str]:
    """Yield the texts of a column of a parquet file, row group by row group; empty cells are skipped.

    `report` is called with the approximate position in the file. Raises CorpusError for a file that cannot be read, a
    missing column, and one of another type than text.
    """
    pyarrow, parquet = _packages(file)
    size = size_of(file) or 0
    try:
        with open_source(file, seekable=True, error=CorpusError) as raw:
            # Without a buffer the whole column of a row group would be in memory.
            table = parquet.ParquetFile(raw, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            _check_column(pyarrow, file, table.schema_arrow, column)
            rows, done = max(table.metadata.num_rows, 1), 0
            for batch in table.iter_batches(_ROWS, columns=[column], use_threads=False):
                yield from _texts(file, batch.column(0))
                done += batch.num_rows
                if report is not None:
                    report(size * done // rows)
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise _unreadable(file, error) from None


def arrow_texts(file: Source, column: str, report: Progress | None = None) -> Iterator[str]:
    """Yield the texts of a column of an Arrow file, with or without an index, batch by batch.

    Progress and empty cells are as in `parquet_texts`, and so is what raises CorpusError.
    """
    pyarrow, _ = _packages(file)
    try:
        with open_source(file, error=CorpusError) as raw:
            has_index = _peek(raw, len(_ARROW_FILE)) == _ARROW_FILE
        with open_source(file, seekable=has_index, error=CorpusError) as raw:
            if has_index:
                # A batch may be the whole table: it is mapped into memory where it can be, else one column is read.
                content = pyarrow.memory_map(str(file)) if isinstance(file, Path) else raw
                reader = pyarrow.ipc.open_file(content)
                index = _check_column(pyarrow, file, reader.schema, column)
                if content is raw:
                    options = pyarrow.ipc.IpcReadOptions(included_fields=[index])
                    reader, index = pyarrow.ipc.open_file(raw, options=options), 0
                batches: Iterator[Any] = map(reader.get_batch, range(reader.num_record_batches))
            else:
                reader = pyarrow.ipc.open_stream(raw)
                index, batches = _check_column(pyarrow, file, reader.schema, column), iter(reader)
            size = size_of(file) or 0
            for done, batch in enumerate(batches, start=1):
                cells = batch.column(index)
                for begin in range(0, len(cells), _ROWS):
                    yield from _texts(file, cells.slice(begin, _ROWS))
                if report is not None:
                    report(size * done // reader.num_record_batches if has_index else raw.tell())
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise _unreadable(file, error) from None


def _peek(raw: IO[bytes], size: int) -> bytes:
    head: bytes = raw.peek(size)  # type: ignore[attr-defined]  # of a buffered reader
    return head[:size]


def _packages(file: Source) -> tuple[Any, Any]:
    message = (
        f"{file}: reading {file.suffix} needs the package pyarrow: `pip install 'fastbert-engine[data]'`, or save it as"
        " .jsonl"
    )
    return require_package("pyarrow", message), require_package("pyarrow.parquet", message)


def _check_column(pyarrow: Any, file: Source, schema: Any, column: str) -> int:
    """Return the index of a column of text. Raises CorpusError for one that is missing or of another type."""
    indices = schema.get_all_field_indices(column)
    if len(indices) != 1:
        problem = "has no column" if not indices else "has several columns"
        names = ", ".join(map(str, schema.names[:20])) or "none"
        raise CorpusError(f"{file}: {problem} {column!r} (columns: {names}); name the one that holds the text")
    kind = schema.field(indices[0]).type
    value = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
    types = pyarrow.types
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise CorpusError(f"{file}: the column {column!r} holds {kind}, not text; name the one that holds the text")
    return int(indices[0])


def _texts(file: Source, cells: Any) -> Iterator[str]:
    try:
        texts = cells.to_pylist()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{file}: a text is not UTF-8 ({error}); write the file again") from None
    return (text for text in texts if text)


def _unreadable(file: Source, error: BaseException) -> CorpusError:
    if isinstance(error, OSError) and error.strerror:
        return CorpusError(f"{file} cannot be read: {error.strerror}")
    reason = str(error).partition("\n")[0][:200] or type(error).__name__
    return CorpusError(f"{file} is not an intact {file.suffix} file ({reason}); copy or download it again")
