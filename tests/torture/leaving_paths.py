"""File names that lead out of a folder, in every place of every format that names a file.

The file that such a name would reach exists and is right, so following it would load the artefact.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from checkpoints.toy import CONFIG, header_of
from checkpoints.toy import write as write_safetensors
from torture import stored_folders
from torture.hostile_files import Damage, Family

from fastbert import BertForPreTraining, BertModel
from fastbert.checkpoints.formats.safetensors import read_safetensors
from fastbert.checkpoints.formats.shards import read_shards
from fastbert.data.corpus import Corpus
from fastbert.data.shards import TokenShards
from fastbert.embeddings.folder import load_embedder
from fastbert.io.checksums import SEAL, sealed
from fastbert.search.index import Index
from fastbert.tasks.readers.arrow_files import read_columns
from fastbert.training import checkpoint

Rename = Callable[[Path, str, str], None]
"""Writes a name in the place of another one in a folder's files."""
# NAME is the file's own, OUTSIDE the folder beside the artefact that holds it too.
NAMES: dict[str, str] = {
    "parent": "../outside/NAME", "absolute": "OUTSIDE/NAME", "two-slashes": "/OUTSIDE/NAME",
    "through-itself": "./../outside/NAME",
    "through-a-folder": "sub/../../outside/NAME", "dots-in-the-middle": "../artefact/../outside/NAME",
    "backslashes": "..\\outside\\NAME", "drive": "C:\\outside\\NAME", "drive-relative": "C:NAME",
    "share": "\\\\outside\\NAME",
    "device": "NUL", "console": "CON.NAME", "stream": "NAME:stream", "nul": "NAME\0",
    "nul-and-parent": "\0/../../outside/NAME",
    "one-dot-leaders": "\u2024\u2024/outside/NAME", "full-width-dots": "\uff0e\uff0e/outside/NAME",
    "full-width-slash": "..\uff0foutside\uff0fNAME", "right-to-left": "\u202eNAME", "percent": "..%2foutside%2fNAME",
    "file-url": "file://OUTSIDE/NAME", "url": "http://127.0.0.1:9/NAME", "home": "~/NAME", "variable": "$HOME/NAME",
    "empty": "", "here": ".", "up": "..", "root": "/", "slash-behind": "NAME/", "long": "x" * 5_000,
    "deep": "a/" * 2_000 + "NAME", "line-end": "NAME\n", "space": " ../outside/NAME", "surrogate": "\udc2e\udc2e/NAME",
    "kernel": "/proc/self/environ", "link": "link-NAME", "folder-link": "folder-link/NAME",
}  # fmt: skip


INSIDE = ("console", "link", "device")
"""Names in the folder itself, where a file may have any; data sets, unlike models, may consist of links."""


def renamed(old: str, rename: Rename, source: str | None = None, without: Sequence[str] = ()) -> dict[str, Damage]:
    """Return the damages of one place: the file or folder `source` (default: `old`) moves outside."""
    source = source or old

    def damage(label: str) -> Damage:
        def apply(folder: Path) -> None:
            outside = folder.parent / "outside"
            outside.mkdir()
            moved = outside / Path(source).name
            shutil.move(folder / source, moved)
            (folder / "sub").mkdir()
            (folder / f"link-{moved.name}").symlink_to(moved)
            (folder / "folder-link").symlink_to(outside)
            name = NAMES[label].replace("OUTSIDE", str(outside)).replace("NAME", moved.name)
            rename(folder, old, name)

        return apply

    return {label: damage(label) for label in NAMES if label not in without}


def in_json(file: str, key: str | None = None, *, reseal: bool = False) -> Rename:
    """Replace every string that equals the name, of values under a key alone if it is given."""

    def rename(folder: Path, old: str, new: str) -> None:
        def replace(value: Any, under: str | None) -> Any:
            if isinstance(value, dict):
                return {name: replace(inner, name) for name, inner in value.items()}
            if isinstance(value, list):
                return [replace(inner, under) for inner in value]
            return new if value == old and key in (None, under) else value

        content = json.loads((folder / file).read_text())
        if reseal:
            content.pop(SEAL)
        content = replace(content, None)
        (folder / file).write_text(json.dumps(sealed(content) if reseal else content))

    return rename


def as_key(file: str) -> Rename:
    """Replace keys that equal the name."""

    def rename(folder: Path, old: str, new: str) -> None:
        def replace(value: Any) -> Any:
            if isinstance(value, dict):
                return {new if name == old else name: replace(inner) for name, inner in value.items()}
            return value

        content = json.loads((folder / file).read_text())
        content.pop(SEAL)
        (folder / file).write_text(json.dumps(sealed(replace(content))))

    return rename


