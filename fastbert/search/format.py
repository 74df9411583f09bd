"""The files of an index folder, and `index.json`, which describes them. Imports no torch.

`vectors.int8.npy` with `scales.npy`, `vectors.fp16.npy`, `vectors.fp32.npy` or `vectors.faiss` hold one vector per
text; int8 and FAISS are rescored with fp16. `texts.jsonl` has one object per text, `id` and `text`, and
`texts.offsets.npy` the byte at which each begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from fastbert.checkpoints.manifest import Entry, describe, read_entries
from fastbert.errors import CheckpointError, UserError
from fastbert.io.checksums import SEAL, is_sealed, sealed
from fastbert.io.untrusted_input import read_json_object, shown

INDEX = "index.json"
FORMAT, VERSION = "fastbert-search-index", 1
Store = Literal["int8", "fp16", "fp32", "faiss"]
Similarity = Literal["cosine", "dot"]
SCALES, TEXTS, OFFSETS, FAISS = "scales.npy", "texts.jsonl", "texts.offsets.npy", "vectors.faiss"
MOST_WIDTH = 1 << 20


def vectors_name(dtype: str) -> str:
    """Return the name of the file of vectors of a dtype: int8, fp16 or fp32."""
    return f"vectors.{dtype}.npy"


SUPERSEDED = (INDEX, *map(vectors_name, ("int8", "fp16", "fp32")), FAISS, SCALES, TEXTS, OFFSETS)
"""Files of an older index, which a new one replaces."""


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """The model that an index was made with."""

    source: str
    """Its folder or name."""
    sha256: str
    """SHA-256 of its weights, tokenizer and settings (`fastbert.search.fingerprint`)."""


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """The content of `index.json`."""

    count: int
    """Vectors."""
    width: int
    """Numbers per vector."""
    store: Store
    """Dtype of the vectors that are scanned, or "faiss"."""
    rescore: bool = False
    """True if an fp16 copy of the vectors orders the candidates of int8 or FAISS."""
    similarity: Similarity = "cosine"
    """"cosine": vectors have unit length; "dot": they have the model's."""
    model: ModelRecord | None = None
    """None: the vectors came from elsewhere, and queries are vectors too."""
    document_prompt: str | None = None
    """Name of the model's prompt before each text; None: no prompt."""
    query_prompt: str | None = None
    """Name of the model's prompt before each query; None: no prompt."""
    faiss: str | None = None
    """The factory string of the FAISS index."""
    files: Mapping[str, Entry] = field(default_factory=dict)
    """Size and CRC-32C of each file."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of `index.json`."""
        return sealed({"format": FORMAT, "format_version": VERSION, **asdict(self)})

    @property
    def names(self) -> list[str]:
        """The files of an index with these settings."""
        vectors = FAISS if self.store == "faiss" else vectors_name(self.store)
        copies = [vectors_name("fp16")] if self.rescore else []
        return [vectors, *copies, *([SCALES] if self.store == "int8" else []), TEXTS, OFFSETS]


def check_out(out: Path, overwrite: bool) -> None:
    """Raise UserError for a file, for a folder that holds an index unless `overwrite`, and for a folder with other
    files that an index would replace."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder")
    if (out / INDEX).exists():
        if not overwrite:
            raise UserError(f"{out}: already holds an index; name another folder, or --overwrite to replace it")
        return
    for name in SUPERSEDED:
        if (out / name).exists():
            raise UserError(f"{out}: holds {name}, which an index would replace; name another folder")


def read_settings(folder: Path, *, verify: bool = False) -> IndexSettings:
    """Return the settings of an index, with the sizes of its files compared, and their checksums with `verify`.

    Older indexes have no checksum of the settings themselves.

    Raises UserError for a folder that is no index and for a newer format, CheckpointError for damage.
    """
    path = folder / INDEX
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{folder}: {problem}; name one that `fastbert search index` made")
    if not path.exists():
        raise UserError(f"{folder}: holds no {INDEX}; name a folder that `fastbert search index` made")
    values = read_json_object(path)
    if values.get("format") != FORMAT:
        raise UserError(f"{path}: is not of an index of vectors; name a folder that `fastbert search index` made")
    if values.get("format_version") != VERSION:
        raise UserError(
            f"{path}: has format_version {shown(values.get('format_version'))}, and {VERSION} is supported; use a newer"
            " fastbert, or make the index again"
        )
    known = {"format", "format_version", *(item.name for item in fields(IndexSettings))}
    if not (is_sealed(values) if SEAL in values else known.issuperset(values)):
        raise CheckpointError(f"{path}: damaged: it does not match its own checksum; make the index again")
    try:
        settings = _parsed(values)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise CheckpointError(f"{path}: damaged: not written by fastbert; make the index again") from None
    for name in settings.names:
        _check_entry(folder / name, settings.files.get(name), verify)
    return settings


def _parsed(values: Mapping[str, Any]) -> IndexSettings:
    known = {item.name: values[item.name] for item in fields(IndexSettings)}
    if known["model"] is not None:
        known["model"] = ModelRecord(source=str(known["model"]["source"]), sha256=str(known["model"]["sha256"]))
    known["files"] = read_entries(known["files"])
    settings = IndexSettings(**known)
    whole = all(isinstance(value, int) and value >= 1 for value in (settings.count, settings.width))
    texts = (settings.document_prompt, settings.query_prompt, settings.faiss)
    if (
        not whole
        or settings.width > MOST_WIDTH
        or settings.store not in get_args(Store)
        or settings.similarity not in get_args(Similarity)
        or not isinstance(settings.rescore, bool)
        or not all(text is None or isinstance(text, str) for text in texts)
    ):
        raise ValueError
    return settings


def _check_entry(path: Path, entry: Entry | None, verify: bool) -> None:
    cure = "make the index again, or restore the file"
    if entry is None or not path.is_file():
        raise CheckpointError(f"{path}: is missing; {cure}")
    if path.stat().st_size != entry.size:
        raise CheckpointError(f"{path}: has {path.stat().st_size:,} bytes, not {entry.size!r}; {cure}")
    if verify and describe(path) != entry:
        raise CheckpointError(f"{path}: damaged: its checksum differs from that in {INDEX}; {cure}")
