"""Weights in several files, with an index in JSON that says which tensor lies in which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastbert.checkpoints.file_tensors import Stored
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import read_json_file, shown

MOST_SHARDS, MOST_NAME = 10_000, 255


def read_shards(index: Path, read: Callable[[Path], dict[str, Stored]]) -> dict[str, Stored]:
    """All tensors of the files that an index names, each read by `read`.

    Raises `CheckpointError` where index and files do not agree about every tensor, and for names of files that lead out
    of the index's folder.
    """
    content = read_json_file(index)
    mapped = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(mapped, dict) or not mapped or not all(isinstance(name, str) for name in mapped.values()):
        raise CheckpointError(f"{index}: not an index of shards: it holds no weight_map of names to files")
    files = sorted(set(mapped.values()))
    if len(files) > MOST_SHARDS:
        raise CheckpointError(f"{index}: names {len(files):,} shards, where at most {MOST_SHARDS:,} are believed")
    paths = {name: _inside(index, name) for name in files}
    found: dict[str, Stored] = {}
    for file, path in paths.items():
        for name, stored in read(path).items():
            if name in found:
                raise CheckpointError(f"{path}: holds {shown(name)}, which {found[name].file.name} holds too")
            if mapped.get(name) != file:
                said = f"says is in {shown(mapped[name])}" if name in mapped else "does not name"
                raise CheckpointError(f"{path}: holds {shown(name)}, which {index.name} {said}")
            found[name] = stored
    lacking = sorted(mapped.keys() - found.keys())
    if lacking:
        raise CheckpointError(
            f"{index}: promises {shown(lacking[0])} in {shown(mapped[lacking[0]])}, which does not hold it"
        )
    return found


def _inside(index: Path, name: str) -> Path:
    """The path of a shard: a plain name beside the index, of a file that lies there too, or in the store of a Hub cache
    whose links make up the index's folder."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{index}: names the shard {shown(name)}, which is no plain file name")
    path = index.parent / name
    if len(name) > MOST_NAME or not path.exists():
        raise CheckpointError(f"{index}: names the shard {shown(name)}, which is missing; fetch the checkpoint again")
    check_link(path)
    return path


def check_link(path: Path) -> None:
    """Refuse a link that leads out of its folder; a Hub cache's `snapshots/COMMIT` may lead to its own `blobs`."""
    folder, target = path.parent.resolve(), path.resolve()
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed.append(folder.parent.parent / "blobs")
    if target.parent not in allowed:
        raise CheckpointError(f"{path}: is a link to {target}, out of its folder; put the file itself there")
