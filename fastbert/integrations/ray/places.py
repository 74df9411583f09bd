"""Open the place of a run: a folder, or the URL of one."""

from __future__ import annotations

from contextlib import AbstractContextManager

from fastbert.integrations.ray.shard_folder import opened_folder
from fastbert.integrations.ray.shard_records import RunRecord, ShardPlace
from fastbert.integrations.ray.shard_store import opened_store
from fastbert.io.locations import Location, is_remote, local_path


def opened_place(out: Location, run: RunRecord, *, resume: bool, overwrite: bool) -> AbstractContextManager[ShardPlace]:
    """Return a context manager that opens the place of a run, as `opened_folder` and `opened_store` do."""
    if is_remote(out):
        return opened_store(str(out), run, resume=resume, overwrite=overwrite)
    # Workers have a different working directory.
    return opened_folder(local_path(out).absolute(), run, resume=resume, overwrite=overwrite)
