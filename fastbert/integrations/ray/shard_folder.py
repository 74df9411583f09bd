"""The folder of a run: shards of vectors, its manifest, and a journal of the shards that are complete.

`_shards.jsonl` has a line per complete shard, with its size and CRC-32C.

Each start writes to a folder for partial files of its own, `_partial-*`, and removes those of earlier starts: a process
that outlives a killed run cannot complete a shard any more.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.integrations.ray.shard_records import (
    MANIFEST,
    MOST_STARTS,
    PARTIAL,
    RunRecord,
    ShardPlace,
    ShardRecord,
    ShardTarget,
    check_present,
    is_shard,
    read_record,
    refuse_different,
)
from fastbert.io.atomic_write import name_full_disk, replace_synced, sync, write_json_atomic
from fastbert.io.locking import locked_folder
from fastbert.io.untrusted_input import parse_json, read_json_file

JOURNAL = "_shards.jsonl"
_MOST_BYTES = 1 << 30  # of a manifest: a million input files


@dataclass(frozen=True)
class FolderTarget(ShardTarget):
    """A folder, and the one of unfinished files of this start of the run."""

    folder: Path
    unfinished: Path

    def begin(self, name: str) -> bool:
        mark = next((mark for mark in self._marks(name) if not mark.exists()), None)
        if mark is not None:
            mark.touch()
        return mark is not None

    @contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        try:
            yield self.unfinished / name
        except OSError as error:
            name_full_disk(error, self.folder / name)
            raise

    def complete(self, partial: Path, record: ShardRecord) -> ShardRecord:
        replace_synced(partial, self.folder / record.file)
        record = replace(record, ended=time.time())
        for mark in self._marks(record.file):
            mark.unlink(missing_ok=True)
        return record

    def _marks(self, name: str) -> list[Path]:
        return [self.unfinished / f"{name}.start-{number}" for number in range(MOST_STARTS)]


class ShardFolder(ShardPlace):
    """The folder of a run, opened by `opened_folder`."""

    target: FolderTarget

    def append(self, record: ShardRecord) -> None:
        """Add a complete shard to the journal."""
        with (self.directory / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(record)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        super().append(record)

    def _write_manifest(self, content: dict[str, Any]) -> None:
        write_json_atomic(self.directory / MANIFEST, content)


@contextmanager
def opened_folder(path: Path, run: RunRecord, *, resume: bool, overwrite: bool) -> Iterator[ShardFolder]:
    """Lock and open the folder of a run, which is made if it is missing; remove shards that are not in the journal.

    Raises UserError, before anything is changed, for a folder with a run unless `resume` or `overwrite`, with a
    different run unless `overwrite`, and with other files.
    """
    out = str(path)
    with locked_folder(path, "wait for it to end, or name another folder"):
        has_run = (path / MANIFEST).exists()
        has_others = any(not entry.name.startswith("_") for entry in path.iterdir())
        check_present(out, has_run=has_run, has_others=has_others, resume=resume, overwrite=overwrite)
        records: dict[int, ShardRecord] = {}
        if has_run and not overwrite:
            refuse_different(out, f"{path / MANIFEST}", read_json_file(path / MANIFEST, _MOST_BYTES), run)
            records = _complete_shards(path)
        for left in path.glob(f"{PARTIAL}*"):
            shutil.rmtree(left, ignore_errors=True)
        if not has_run:
            write_json_atomic(path / MANIFEST, run.to_json())
        _write_journal(path, records)
        known = {record.file for record in records.values()}
        for file in list(path.iterdir()):
            if is_shard(file.name) and file.name not in known:
                file.unlink()
        if has_run and overwrite:
            write_json_atomic(path / MANIFEST, run.to_json())
        unfinished = path / f"{PARTIAL}{secrets.token_hex(4)}"
        unfinished.mkdir()
        try:
            yield ShardFolder(out, run, records, FolderTarget(path, unfinished), directory=path)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _complete_shards(path: Path) -> dict[int, ShardRecord]:
    """Return the shards of the journal whose files are there, with their size; a line that a kill cut is left out."""
    journal = path / JOURNAL
    records: dict[int, ShardRecord] = {}
    lines = journal.read_bytes().splitlines(keepends=True) if journal.exists() else []
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            continue
        where = f"{journal}, line {number}"
        record = read_record(parse_json(line, where), where)
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
