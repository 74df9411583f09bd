"""The parquet files to embed, on this machine or behind URLs, and the ranges of their rows that become shards."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.embeddings.vector_files import import_pyarrow
from fastbert.errors import UserError
from fastbert.io.locations import Location, filesystem, is_remote, local_path
from fastbert.io.remote_sources import RemoteFile, find_remote, shown_url
from fastbert.io.sources import Source, open_source

SUFFIX = ".parquet"
INDEX = "index"
"""Column of row numbers, of vectors without a column of ids."""
_FOOTERS_AT_ONCE = 16
_BATCH_ROWS = 4096
_TAIL = 8  # bytes after the footer: its length, and the magic number


@dataclass(frozen=True)
class InputFile:
    """A parquet file: its location, its rows, and the SHA-256 of its size and footer, which tells changed content."""

    location: str
    rows: int
    sha256: str

    @property
    def name(self) -> str:
        """The location in messages."""
        return shown_url(self.location) if is_remote(self.location) else self.location

    @property
    def source(self) -> Source:
        """The file, to be opened."""
        return RemoteFile(self.location) if is_remote(self.location) else Path(self.location)


@dataclass(frozen=True)
class Shard:
    """The rows from `begin` to `end` of a file, which become one file of vectors; `first` is the number of the first of
    them among the rows of all files, from 0."""

    number: int
    file: InputFile
    begin: int
    end: int
    first: int

    @property
    def described(self) -> str:
        """The rows in words, counted from 1."""
        return f"{self.file.name}, rows {self.begin + 1:,} to {self.end:,}"


def find_files(location: Location) -> list[Source]:
    """Return the parquet files that a path or URL names, or those below a folder or of a glob pattern, sorted.

    Files in folders whose name begins with `_` or `.`, and such files, are left out, as engines do. Raises UserError if
    there is none, and for a file of another kind.
    """
    if is_remote(location):
        url = str(location)
        found: list[Source] = list(find_remote(url, is_file=url.split("?")[0].endswith(SUFFIX)))
        files = [file for file in found if isinstance(file, RemoteFile) and file.suffix == SUFFIX]
        root = url.rstrip("/") if not any(character in url for character in "*?[") else url.split("*")[0]
        listed: list[Source] = [file for file in files if not _is_hidden(file.url.removeprefix(root))]
    else:
        path = local_path(location)
        if path.is_file():
            paths = [path]
        elif path.is_dir():
            paths = [file for file in path.rglob("*") if not _is_hidden(str(file.relative_to(path)))]
        else:
            names = glob.glob(str(path), recursive=True)
            if not names:
                raise UserError(f"{path}: no such file or folder, and no file of that pattern")
            root = re.split(r"[*?\[]", str(path))[0]
            paths = [Path(name) for name in names if not _is_hidden(name.removeprefix(root))]
        if path.is_file() and path.suffix != SUFFIX:
            raise UserError(f"{path}: must be a {SUFFIX} file, or a folder or a pattern of such files")
        listed = [file.absolute() for file in sorted(paths) if file.suffix == SUFFIX and file.is_file()]
    if not listed:
        shown = shown_url(str(location)) if is_remote(location) else location
        raise UserError(f"{shown}: holds no {SUFFIX} files; name a file, or a folder or a pattern of such files")
    return listed


def _is_hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def refuse_inside(text: Location, out: Location) -> None:
    """Raise UserError for an output folder below the input folder: its files would be read at the next start. Behind
    URLs, also for one of whose files a pattern of the input would match."""
    if is_remote(text) and is_remote(out):
        is_inside = _is_inside_remote(str(text), str(out))
        text, out = shown_url(str(text)), shown_url(str(out))
    elif is_remote(text) or is_remote(out):
        return
    else:
        folder, below = (Path(os.path.abspath(local_path(path))) for path in (text, out))
        is_inside = folder.is_dir() and below.is_relative_to(folder) and not _is_hidden(str(below.relative_to(folder)))
    if is_inside:
        raise UserError(f"--out {out}: lies in --text {text}, whose files are all read; name a folder outside of it")


def _is_inside_remote(text: str, out: str) -> bool:
    (system, source), (other, target) = filesystem(text), filesystem(out)
    if type(system) is not type(other):
        return False
    root, *magic = re.split(r"[*?\[]", source.rstrip("/"))
    file = f"{target.rstrip('/')}/x{SUFFIX}"
    if magic:
        from fsspec.utils import glob_translate

        return bool(re.match(glob_translate(source), file)) and not _is_hidden(file.removeprefix(root))
    return file.startswith(f"{root}/") and not _is_hidden(file.removeprefix(f"{root}/"))


def read_inputs(sources: Sequence[Source], embedder: ArrowEmbedder) -> list[InputFile]:
    """Return the files with what their footers tell.

    Raises UserError, before any row is read, for a file that is not parquet, for columns that are missing, have a wrong
    type or differ between files, and for nulls, with their row, in files whose footer counts them.
    """
    ids: dict[str, str] = {}

    def read(source: Source) -> InputFile:
        with opened(source) as (parquet, stream):
            schema = parquet.schema_arrow
            embedder.check_schema(schema, str(source))
            columns = [name for name in (embedder.text_column, embedder.id_column) if name is not None]
            if embedder.id_column is not None:
                ids[str(source)] = str(schema.field(embedder.id_column).type)
            for column in columns:
                _refuse_nulls(parquet, column, str(source))
            location = source.url if isinstance(source, RemoteFile) else str(source)
            return InputFile(location, parquet.metadata.num_rows, _footer_digest(stream))

    with ThreadPoolExecutor(_FOOTERS_AT_ONCE, thread_name_prefix="fastbert-footers") as pool:
        files = list(pool.map(read, sources))
    if len(set(ids.values())) > 1:
        (first, kind), *others = ((str(source), ids[str(source)]) for source in sources)
        other, different = next((name, other) for name, other in others if other != kind)
        raise UserError(
            f"{other}: column {embedder.id_column!r} holds {different}, but {kind} in {first}; give all files one type"
        )
    if not sum(file.rows for file in files):
        raise UserError(f"{files[0].name}: holds no rows; name files that do")
    return files


def divide(files: Sequence[InputFile], shard_rows: int) -> list[Shard]:
    """Return the shards of files, in order: at most `shard_rows` rows of one file each, of nearly equal size."""
    shards: list[Shard] = []
    first = 0
    for file in files:
        count = -(-file.rows // shard_rows)
        bounds = [file.rows * piece // count for piece in range(count + 1)] if count else []
        for begin, end in pairwise(bounds):
            shards.append(Shard(len(shards), file, begin, end, first + begin))
        first += file.rows
    return shards


def read_shard(shard: Shard, text_column: str, id_column: str | None) -> Any:
    """Return the texts and ids of a shard as a `pyarrow.Table`; without a column of ids, `INDEX` has row numbers.

    Raises UserError for a file that was damaged or replaced.
    """
    pyarrow, _ = import_pyarrow()
    names = list(dict.fromkeys(name for name in (text_column, id_column) if name is not None))
    parts = []
    with opened(shard.file.source) as (parquet, _):
        groups, position = _row_groups(parquet, shard)
        if parquet.metadata.num_rows != shard.file.rows:
            raise UserError(f"{shard.file.name}: has changed since the command began; start anew with --overwrite")
        for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names):
            begin, end = max(shard.begin - position, 0), min(shard.end - position, batch.num_rows)
            if begin < end:
                parts.append(batch.slice(begin, end - begin))
            position += batch.num_rows
            if position >= shard.end:
                break
        table = pyarrow.Table.from_batches(parts)
    if id_column is None:
        numbers = np.arange(shard.first, shard.first + table.num_rows)
        table = table.append_column(INDEX, pyarrow.array(numbers))
    return table


@contextmanager
def opened(source: Source) -> Iterator[tuple[Any, IO[bytes]]]:
    """Open a parquet file, as a `pyarrow.parquet.ParquetFile` and as a stream. Raises UserError if it is damaged."""
    pyarrow, parquet = import_pyarrow()
    try:
        with open_source(source, seekable=True) as stream, parquet.ParquetFile(stream) as file:
            yield file, stream
    except FileNotFoundError:
        raise UserError(f"{source}: no such file") from None
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise UserError(f"{source}: not an intact {SUFFIX} file ({reason}); copy or write it again") from None


def _row_groups(parquet: Any, shard: Shard) -> tuple[list[int], int]:
    """Return the row groups that hold a shard, and the number of the first row among them."""
    groups: list[int] = []
    position = first = 0
    for group in range(parquet.metadata.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        if position < shard.end and position + rows > shard.begin:
            first = first if groups else position
            groups.append(group)
        position += rows
    return groups, first


def _refuse_nulls(parquet: Any, column: str, name: str) -> None:
    """Raise UserError for a null, with its row, in a column whose footer counts some."""
    position = 0
    for group in range(parquet.metadata.num_row_groups):
        described = parquet.metadata.row_group(group)
        leaf = next(
            (leaf for leaf in map(described.column, range(described.num_columns)) if leaf.path_in_schema == column),
            None,
        )
        counted = None if leaf is None or not leaf.is_stats_set else leaf.statistics
        if counted is not None and counted.has_null_count and counted.null_count:
            values = parquet.read_row_group(group, columns=[column]).column(0)
            row = position + values.is_null().index(True).as_py() + 1
            raise UserError(f"{name}, row {row:,}: column {column!r} is null; leave the row out, or give it a value")
        position += described.num_rows


def _footer_digest(stream: IO[bytes]) -> str:
    """Return the SHA-256 of a parquet file's size and footer, which holds the sizes and extremes of all columns."""
    size = stream.seek(0, 2)
    stream.seek(size - _TAIL)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(size - _TAIL - length)
    return hashlib.sha256(size.to_bytes(8, "little") + stream.read(length)).hexdigest()
