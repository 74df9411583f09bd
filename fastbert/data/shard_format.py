"""The format of token shards: the names of the files, how they are written, and how the index is read.

    index.json                       format and version, sizes, the tokenizer's fingerprint, SHA-256 of every file
    shard-00000.tokens.bin           token ids, uint16 (vocabularies below 65,536) or uint32
    shard-00000.sentences.bin        int64 (sentences + 1,): offset of each sentence in the shard's tokens
    shard-00000.documents.bin        int64 (documents + 1,): offset of each document in the shard's sentences
    unigrams.bin                     int64 (vocab_size,): the count of each id
    vocab.txt tokenizer_config.json  the tokenizer's own files

All numbers are little-endian. No sentence or document is empty, and each document is in one shard. The fingerprint
identifies the tokenizer as a whole, whatever its kind (`fastbert.tokenizers.fingerprint`).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import UserError
from fastbert.io.checksums import sha256

FORMAT = "fastbert-token-shards"
VERSION = 1
INDEX = "index.json"
VOCABULARY = "vocab.txt"
UNIGRAMS = "unigrams.bin"
SPECIALS = ("pad", "unk", "cls", "sep", "mask")
OFFSET_DTYPE = np.dtype("<i8")

_MAX_INDEX_BYTES = 1 << 26


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of stored ids: uint16 if it is wide enough, else uint32."""
    return np.dtype("<u2" if vocab_size < 65536 else "<u4")


def shard_files(number: int) -> dict[str, str]:
    """Return the names of a shard's files; an index with other names is refused."""
    return {kind: f"shard-{number:05d}.{kind}.bin" for kind in ("tokens", "sentences", "documents")}


class HashedFile:
    """A file that is written once, with the SHA-256 for the index."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.bytes = 0
        self._file: IO[bytes] = path.open("xb")
        self._hash = hashlib.sha256()

    def write(self, values: NDArray[Any]) -> None:
        """Append the bytes of an array."""
        data = np.ascontiguousarray(values).data.cast("B")
        self._file.write(data)
        self._hash.update(data)
        self.bytes += len(data)

    def close(self) -> dict[str, Any]:
        """Write the file to disk, and return its entry for the index."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return {"name": self.name, "bytes": self.bytes, "sha256": self._hash.hexdigest()}


def describe(path: Path) -> dict[str, Any]:
    """Return the entry of an existing file for the index."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}


class IndexReader:
    """Typed access to index.json; a missing value or a wrong type is a `UserError` of one line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / INDEX
        if not folder.is_dir():
            raise UserError(f"no such folder: {folder}")
        if not self.path.is_file():
            raise UserError(
                f"{folder} is not a folder of token shards: it has no {INDEX}; make one with `fastbert prepare`"
            )
        if self.path.stat().st_size > _MAX_INDEX_BYTES:
            raise self.damaged(f"is larger than {_MAX_INDEX_BYTES >> 20} MiB")
        try:
            self.content = json.loads(self.path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"is not valid JSON ({error})") from None

    def damaged(self, what: str) -> UserError:
        """Return the error of an index with this problem."""
        return UserError(f"{self.path} {what}; prepare the shards again")

    def get(self, holder: Any, key: str, kind: type) -> Any:
        """Return a value of a type. Raises UserError if it is missing or of another type."""
        value = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.damaged(f"has no valid {key!r} (it is {str(value)[:40]})")
        return value

    def count(self, holder: Any, key: str, smallest: int = 1) -> int:
        """Return an integer of at least `smallest`. Raises UserError for other values."""
        value: int = self.get(holder, key, int)
        if not smallest <= value < 1 << 62:
            raise self.damaged(f"has {key}={value}, which is out of range")
        return value

    def file(self, holder: Any, key: str, expected_name: str, expected_bytes: int | None, verify: bool) -> Path:
        """Return the path of a listed file, after checking its name and size, and with `verify` its SHA-256."""
        entry = self.get(holder, key, dict)
        name, size, digest = self.get(entry, "name", str), self.count(entry, "bytes"), self.get(entry, "sha256", str)
        if name != expected_name:
            raise self.damaged(f"names the file {name[:80]!r}, but only {expected_name!r} is allowed")
        path = self.folder / name
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is missing or not a regular file; prepare the shards again")
        if size != path.stat().st_size or (expected_bytes is not None and size != expected_bytes):
            expected = size if expected_bytes is None else expected_bytes
            raise UserError(f"{path} has {path.stat().st_size} bytes, not {expected}; prepare the shards again")
        if verify and sha256(path) != digest:
            raise UserError(f"{path} is damaged: its SHA-256 is not the one in {INDEX}; prepare the shards again")
        return path
