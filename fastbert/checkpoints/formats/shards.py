"""Read weights in several files, with a JSON index from each tensor's name to its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastbert.checkpoints.file_tensors import FileTensor
from fastbert.errors import CheckpointError
from fastbert.io.untrusted_input import read_json_file, shown

MAX_SHARDS, MAX_NAME_BYTES = 10_000, 255


def read_shards(index: Path, read: Callable[[Path], dict[str, FileTensor]]) -> dict[str, FileTensor]:
    """Return the tensors of all files that an index names, each opened by `read`.

    Raises `CheckpointError` where the index and the files disagree about a tensor, and for files outside the index's
    folder.
    """
    content = read_json_file(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError(f"{index}: not an index of shards: it has no weight_map from names to files")
    files = sorted(set(weight_map.values()))
    if len(files) > MAX_SHARDS:
        raise CheckpointError(f"{index}: names {len(files):,} shards; at most {MAX_SHARDS:,} are read")
    paths = {name: _shard_path(index, name) for name in files}
    tensors: dict[str, FileTensor] = {}
    for file, path in paths.items():
        for name, tensor in read(path).items():
            if name in tensors:
                raise CheckpointError(f"{path}: holds {shown(name)}, which {tensors[name].file.name} holds too")
            if weight_map.get(name) != file:
                listing = f"lists in {shown(weight_map[name])}" if name in weight_map else "does not list"
                raise CheckpointError(f"{path}: holds {shown(name)}, which {index.name} {listing}")
            tensors[name] = tensor
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise CheckpointError(
            f"{index}: lists {shown(missing[0])} in {shown(weight_map[missing[0]])}, which does not hold it"
        )
    return tensors


def _shard_path(index: Path, name: str) -> Path:
    """Return the path of a shard: a file beside the index, or a link from there into the Hub cache's own store."""
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise CheckpointError(f"{index}: names the shard {shown(name)}, which is not a plain file name")
    path = index.parent / name
    if len(name) > MAX_NAME_BYTES or not path.exists():
        raise CheckpointError(f"{index}: names the shard {shown(name)}, which is missing; fetch the checkpoint again")
    check_link(path)
    return path


def check_link(path: Path) -> None:
    """Raise `CheckpointError` for a link out of its folder, except from a Hub cache's snapshot to its `blobs`."""
    folder, target = path.parent.resolve(), path.resolve()
    allowed = [folder]
    if folder.parent.name == "snapshots":
        allowed.append(folder.parent.parent / "blobs")
    if target.parent not in allowed:
        raise CheckpointError(f"{path}: is a link to {target}, out of its folder; put the file itself there")
