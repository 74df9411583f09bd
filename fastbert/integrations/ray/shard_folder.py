"""The folder of a run: shards of vectors, the record of what they are made of, and a journal of those complete.

`_manifest.json` is written before the first shard: options, the model's SHA-256, the input files, and once the run is
complete its totals. `_shards.jsonl` has a line per complete shard, with its size and CRC-32C. Names that begin with `_`
are skipped by readers of parquet folders.

Each start writes to a folder for partial files of its own, `_partial-*`, and removes those of earlier starts: a process
that outlives a killed run cannot complete a shard any more.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fastbert.checkpoints.manifest import describe
from fastbert.errors import CheckpointError, UserError
from fastbert.flags import flag
from fastbert.integrations.ray.inputs import InputFile
from fastbert.io.atomic_write import sync, write_json_atomic
from fastbert.io.locking import locked_folder
from fastbert.io.untrusted_input import parse_json, read_json_file, shown

MANIFEST, JOURNAL, PARTIAL = "_manifest.json", "_shards.jsonl", "_partial-"
FORMAT, VERSION = "fastbert-vector-shards", 1
_MOST_BYTES = 1 << 30  # of a manifest: a million input files
_SHARDS = "part-*.parquet"


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


class ShardFolder:
    """The folder of a run, opened by `opened_folder`."""

    def __init__(self, path: Path, run: RunRecord, records: dict[int, ShardRecord], partial: Path) -> None:
        self.path, self.run, self.records, self.partial = path, run, records, partial

    def name(self, shard: int) -> str:
        """Return the file name of a shard."""
        return f"part-{shard:0{max(5, len(str(self.run.shards - 1)))}}.parquet"

    def append(self, record: ShardRecord) -> None:
        """Add a complete shard to the journal."""
        with (self.path / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records[record.shard] = record

    def finish(self) -> dict[str, int]:
        """Record the totals of a complete run, and return them."""
        records = self.records.values()
        totals = {name: sum(getattr(record, name) for record in records) for name in ("rows", "tokens", "truncated")}
        totals["width"] = max(record.width for record in records)
        write_json_atomic(self.path / MANIFEST, {**self.run.to_json(), "complete": totals})
        return totals


@contextmanager
def opened_folder(path: Path, run: RunRecord, *, resume: bool, overwrite: bool) -> Iterator[ShardFolder]:
    """Lock and open the folder of a run, which is made if it is missing; remove shards that are not in the journal.

    Raises UserError, before anything is changed, for a folder with a run unless `resume` or `overwrite`, with a
    different run unless `overwrite`, and with other files.
    """
    with locked_folder(path, "wait for it to end, or name another folder"):
        has_run = (path / MANIFEST).exists()
        if not has_run and any(not entry.name.startswith("_") for entry in path.iterdir()):
            raise UserError(f"--out {path}: holds other files; name a new or empty folder")
        if has_run and not (resume or overwrite):
            raise UserError(
                f"--out {path}: already holds a run; continue it with --resume or replace it with --overwrite"
            )
        records: dict[int, ShardRecord] = {}
        if has_run and not overwrite:
            _refuse_different(path, run)
            records = _complete_shards(path)
        for left in path.glob(f"{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        if not has_run:
            write_json_atomic(path / MANIFEST, run.to_json())
        _write_journal(path, records)
        known = {record.file for record in records.values()}
        for file in path.glob(_SHARDS):
            if file.name not in known:
                file.unlink()
        if has_run and overwrite:
            write_json_atomic(path / MANIFEST, run.to_json())
        partial = path / f"{PARTIAL}{secrets.token_hex(4)}"
        partial.mkdir()
        try:
            yield ShardFolder(path, run, records, partial)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _refuse_different(path: Path, run: RunRecord) -> None:
    stored = read_json_file(path / MANIFEST, _MOST_BYTES)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: is no manifest of vector shards; replace the run with --overwrite")
    if stored.get("format_version") != VERSION:
        raise CheckpointError(
            f"{path / MANIFEST}: has format_version {shown(stored.get('format_version'))}, and this release reads"
            f" {VERSION}; update fastbert, or replace the run with --overwrite"
        )
    difference = run.difference(stored)
    if difference is not None:
        raise UserError(
            f"--out {path}: its run was begun with {difference}; repeat its command, or replace it with --overwrite"
        )


def _complete_shards(path: Path) -> dict[int, ShardRecord]:
    """Return the shards of the journal whose files are there, with their size; a line that a kill cut is left out."""
    journal = path / JOURNAL
    records: dict[int, ShardRecord] = {}
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            continue
        values = parse_json(line, f"{journal}, line {number}")
        if not isinstance(values, dict) or set(values) != {item.name for item in fields(ShardRecord)}:
            raise CheckpointError(
                f"{journal}, line {number}: is not the record of a shard; replace it with --overwrite"
            )
        record = ShardRecord(**values)
        file = path / Path(str(record.file)).name
        if file.is_file() and file.stat().st_size == record.size:
            records[record.shard] = record
    return records


def _write_journal(path: Path, records: Mapping[int, ShardRecord]) -> None:
    """Write the journal anew, flushed, so that it names no shard that is about to be removed."""
    partial = path / f"{JOURNAL}.partial"
    partial.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records.values()), encoding="utf-8")
    sync(partial)
    partial.replace(path / JOURNAL)
    sync(path)


def record_of(file: Path, name: str, **counts: Any) -> ShardRecord:
    """Return the record of a written file, with its name in the folder."""
    entry = describe(file)
    return ShardRecord(file=name, size=entry.size, crc32c=entry.crc32c, **counts)


def _word(value: Any) -> str:
    """Return an option's value in words."""
    if value is None:
        return "at its default"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
