"""The flags of `fastbert embed` for a Ray cluster, and what it does with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fastbert.cli.checks import STDIN, check_new_folder, local_file, named
from fastbert.cli.counts import counted
from fastbert.distributed.environment import is_launched
from fastbert.errors import UserError
from fastbert.flags import MACHINE, flag, rare, require
from fastbert.io.locations import is_remote, local_path
from fastbert.io.progress import Bars
from fastbert.io.remote_sources import shown_url
from fastbert.io.remote_store import RemoteStore

if TYPE_CHECKING:
    from fastbert.embeddings.embed import EmbedOptions

SHARD_ROWS = 16_384


@dataclass(frozen=True, kw_only=True)
class _EngineFlags:
    """The engine."""

    GROUP: ClassVar = MACHINE

    engine: Literal["local", "ray"] = "local"
    """local: this process, or those of torchrun. ray: workers of Ray, for folders of .parquet files."""


@dataclass(frozen=True, kw_only=True)
class _RunFlags:
    """A run on a Ray cluster."""

    GROUP: ClassVar = "With --engine ray"

    id_column: str | None = None
    """Column of ids to write beside the vectors (default: none, and a column index with row numbers)."""
    workers: int | None = None
    """Processes with a model each (default: as many as the cores hold, or one per GPU)."""
    threads: int | None = None
    """Cores per worker (default: the cores divided by the workers, at most 4)."""
    shard_rows: int = rare(SHARD_ROWS)
    """Most rows per file of vectors, and what a kill costs each worker at most."""
    resume: bool = False
    """Continue the run in --out, a folder or a URL, if there is one, with its missing files."""


@dataclass(frozen=True, kw_only=True)
class RayFlags(_RunFlags, _EngineFlags):
    """The engine, and the flags of a run on Ray."""


def local_out(config: Any) -> Path:
    """Return the file to write without --engine ray. Raises `UserError` for a URL."""
    return local_file("--out", require(config, "out"), "name a file of this machine, or write there with --engine ray")


def check_local(config: Any) -> None:
    """Raise `UserError` for flags that only --engine ray has."""
    for name in ("id_column", "workers", "threads", "resume"):
        if getattr(config, name):
            raise UserError(f"{flag(name)} changes nothing without --engine ray; leave it out")
    if config.shard_rows != SHARD_ROWS:
        raise UserError(f"--shard-rows {config.shard_rows} changes nothing without --engine ray; leave it out")


def check_ray(config: Any) -> None:
    """Raise `UserError` for what --engine ray cannot do."""
    for name in ("workers", "threads", "shard_rows"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UserError(f"{flag(name)} {value} must be at least 1")
    if config.vectors != "dense":
        raise UserError(f"--vectors {config.vectors}: --engine ray writes one vector per text; leave one of them out")
    if is_launched():
        raise UserError("--engine ray starts its own processes; start it without torchrun")
    if config.resume and config.overwrite:
        raise UserError("--resume and --overwrite exclude each other; leave one out")
    text, out = require(config, "text"), require(config, "out")
    if text == STDIN:
        raise UserError("--text -: --engine ray reads .parquet files; name one, or a folder or a pattern of them")
    with named("--out"):
        is_url = is_remote(out)
    if PurePosixPath(out).suffix in (".parquet", ".npy", ".jsonl"):
        shown = shown_url(out) if is_url else out
        raise UserError(f"--out {shown}: --engine ray writes a folder of .parquet files; name a folder")
    if is_url:
        RemoteStore(out, "--out").open()
    else:
        check_new_folder("--out", local_path(out))


def run_ray(config: Any, options: EmbedOptions, quiet: bool) -> int:
    """Embed the files on a Ray cluster, and print a summary."""
    from fastbert.embeddings.arrow import ArrowEmbedder
    from fastbert.integrations.ray.cluster import muted
    from fastbert.integrations.ray.engine import RayOptions, embed_with_ray
    from fastbert.training.stopping import Stopped

    embedder = ArrowEmbedder(
        model=require(config, "model"),
        options=options,
        text_column=config.column or "text",
        id_column=config.id_column,
        device=config.device,
        dtype=config.dtype,
    )
    names = ("workers", "threads", "shard_rows", "resume", "overwrite")
    run = RayOptions(**{name: getattr(config, name) for name in names})
    with muted(), Bars(quiet) as bars:
        update: Any = None

        def progress(rows: int, total: int) -> None:
            nonlocal update
            update = update or bars.stage("embedding", total, "texts")
            update(rows, counted(rows, "text"))

        try:
            report = embed_with_ray(
                require(config, "text"),
                require(config, "out"),
                embedder,
                run,
                progress=progress,
                message=bars.message,
            )
        except Stopped as stopped:
            bars.message(
                f"stopped; complete files are in {stopped.saved}; repeat the command with --resume to continue"
            )
            raise
    print(str(report))
    return 0