def in_delta(folder: Path, old: str, new: str) -> None:
    """Rename a file that travels in a file of differences; restoring would write it outside."""
    whole, data = header_of(folder / "task.delta")
    header = json.loads(whole["__metadata__"]["header"])
    for entry in header["files"]:
        entry["name"] = new if entry["name"] == old else entry["name"]
    text = json.dumps(header)
    whole["__metadata__"] |= {"header": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    tensors = {f"file:{new}" if name == f"file:{old}" else name: entry for name, entry in whole.items()}
    write_safetensors(folder / "task.delta", tensors, data)


def sharded_encoder(folder: Path) -> None:
    """Shards of weights under a name of their own, without a manifest."""
    model = BertForPreTraining(CONFIG)
    model.init_weights(seed=1)
    model.save_pretrained(folder, max_shard_size=5000)


def saved_data(folder: Path) -> None:
    """Write a data set of two splits as the library datasets does."""
    import pyarrow

    (folder / "train").mkdir(parents=True)
    table = pyarrow.table({"text": ["a house .", "the river ."]})
    with pyarrow.ipc.new_stream(str(folder / "train/data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (folder / "train/state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))


def documents(folder: Path) -> int:
    return sum(1 for _ in Corpus.find([str(folder)]).documents())


def newest(folder: Path) -> Any:
    """Read the pointer to the newest checkpoint, which must name one inside."""
    found = checkpoint.latest(folder / "checkpoints")
    if found is None:
        raise checkpoint.CheckpointError(f"{folder}: names none")
    return found


def families(root: Path) -> list[Family]:
    """Return the formats, with a damage for each place and name."""

    def zero(write: Callable[[Path, int], Path]) -> Callable[[Path], object]:
        return lambda folder: write(folder, 0)

    shard = "model-00001-of-00003.safetensors"
    index = "model.safetensors.index.json"
    tokens = "shard-00000.tokens.bin"

    def first_shard(folder: Path) -> str:
        return sorted(path.name for path in folder.glob("model-*"))[0]

    made: list[Family] = []

    def add(
        name: str,
        write: Callable[[Path], object],
        load: Callable[[Path], object],
        damages: Callable[[Path], dict[str, Damage]],
    ) -> None:
        write(root / name)
        made.append(Family(name, write, load, damages(root / name)))

    add(
        "shard-of-weights",
        zero(stored_folders.sharded),
        BertModel.from_pretrained,
        lambda folder: renamed(shard, in_json(index)),
    )
    add(
        "shard-of-weights-alone",
        sharded_encoder,
        lambda folder: read_shards(folder / index, read_safetensors),
        lambda folder: renamed(first_shard(folder), in_json(index)),
    )
    add(
        "module",
        zero(stored_folders.embedder),
        load_embedder,
        lambda folder: renamed("2_Dense", in_json("modules.json", "path")),
    )
    add(
        "module-of-pooling",
        zero(stored_folders.embedder),
        load_embedder,
        lambda folder: renamed("1_Pooling", in_json("modules.json", "path")),
    )
    for place, name in (
        ("tokens", tokens),
        ("vocabulary", "vocab.txt"),
        ("unigrams", "unigrams.bin"),
        ("sample", "sample.bin"),
        ("offsets", "shard-00000.sentences.bin"),
    ):
        add(
            f"shards-{place}",
            zero(stored_folders.shards),
            TokenShards.open,
            lambda folder, name=name: renamed(name, in_json("index.json", "name", reseal=True)),
        )
    add(
        "search-index",
        zero(stored_folders.index),
        Index.open,
        lambda folder: renamed("texts.jsonl", as_key("index.json")),
    )
    add(
        "delta",
        zero(stored_folders.deltas),
        stored_folders.restored,
        lambda folder: renamed("config.json", in_delta, "tuned/config.json", INSIDE),
    )
    arrow = "data-00000-of-00001.arrow"
    add(
        "data-set",
        saved_data,
        documents,
        lambda folder: renamed(arrow, in_json("train/state.json"), f"train/{arrow}", ("link",)),
    )
    add(
        "data-set-of-task",
        saved_data,
        lambda folder: read_columns(f"{folder}#train"),
        lambda folder: renamed(arrow, in_json("train/state.json"), f"train/{arrow}", ("link",)),
    )
    add("split", saved_data, documents, lambda folder: renamed("train", in_json("dataset_dict.json"), None, ("link",)))
    add(
        "split-of-task",
        saved_data,
        lambda folder: read_columns(f"{folder}#train"),
        lambda folder: renamed("train", in_json("dataset_dict.json"), None, ("link",)),
    )

    def pointed(folder: Path) -> None:
        (folder / "checkpoints/step-00000004").mkdir(parents=True)
        (folder / "checkpoints/latest").write_text("step-00000004\n")

    def point(folder: Path, old: str, new: str) -> None:
        (folder / "checkpoints/latest").write_bytes(new.encode(errors="surrogatepass"))

    add("latest", pointed, newest, lambda folder: renamed("step-00000004", point, "checkpoints/step-00000004"))
    return made
