"""Inputs, and the record of a run of three shards, for the tests of --engine ray."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from embedding import random_texts

from fastbert.integrations.ray.inputs import InputFile
from fastbert.integrations.ray.shard_records import RunRecord, ShardRecord

RUN = RunRecord(
    "m", "0" * 64, {"dtype": "fp32", "pooling": None, "shard_rows": 4}, [InputFile("/a.parquet", 9, "1")], 3
)


def record(shard: int, size: int = 3) -> ShardRecord:
    return ShardRecord(shard, f"part-{shard:05}.parquet", 3, 9, 0, 5, 2, size, "0" * 8, "host:1", 1.0, 2.0)


def write(path: Path, rows: int, group: int = 7, **columns: Any) -> list[str]:
    """Write a parquet file with texts, which are returned."""
    texts = random_texts(rows, rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), **columns}), path, row_group_size=group)
    return texts
