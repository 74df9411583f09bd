"""Embed parquet files with Ray Data: a pool of actors, each with a model, takes shard after shard.

The unit of work is a shard, some thousand rows of one file, which becomes one file of the output folder: files of very
different size keep all actors busy, and a run that was killed continues with the missing shards.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch

from fastbert.embeddings.arrow import ArrowEmbedder
from fastbert.embeddings.embed import Counts
from fastbert.embeddings.vector_files import Report
from fastbert.errors import UserError, require_whole
from fastbert.integrations.ray.cluster import ADDRESS, Cluster, import_ray
from fastbert.integrations.ray.inputs import INDEX, Shard, divide, find_files, read_inputs, refuse_inside
from fastbert.integrations.ray.places import opened_place
from fastbert.integrations.ray.shard_records import RunRecord, ShardPlace, ShardRecord
from fastbert.integrations.ray.worker import ERROR, RECORD, ShardWriter, shard_table
from fastbert.io.locations import Location
from fastbert.search.fingerprint import model_fingerprint
from fastbert.tasks.inference import SHORT_NAMES, choose_inference


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of a run."""

    workers: int | None = None
    """Actors; None: as many as the cores hold, or one per GPU."""
    threads: int | None = None
    """Cores and threads of an actor; None: the cores divided by `workers`, at most 4."""
    shard_rows: int = 16_384
    """Most rows of an output file, which is also what a kill costs each worker at most."""
    resume: bool = False
    """True continues the run in the folder, if there is one."""
    overwrite: bool = False
    """True replaces the run in the folder."""

    def __post_init__(self) -> None:
        require_whole("workers", self.workers, 1, optional=True)
        require_whole("threads", self.threads, 1, optional=True)
        require_whole("shard_rows", self.shard_rows, 1)
        if self.resume and self.overwrite:
            raise UserError("--resume and --overwrite exclude each other; leave one out")


@dataclass(frozen=True)
class RayReport(Report):
    """A complete folder: the counts of this start, the vectors' width, and the seconds from its first shard's start to
    its last one's end; the seconds until Ray had started, and the rows that earlier starts had written."""

    startup_seconds: float = 0.0
    earlier: int = 0

    def __str__(self) -> str:
        earlier = f", {self.earlier:,} were there already" if self.earlier else ""
        return f"{super().__str__()}, after {self.startup_seconds:.1f} s for Ray{earlier}"


def embed_with_ray(
    text: Location,
    out: Location,
    embedder: ArrowEmbedder,
    options: RayOptions | None = None,
    *,
    progress: Callable[[int, int], None] = lambda rows, total: None,
    message: Callable[[str], None] = lambda words: None,
) -> RayReport:
    """Write the vectors of parquet files to a folder of parquet files, with the ids or row numbers, in their order.

    Args:
        text: a parquet file, a folder or a glob pattern of such files, or a URL of these.
        out: a folder that the machines of the cluster share, or the URL of one.
        embedder: the model, the columns and the options; `threads` is that of `options`.
        progress: called with the rows that are complete, and all rows.
        message: called with the device, the dtype and the workers.

    SIGINT and SIGTERM end Ray and raise `Stopped`; complete shards stay. Raises UserError for inputs that `read_inputs`
    refuses, for texts that cannot be embedded, by file and row, for a folder that `opened_place` refuses, and for what
    fails in Ray.
    """
    options = options or RayOptions()
    ray = import_ray()
    if embedder.id_column is None and INDEX in (embedder.text_column, embedder.vector_column):
        raise UserError(f"column {INDEX!r} would hold the row numbers; name a column of ids with --id-column")
    refuse_inside(text, out)
    embedder, words = _resolved(embedder)
    files = read_inputs(find_files(text), embedder)
    shards = divide(files, options.shard_rows)
    run = RunRecord(
        model=str(embedder.model),
        model_sha256=model_fingerprint(embedder.model),
        options=_recorded(embedder, options),
        inputs=files,
        shards=len(shards),
    )
    with opened_place(out, run, resume=options.resume, overwrite=options.overwrite) as place:
        missing = [shard for shard in shards if shard.number not in place.records]
        earlier = sum(record.rows for record in place.records.values())
        total = sum(file.rows for file in files)
        began, records = time.time(), list[ShardRecord]()
        if missing:
            cluster = Cluster(workers=options.workers, threads=options.threads, gpus=embedder.device == "cuda")
            with cluster.started(ray, place.directory, place.out):
                message(f"{words}, {cluster}, {place.out}")
                done = earlier
                progress(done, total)
                writer = ShardWriter(replace(embedder, threads=cluster.threads), place.target)
                for record in _records(ray, cluster, writer, missing, place):
                    place.append(record)
                    records.append(record)
                    done += record.rows
                    progress(done, total)
        width = place.finish()["width"]
    counts = Counts(
        texts=sum(record.rows for record in records),
        tokens=sum(record.tokens for record in records),
        truncated=sum(record.truncated for record in records),
        max_length=max((record.max_length for record in records), default=0),
    )
    first = min((record.began for record in records), default=began)
    seconds = max((record.ended for record in records), default=first) - first
    return RayReport(counts, width, seconds, startup_seconds=first - began, earlier=earlier)


