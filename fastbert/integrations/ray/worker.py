"""The actor that turns shards of texts into files of vectors. Imports no Ray."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.embeddings.embed import Counts
from fastbert.embeddings.vector_files import import_pyarrow
from fastbert.errors import UserError
from fastbert.integrations.ray.inputs import INDEX, InputFile, Shard, read_shard
from fastbert.integrations.ray.shard_records import MOST_STARTS, ShardRecord, ShardTarget, record_of

RECORD, ERROR = "record", "error"


@dataclass(frozen=True)
class ShardWriter:
    """Embed shards, one per call, and write each to the place of the run.

    A call takes a row of `shard_table` and returns one with the JSON of a `ShardRecord`, or with an error of the input,
    which the driver reports. Its file appears when it is complete; on CPUs a repeated call writes the same bytes.
    """

    embedder: ArrowEmbedder
    target: ShardTarget

    def __call__(self, table: Any) -> Any:
        """Write the shard of a `pyarrow.Table` with one row."""
        pyarrow, _ = import_pyarrow()
        row = table.to_pylist()[0]
        name = row.pop("name")
        file = InputFile(row.pop("location"), row.pop("rows"), row.pop("sha256"))
        shard = Shard(file=file, **row)
        record, error = "", ""
        try:
            record = json.dumps(asdict(self.write(shard, name)))
        except UserError as problem:
            error = str(problem)
        except OSError as problem:
            error = f"{problem.filename or shard.described}: {problem.strerror or problem}"
        return pyarrow.table({RECORD: [record], ERROR: [error]})

    def write(self, shard: Shard, name: str) -> ShardRecord:
        """Write the vectors of a shard to a file of this name, and return its record.

        Raises UserError for texts that cannot be embedded, with their file and row, and for a shard at which workers
        ended several times.
        """
        if not self.target.begin(name):
            raise UserError(
                f"{shard.described}: the worker ended {MOST_STARTS} times there, perhaps for lack of memory; lower"
                " --workers, --batch-tokens or --shard-rows"
            )
        self.embedder.load()  # not counted among a shard's seconds
        _, parquet = import_pyarrow()
        began = time.time()
        texts = read_shard(shard, self.embedder.text_column, self.embedder.id_column)
        counts, embedder = Counts(), replace(self.embedder, id_column=self.embedder.id_column or INDEX)
        try:
            vectors = embedder.embed(texts, counts=counts, first_row=shard.begin + 1)
        except UserError as error:
            raise UserError(f"{shard.file.name}, {error}") from None
        with self.target.partial(name) as partial:
            # Vectors hold no repetition: dictionaries and compression would only cost time.
            parquet.write_table(vectors, partial, use_dictionary=False, compression="none")
            record = record_of(
                partial,
                name,
                shard=shard.number,
                rows=vectors.num_rows,
                tokens=counts.tokens,
                truncated=counts.truncated,
                max_length=counts.max_length,
                width=vectors.column(-1).type.list_size,
                worker=f"{socket.gethostname()}:{os.getpid()}",
                began=began,
                ended=began,
            )
            return self.target.complete(partial, record)


def shard_table(shard: Shard, name: str) -> Any:
    """Return a shard, which is written to a file of this name, as a `pyarrow.Table` with one row."""
    pyarrow, _ = import_pyarrow()
    values = {**asdict(shard.file), **{key: getattr(shard, key) for key in ("number", "begin", "end", "first")}}
    return pyarrow.table({key: [value] for key, value in {**values, "name": name}.items()})
