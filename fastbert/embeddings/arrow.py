"""Map Arrow tables of texts to tables of vectors, inside an engine that distributes them: Ray Data, Spark or any other.

The vectors of a table become a column without a Python object per number. Requires pyarrow.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fastbert.embeddings.embed import Counts, EmbedOptions, embed_chunks, width_of
from fastbert.embeddings.folder import load_embedder
from fastbert.embeddings.vector_files import vector_column
from fastbert.errors import UserError, require_package, require_whole
from fastbert.models.encoder import EncoderModel
from fastbert.tasks.inference import choose_inference
from fastbert.tokenizers.tokenizer import Tokenizer

DEVICES, DTYPES = ("auto", "cpu", "cuda"), ("auto", "fp32", "bf16", "int8")
_MODELS = 4  # that a process keeps
_loading = threading.Lock()


@dataclass(frozen=True, kw_only=True)
class ArrowEmbedder:
    """Map Arrow tables with a column of texts to tables with a column of vectors.

    A call takes and returns a `pyarrow.Table`, for Ray Data's `map_batches(batch_format="pyarrow")`; `map_in_arrow`
    takes and yields record batches, for Spark's `mapInArrow`. Vectors are those of `embed`, as fixed-size lists of
    fp32.

    Pickling stores these fields only. The first call in a process loads the model, which all embedders of the process
    with the same model, device and dtype share; changes of its folder after that are not noticed.
    """

    model: str | Path
    """Folder of an embedder, or its name in the Hub's local cache (see `load_embedder`)."""
    options: EmbedOptions = field(default_factory=EmbedOptions)
    """Options of embeddings."""
    text_column: str = "text"
    """Column of the texts: strings, also large or dictionary-encoded ones."""
    id_column: str | None = None
    """Column to keep beside the vectors; None: all columns."""
    vector_column: str = "embedding"
    """Name of the column of vectors."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Auto uses a GPU if there is one."""
    dtype: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Dtype of matmuls: auto is the faster of fp32 and bf16; int8 is for CPUs."""
    threads: int | None = None
    """Threads of the model on a CPU; None: as many as torch uses."""

    def __post_init__(self) -> None:
        if not isinstance(self.options, EmbedOptions):
            raise UserError(f"options={self.options!r} must be EmbedOptions")
        for name, values in (("device", DEVICES), ("dtype", DTYPES)):
            if getattr(self, name) not in values:
                raise UserError(f"{name}={getattr(self, name)!r} must be one of {', '.join(values)}")
        require_whole("threads", self.threads, 1, optional=True)
        if self.vector_column == self.id_column:
            raise UserError(f"vector_column={self.vector_column!r} is the column of ids; give the vectors another name")
        if Path(self.model).is_dir():  # workers may have a different working directory
            object.__setattr__(self, "model", str(Path(self.model).absolute()))

    def __call__(self, table: Any) -> Any:
        """Return the table of vectors of a `pyarrow.Table`; see `embed`."""
        return self.embed(table)

    def embed(self, table: Any, *, counts: Counts | None = None, first_row: int = 1) -> Any:
        """Return a `pyarrow.Table` with the kept columns of a table and the vectors, row by row.

        `counts` is updated; `first_row` is the number of the first row in errors. Raises UserError, with the row, for
        nulls among texts and ids and for texts that `embed` refuses; for a missing column, and one of another type.
        """
        pyarrow = import_pyarrow()
        texts = self._texts(pyarrow, table, first_row)
        vectors = self._vectors(texts, counts, first_row)
        kept = table if self.id_column is None else table.select([self.id_column])
        return kept.append_column(self.vector_column, vector_column(vectors, vectors.shape[1]))

    def map_in_arrow(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield a `pyarrow.RecordBatch` of vectors for each record batch of texts.

        Vectors are lists of variable size, `array<float>` in Spark, which reads no lists of fixed size. Raises
        UserError as `embed` does, with the row counted over all batches.
        """
        pyarrow = import_pyarrow()
        row = 1
        for batch in batches:
            table = self.embed(pyarrow.Table.from_batches([batch]), first_row=row)
            row += batch.num_rows
            lists = pyarrow.field(self.vector_column, pyarrow.list_(pyarrow.float32()))
            table = table.cast(table.schema.set(table.num_columns - 1, lists))
            yield from table.combine_chunks().to_batches()

    def check_schema(self, schema: Any, source: str) -> None:
        """Raise UserError, which names `source`, if a `pyarrow.Schema` lacks a column or one has a wrong type."""
        self._text_type(schema, source)
        if self.id_column is not None:
            _index(schema, self.id_column, source, "the ids")
        elif self.vector_column in schema.names:
            raise UserError(
                f"{source}: has a column {self.vector_column!r} already; name the column to keep with id_column, or"
                " give vector_column another name"
            )

    def load(self) -> tuple[EncoderModel, Tokenizer]:
        """Return the model and its tokenizer, which are loaded once per process."""
        with _loading:
            return _load(str(self.model), self.device, self.dtype)

    def _vectors(self, texts: list[str], counts: Counts | None, first_row: int) -> np.ndarray:
        """Return the vectors, fp32 (texts, width)."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of the calling thread
        model, tokenizer = self.load()
        try:
            chunks = [chunk.numpy() for chunk in embed_chunks(model, texts, tokenizer, self.options, counts)]
        except UserError as error:
            raise UserError(_with_rows(str(error), first_row)) from error
        return np.concatenate(chunks) if chunks else np.empty((0, width_of(model)), np.float32)

    def _text_type(self, schema: Any, source: str) -> Any:
        """Return the type of the texts without a dictionary. Raises UserError for anything but strings."""
        pyarrow = import_pyarrow()
        kind = schema.field(_index(schema, self.text_column, source, "the text")).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        strings = (pyarrow.types.is_string, pyarrow.types.is_large_string, pyarrow.types.is_string_view)
        if not pyarrow.types.is_null(kind) and not any(is_kind(kind) for is_kind in strings):
            raise UserError(
                f"{source}: column {self.text_column!r} holds {kind}, not strings; name the column that holds the text"
            )
        return kind

    def _texts(self, pyarrow: Any, table: Any, first_row: int) -> list[str]:
        """Return the texts. Raises UserError for what is not a text or has no id."""
        where = f"row {first_row}" if table.num_rows else "the table"
        self.check_schema(table.schema, where)
        kind = self._text_type(table.schema, where)
        for name in dict.fromkeys((self.text_column, self.id_column)):
            null = None if name is None else _first_null(pyarrow, table.column(name))
            if null is not None:
                cure = (
                    "leave the row out, or fill it with a text" if name == self.text_column else "give each row an id"
                )
                raise UserError(f"row {first_row + null}: column {name!r} is null; {cure}")
        column = table.column(self.text_column)
        column = column.cast(kind) if pyarrow.types.is_dictionary(column.type) else column
        try:
            texts: list[str] = column.to_pylist()
        except UnicodeDecodeError:
            raise UserError(f"row {first_row + _undecodable(column)}: is not UTF-8; save the column as UTF-8") from None
        return texts


def import_pyarrow() -> Any:
    """Import pyarrow. Raises UserError if it is not installed."""
    return require_package("pyarrow", "Arrow tables need the package pyarrow: `pip install 'fastbert-engine[data]'`")


@functools.lru_cache(maxsize=_MODELS)
def _load(source: str, device: str, dtype: str) -> tuple[EncoderModel, Tokenizer]:
    torch_device, weights, _ = choose_inference(device, dtype)
    model, tokenizer, _ = load_embedder(source, dtype=weights)
    if dtype == "int8":
        model.quantize("int8")
    return model.to(torch_device), tokenizer


def _index(schema: Any, name: str, source: str, content: str) -> int:
    """Return the position of a column. Raises UserError if there is none of that name, or several."""
    positions = schema.get_all_field_indices(name)
    if len(positions) != 1:
        problem = f"{len(positions)} columns {name!r}" if positions else f"no column {name!r}"
        raise UserError(
            f"{source}: {problem} (columns: {', '.join(schema.names[:20]) or 'none'}); name the column that holds"
            f" {content}"
        )
    return int(positions[0])


def _with_rows(message: str, first_row: int) -> str:
    """Return an error of `embed` with rows of the table in place of indices of texts."""
    return re.sub(r"\btexts\[(\d+)\]", lambda match: f"row {int(match[1]) + first_row}", message)


def _first_null(pyarrow: Any, column: Any) -> int | None:
    """Return the index of the first null, of which dictionaries may hold some too; None if there is none."""
    if pyarrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return int(column.is_null().index(True).as_py()) if column.null_count else None


def _undecodable(column: Any) -> int:
    """Return the index of the first value that is not UTF-8."""
    for index, value in enumerate(column):
        try:
            value.as_py()
        except UnicodeDecodeError:
            return index
    raise AssertionError("all values are UTF-8")