def _records(
    ray: Any, cluster: Cluster, writer: ShardWriter, shards: Sequence[Shard], place: ShardPlace
) -> Iterator[ShardRecord]:
    """Yield the records of shards as they become complete. Raises UserError for what fails."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # One block per shard, and none queued behind another: a large shard delays no other.
    rows = ray.data.from_arrow([shard_table(shard, place.name(shard.number)) for shard in shards])
    written = rows.map_batches(
        _Actor,
        fn_constructor_args=(writer,),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=cluster.threads,
        num_gpus=1 if cluster.gpus else None,
        compute=ray.data.ActorPoolStrategy(size=min(cluster.workers, len(shards)), max_tasks_in_flight_per_actor=1),
    )
    try:
        for batch in written.iter_batches(batch_size=1, batch_format="pyarrow", prefetch_batches=0):
            row = batch.to_pylist()[0]
            if row[ERROR]:
                raise UserError(row[ERROR])
            yield ShardRecord(**json.loads(row[RECORD]))
    except (UserError, OSError):  # of this process
        raise
    except Exception as error:
        raise UserError(
            f"--engine ray: a worker failed ({_reason(error)}); repeat the command with --resume, or with --debug to"
            " see where"
        ) from error


class _Actor:
    """The class of the actors, which Ray Data makes with a writer."""

    def __init__(self, writer: ShardWriter) -> None:
        self.writer = writer

    def __call__(self, table: Any) -> Any:
        return self.writer(table)


def _resolved(embedder: ArrowEmbedder) -> tuple[ArrowEmbedder, str]:
    """Return the embedder with the device and dtype that all workers use, and both in words."""
    if embedder.device == "cuda" and not torch.cuda.is_available() and os.environ.get(ADDRESS):
        if embedder.dtype == "auto":
            raise UserError("--dtype auto is chosen on this machine, which has no GPU; name --dtype fp32 or bf16")
        return embedder, f"{embedder.dtype} on cuda"
    device, weights, words = choose_inference(embedder.device, embedder.dtype)
    dtype: Any = "int8" if embedder.dtype == "int8" else SHORT_NAMES[weights]
    return replace(embedder, device=cast(Any, device), dtype=dtype), f"{words} on {device}"


def _recorded(embedder: ArrowEmbedder, options: RayOptions) -> dict[str, Any]:
    """Return the options that decide over the content of the folder, by the names of their flags."""
    embed_options = {name: value for name, value in asdict(embedder.options).items() if name != "batch_tokens"}
    return {
        "column": embedder.text_column,
        "id_column": embedder.id_column,
        "vector_column": embedder.vector_column,
        **embed_options,
        "device": embedder.device,
        "dtype": embedder.dtype,
        "shard_rows": options.shard_rows,
    }


def _reason(error: BaseException) -> str:
    """Return the innermost cause of an error of Ray in one line."""
    while (inner := getattr(error, "cause", None) or error.__cause__) is not None:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
