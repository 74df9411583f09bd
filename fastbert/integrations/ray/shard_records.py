"""What is recorded of a run: what decides over its content, and each complete shard; and the interface of its place.

`_manifest.json` is written before the first shard: options, the model's SHA-256, the input files, and once the run is
complete its totals. Names that begin with `_` are skipped by readers of parquet folders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import describe
from fastbert.errors import CheckpointError, UserError
from fastbert.flags import flag
from fastbert.integrations.ray.inputs import SUFFIX, InputFile
from fastbert.io.untrusted_input import shown

MANIFEST, PARTIAL = "_manifest.json", "_partial-"
FORMAT, VERSION = "fastbert-vector-shards", 1
MOST_STARTS = 3
"""Starts of a shard after which its worker is not restarted again."""
_PART = "part-"


@dataclass(frozen=True)
class ShardRecord:
    """A complete shard: its number and file; its rows, tokens and texts truncated to `max_length`; the vectors' width;
    the file's size in bytes and its CRC-32C; the worker, and when it began and ended, in seconds since 1970."""

    shard: int
    file: str
    rows: int
    tokens: int
    truncated: int
    max_length: int
    width: int
    size: int
    crc32c: str
    worker: str
    began: float
    ended: float


@dataclass(frozen=True)
class RunRecord:
    """What decides over the content of a folder: options by name, the model's SHA-256, the files, and the number of
    shards."""

    model: str
    model_sha256: str
    options: Mapping[str, Any]
    inputs: Sequence[InputFile]
    shards: int

    def to_json(self) -> dict[str, Any]:
        """Return the content of the manifest."""
        return {"format": FORMAT, "format_version": VERSION, **asdict(self)}

    def difference(self, stored: Mapping[str, Any]) -> str | None:
        """Return in words how a stored manifest differs, None if it does not."""
        options = stored.get("options")
        if not isinstance(options, dict):
            return "a manifest without options"
        for name, value in self.options.items():
            if options.get(name) != value:
                return f"{flag(name)} {_word(options.get(name))}, and it is now {_word(value)}"
        if stored.get("model_sha256") != self.model_sha256:
            return f"another model, {shown(stored.get('model'))}, or other files of it"
        inputs = stored.get("inputs")
        known = inputs if isinstance(inputs, list) else []
        files = [asdict(file) for file in self.inputs]
        if known == files:
            return None
        if len(known) != len(files):
            return f"{len(known):,} input files, and there are now {len(files):,}"
        changed = next(file for file, before, now in zip(self.inputs, known, files) if before != now)
        return f"other input files: {changed.name} is new or was changed"


class ShardTarget(ABC):
    """The place of a run as its workers have it: pickled to them, of one start of the run."""

    @abstractmethod
    def begin(self, name: str) -> bool:
        """Count a start of a shard, by its file name; return False if it was begun `MOST_STARTS` times already."""

    @abstractmethod
    def partial(self, name: str) -> AbstractContextManager[Path]:
        """Yield a path of this machine to write a shard to. Errors of a full disk name it."""

    @abstractmethod
    def complete(self, partial: Path, record: ShardRecord) -> ShardRecord:
        """Show a written shard, whole, under its final name; return its record with the end of the work.

        Raises OSError or UserError where that is not possible, as when the run was started again.
        """


@dataclass
class ShardPlace(ABC):
    """The place of a run as its driver has it."""

    out: str
    """The place in messages."""
    run: RunRecord
    records: dict[int, ShardRecord]
    """The complete shards."""
    target: ShardTarget
    directory: Path = field(kw_only=True)
    """A folder of this machine without Python modules, in which Ray is started."""

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""
        return f"{_PART}{shard:0{max(5, len(str(self.run.shards - 1)))}}{SUFFIX}"

    def append(self, record: ShardRecord) -> None:
        """Add a shard that a worker has completed."""
        self.records[record.shard] = record

    def finish(self) -> dict[str, int]:
        """Record the totals of a complete run, and return them."""
        records = self.records.values()
        totals = {name: sum(getattr(record, name) for record in records) for name in ("rows", "tokens", "truncated")}
        totals["width"] = max(record.width for record in records)
        self._write_manifest({**self.run.to_json(), "complete": totals})
        return totals

    @abstractmethod
    def _write_manifest(self, content: dict[str, Any]) -> None: ...


def is_shard(name: str) -> bool:
    """Return True for the file name of a shard."""
    return name.startswith(_PART) and name.endswith(SUFFIX)


def check_present(out: str, *, has_run: bool, has_others: bool, resume: bool, overwrite: bool) -> None:
    """Raise UserError for a place with a run unless `resume` or `overwrite`, and for one with other files."""
    if not has_run and has_others:
        raise UserError(f"--out {out}: holds other files; name a new or empty folder")
    if has_run and not (resume or overwrite):
        raise UserError(f"--out {out}: already holds a run; continue it with --resume or replace it with --overwrite")


def refuse_different(out: str, manifest: str, stored: Any, run: RunRecord) -> None:
    """Raise UserError for the content of a manifest that is damaged, of a newer release, or of a different run."""
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise CheckpointError(f"{manifest}: is no manifest of vector shards; replace the run with --overwrite")
    if stored.get("format_version") != VERSION:
        raise CheckpointError(
            f"{manifest}: has format_version {shown(stored.get('format_version'))}, and this release reads"
            f" {VERSION}; update fastbert, or replace the run with --overwrite"
        )
    difference = run.difference(stored)
    if difference is not None:
        raise UserError(
            f"--out {out}: its run was begun with {difference}; repeat its command, or replace it with --overwrite"
        )


def read_record(values: Any, where: str) -> ShardRecord:
    """Return the record of a shard from its JSON. Raises CheckpointError, which names `where` it was."""
    if not isinstance(values, dict) or set(values) != {item.name for item in fields(ShardRecord)}:
        raise CheckpointError(f"{where}: is not the record of a shard; replace it with --overwrite")
    return ShardRecord(**values)


def record_of(file: Path, name: str, **counts: Any) -> ShardRecord:
    """Return the record of a written file, with its name in the folder."""
    entry = describe(file)
    return ShardRecord(file=name, size=entry.size, crc32c=entry.crc32c, **counts)


def _word(value: Any) -> str:
    """Return an option's value in words."""
    if value is None:
        return "at its default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
