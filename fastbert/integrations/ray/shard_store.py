"""The run behind a URL, in an object store: shards of vectors, a manifest, and a record per complete shard.

Object stores neither append nor lock. Hence `_shards/00000.json` takes the place of the journal's line: the worker
writes it after the shard's own object. It carries the token of the manifest, so that records of a run that was replaced
do not count.

Each start has a prefix of its own, `_partial-*`, with one object that says so, and removes those of earlier starts. A
worker completes a shard only while that object exists: processes that outlive a killed run, and a second run, end there
with an error.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fastbert.errors import UserError
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
from fastbert.io.atomic_write import name_full_disk, partial_path
from fastbert.io.remote_sources import shown_url
from fastbert.io.remote_store import RemoteStore
from fastbert.io.untrusted_input import parse_json

RECORDS = "_shards/"
BEGUN = "begun"
TOKEN = "token"


@dataclass(frozen=True)
class StoreTarget(ShardTarget):
    """A folder behind a URL, the run's token, and the prefix of this start."""

    store: RemoteStore
    token: str
    start: str

    def begin(self, name: str) -> bool:
        self._require_current()
        mark = self._mark(name)
        starts = int(self.store.read(mark) or 0)
        if starts < MOST_STARTS:
            self.store.write(mark, str(starts + 1).encode())
        return starts < MOST_STARTS

    @contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        # Also removes what killed workers have left, a day later.
        partial = partial_path(Path(tempfile.gettempdir()) / "fastbert-shard")
        try:
            yield partial
        except OSError as error:
            name_full_disk(error, partial)
            raise
        finally:
            partial.unlink(missing_ok=True)

    def complete(self, partial: Path, record: ShardRecord) -> ShardRecord:
        self._require_current()
        self.store.put(partial, record.file)
        record = replace(record, ended=time.time())
        self.store.write(_record_name(record.file), _json({TOKEN: self.token, **asdict(record)}))
        self.store.remove([self._mark(record.file)])
        return record

    def _require_current(self) -> None:
        if self.store.read(f"{self.start}/{BEGUN}") is None:
            raise UserError(
                f"{self.store}: another run has begun to write there; let one of them end, and repeat its command with"
                " --resume"
            )

    def _mark(self, name: str) -> str:
        return f"{self.start}/{name}.starts"


class ShardStore(ShardPlace):
    """The run behind a URL, opened by `opened_store`."""

    target: StoreTarget

    def finish(self) -> dict[str, int]:
        """Record the totals of a complete run, and return them.

        Raises UserError for a shard that is missing, or that another process has written since.
        """
        store = self.target.store
        sizes = store.sizes()
        stored = _complete_shards(store, sizes, self.target.token)
        for record in self.records.values():
            if stored.get(record.shard) != record:
                raise UserError(
                    f"{store.address(record.file)}: was changed or removed after it was written; let no other process"
                    " write there, and repeat the command with --resume"
                )
        _remove_others(store, sizes, self.records)
        return super().finish()

    def _write_manifest(self, content: dict[str, Any]) -> None:
        self.target.store.write(MANIFEST, _json({TOKEN: self.target.token, **content}))


@contextmanager
def opened_store(url: str, run: RunRecord, *, resume: bool, overwrite: bool) -> Iterator[ShardStore]:
    """Open the run behind a URL; remove shards without a record, and end earlier starts.

    Raises UserError, before anything is changed, as `opened_folder` does, and for a URL that cannot be written to.
    """
    store = RemoteStore(url, "--out")
    out = shown_url(store.url)
    sizes = store.sizes()
    content = store.read(MANIFEST) if MANIFEST in sizes else None
    has_others = any(not name.startswith("_") for name in sizes)
    check_present(out, has_run=content is not None, has_others=has_others, resume=resume, overwrite=overwrite)
    records: dict[int, ShardRecord] = {}
    token: str | None = None
    if content is not None and not overwrite:
        stored = parse_json(content, store.address(MANIFEST))
        refuse_different(out, store.address(MANIFEST), stored, run)
        token = stored.get(TOKEN)
        if token is not None:  # a copy of a local folder has none; its shards are written again
            records = _complete_shards(store, sizes, token)
    start = f"{PARTIAL}{secrets.token_hex(4)}"
    # Also tells whether the URL can be written to, before anything is removed.
    store.write(f"{start}/{BEGUN}", b"")
    store.remove(name for name in sizes if name.startswith(PARTIAL))
    _remove_others(store, sizes, records)
    with tempfile.TemporaryDirectory(prefix="fastbert-") as directory:
        target = StoreTarget(store, token or secrets.token_hex(8), start)
        place = ShardStore(out, run, records, target, directory=Path(directory))
        if token is None:
            place._write_manifest(run.to_json())
        try:
            yield place
        finally:
            with suppress(UserError):
                store.remove(name for name in store.sizes() if name.startswith(f"{start}/"))


def _complete_shards(store: RemoteStore, sizes: Mapping[str, int], token: str) -> dict[int, ShardRecord]:
    """Return the shards with a record of the run with this token whose objects are there, with their size."""
    records: dict[int, ShardRecord] = {}
    for name, content in store.read_all(name for name in sizes if name.startswith(RECORDS)).items():
        values = parse_json(content, store.address(name))
        if isinstance(values, dict) and values.pop(TOKEN, None) != token:
            continue
        record = read_record(values, store.address(name))
        if sizes.get(record.file) == record.size and _record_name(record.file) == name:
            records[record.shard] = record
    return records


def _remove_others(store: RemoteStore, sizes: Mapping[str, int], records: Mapping[int, ShardRecord]) -> None:
    """Remove the shards, and records, of the listed files that are not among these."""
    known = {record.file for record in records.values()}
    known |= set(map(_record_name, known))
    others = [name for name in sizes if name not in known]
    # A kill in between leaves no record without its shard.
    store.remove(name for name in others if name.startswith(RECORDS))
    store.remove(name for name in others if is_shard(name))


def _record_name(file: str) -> str:
    """Return the name of the record of a shard, by its file name."""
    return f"{RECORDS}{Path(file).stem.removeprefix('part-')}.json"


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()
