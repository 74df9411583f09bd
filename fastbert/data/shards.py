"""Token shards: a tokenized corpus in flat files that are mapped into memory, never loaded.

One file: the format, that is its index, its files and the corpus that they make.

`fastbert.data.prepare` writes a folder of shards and `TokenShards.open` maps it, after checking every file:

    index.json                       format and version, sizes, the tokenizer's fingerprint, SHA-256 of every file, and
                                     of all these values; older folders lack the last one
    shard-00000.tokens.bin           token ids, uint16 (vocabularies below 65,536) or uint32
    shard-00000.sentences.bin        int64 (sentences + 1,): offset of each sentence in the shard's tokens
    shard-00000.documents.bin        int64 (documents + 1,): offset of each document in the shard's sentences
    unigrams.bin                     int64 (vocab_size,): the count of each id
    sample.bin                       hashes of some sentences, for `sentence_sample`; older folders have none
    vocab.txt tokenizer_config.json  the tokenizer's own files; without a vocab.txt (byte-level BPE, Unigram) its tokens
                                     are in vocabulary.json, a list in the order of their ids

All numbers are little-endian. No sentence or document is empty, and each document is in one shard. The fingerprint
identifies the tokenizer as a whole, whatever its kind (`fastbert.tokenizers.vocabulary`). What streaming needs beside
these is in `fastbert.data.block_files`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.errors import UserError
from fastbert.io.checksums import SEAL, is_sealed, sha256

FORMAT = "fastbert-token-shards"
VERSION = 1
INDEX = "index.json"
VOCABULARY, JSON_VOCABULARY = "vocab.txt", "vocabulary.json"
UNIGRAMS = "unigrams.bin"
SAMPLE = "sample.bin"
SPECIALS = ("pad", "unk", "cls", "sep", "mask")
"""The last one may be missing: models that read left to right have no masks."""
OFFSET_DTYPE = np.dtype("<i8")

_MAX_INDEX_BYTES = 1 << 26
# Values of an index without a seal: one whose name is damaged must not pass for an index that was written without it.
_NAMES = frozenset(
    (
        "format", "version", "vocab_size", "fingerprint", "special_ids", "dtype", "tokens", "sentences", "documents",
        "unigrams", "vocabulary", "tokenizer", "block_bytes", "shards", "sample", "repeated_share", "dedup",
    )
)  # fmt: skip


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the dtype of stored ids: uint16 if it is wide enough, else uint32."""
    return np.dtype("<u2" if vocab_size < 65536 else "<u4")


def shard_files(number: int) -> dict[str, str]:
    """Return the names of a shard's files; an index with other names is refused."""
    return {kind: f"shard-{number:05d}.{kind}.bin" for kind in ("tokens", "sentences", "documents")}


class HashedFile:
    """A file that is written once, with the SHA-256 for the index."""

    def __init__(self, path: Path) -> None:
        self.name: str = path.name
        self.bytes: int = 0
        self._file: IO[bytes] = path.open("xb")
        self._hash = hashlib.sha256()

    def write(self, values: NDArray[Any]) -> None:
        """Append the bytes of an array; `values` of any shape and dtype are written in C order."""
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


@dataclass(frozen=True)
class ListedFile:
    """The entry of a file in the index."""

    name: str
    bytes: int
    sha256: str


class IndexReader:
    """Typed access to index.json; a missing value or a wrong type is a `UserError` of one line.

    `content` is that of index.json (default: read from the folder), and `address` what messages call it.

    Raises UserError for a folder without a readable index.json.
    """

    def __init__(self, folder: Path, content: bytes | None = None, address: str | None = None) -> None:
        self.folder = folder
        self.path: str = address or str(folder / INDEX)
        if content is None:
            content = self._content()
        if len(content) > _MAX_INDEX_BYTES:
            raise self.damaged(f"is larger than {_MAX_INDEX_BYTES >> 20} MiB")
        try:
            self._bytes = content
            self.content: Any = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"is not valid JSON ({error})") from None

    def _content(self) -> bytes:
        if not self.folder.is_dir():
            raise UserError(f"no such folder: {self.folder}")
        path = self.folder / INDEX
        if not path.is_file():
            raise UserError(
                f"{self.folder} is not a folder of token shards: it has no {INDEX}; make one with `fastbert prepare`"
            )
        with path.open("rb") as file:
            return file.read(_MAX_INDEX_BYTES + 1)

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the index, which identifies the shards."""
        return hashlib.sha256(self._bytes).hexdigest()

    def check_format(self) -> None:
        """Raise UserError for a different format, for a newer version, and for values that changed since they were
        written."""
        if not isinstance(self.content, dict) or self.content.get("format") != FORMAT:
            raise self.damaged(f"does not describe token shards (format {FORMAT!r})")
        version = self.count(self.content, "version")
        if version > VERSION:
            raise UserError(f"{self.path} has format version {version}, newer than {VERSION}; update fastbert")
        if not (is_sealed(self.content) if SEAL in self.content else _NAMES.issuperset(self.content)):
            raise self.damaged("is damaged: it does not match its own checksum")

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

    def listed(
        self, holder: Any, key: str, expected_name: str, expected_bytes: int | None, smallest: int = 1
    ) -> ListedFile:
        """Return the entry of a file. Raises UserError for one of another name or size."""
        entry = self.get(holder, key, dict)
        name, digest = self.get(entry, "name", str), self.get(entry, "sha256", str)
        size = self.count(entry, "bytes", smallest)
        if name != expected_name:
            raise self.damaged(f"names the file {name[:80]!r}, but only {expected_name!r} is allowed")
        if expected_bytes is not None and size != expected_bytes:
            raise self.damaged(f"gives {name} {size} bytes, not {expected_bytes}")
        return ListedFile(name, size, digest)

    def file(
        self, holder: Any, key: str, expected_name: str, expected_bytes: int | None, verify: bool, smallest: int = 1
    ) -> Path:
        """Return the path of a listed file, after checking its name and size, and with `verify` its SHA-256.

        Raises UserError for a file that is missing or differs.
        """
        listed = self.listed(holder, key, expected_name, None, smallest)
        name, size = listed.name, listed.bytes
        path = self.folder / name
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path} is missing or not a regular file; prepare the shards again")
        if size != path.stat().st_size or (expected_bytes is not None and size != expected_bytes):
            expected = size if expected_bytes is None else expected_bytes
            raise UserError(f"{path} has {path.stat().st_size} bytes, not {expected}; prepare the shards again")
        if verify and sha256(path) != listed.sha256:
            raise UserError(f"{path} is damaged: its SHA-256 is not the one in {INDEX}; prepare the shards again")
        return path


@dataclass(frozen=True)
class Shard:
    """The arrays of one shard, mapped from its files."""

    tokens: NDArray[Any]
    """Ids, uint16 or uint32 (tokens,), see `token_dtype`."""
    sentence_offsets: NDArray[np.int64]
    """Offset of each sentence in the tokens, int64 (sentences + 1,)."""
    document_offsets: NDArray[np.int64]
    """Offset of each document in the sentences, int64 (documents + 1,)."""


class TokenShards:
    """A tokenized corpus on disk, with the fingerprint of the tokenizer that it was made with.

    `unigrams`, int64 (vocab_size,), holds the count of each id. Pickles as its folder, so that each worker maps the
    files itself.
    """

    def __init__(
        self,
        folder: Path,
        shards: tuple[Shard, ...],
        *,
        vocabulary: tuple[str, ...],
        special_ids: dict[str, int],
        fingerprint: str,
        unigrams: NDArray[np.int64],
    ) -> None:
        self.folder = folder
        self.shards = shards
        self.vocabulary = vocabulary
        self.special_ids = special_ids
        self.fingerprint = fingerprint
        self.unigrams = unigrams
        self.corpus: _C.TokenCorpus = self._corpus()

    is_local: ClassVar[bool] = True
    """False where the tokens are in another place, from which `loaded` brings those of a batch."""

    def _corpus(self) -> _C.TokenCorpus:
        return _C.TokenCorpus([(shard.tokens, shard.sentence_offsets) for shard in self.shards])

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> Self:
        """Map the shards of a folder.

        Checked are the format's version, each file's name and size, and that offsets rise within their bounds; with
        `verify` also every checksum and that every token id is in the vocabulary, which reads all files once (about
        1 GB/s). Raises UserError, which names the file, the value and the cure.
        """
        return cls._read(IndexReader(Path(os.path.abspath(folder))), verify)

    @classmethod
    def _read(cls, reader: IndexReader, verify: bool) -> Self:
        index = reader.content
        reader.check_format()
        vocab_size = reader.count(index, "vocab_size")
        if vocab_size > 1 << 31:
            raise reader.damaged(f"has vocab_size={vocab_size}, which is out of range")
        dtype = token_dtype(vocab_size)
        if reader.get(index, "dtype", str) != dtype.name:
            raise reader.damaged(f"has dtype {str(index['dtype'])[:40]!r}, not {dtype.name!r}")
        specials = reader.get(index, "special_ids", dict)
        names = SPECIALS if specials.get("mask") is not None else SPECIALS[:-1]
        special_ids = {name: reader.count(specials, name, smallest=0) for name in names}
        for name, token_id in special_ids.items():
            if token_id >= vocab_size:
                raise reader.damaged(f"has the {name} id {token_id}, outside the vocabulary of {vocab_size}")
        is_json = reader.get(index, "vocabulary", dict).get("name") == JSON_VOCABULARY
        name = JSON_VOCABULARY if is_json else VOCABULARY
        vocabulary = read_vocabulary(reader.file(index, "vocabulary", name, None, verify=True), vocab_size)
        unigrams = np.fromfile(reader.file(index, "unigrams", UNIGRAMS, 8 * vocab_size, verify=True), OFFSET_DTYPE)
        if "sample" in index:
            reader.file(reader.get(index, "sample", dict), "file", SAMPLE, None, verify, smallest=0)
        entries = reader.get(index, "shards", list)
        if not entries:
            raise reader.damaged("lists no shards")
        shards = tuple(cls._shard(reader, entry, i, dtype, vocab_size, verify) for i, entry in enumerate(entries))
        opened = cls(
            reader.folder,
            shards,
            vocabulary=vocabulary,
            special_ids=special_ids,
            fingerprint=reader.get(index, "fingerprint", str),
            unigrams=unigrams,
        )
        for key in ("tokens", "sentences", "documents"):
            if reader.count(index, key) != getattr(opened, f"num_{key}"):
                raise reader.damaged(f"has {key}={index[key]}, but its shards hold {getattr(opened, f'num_{key}')}")
        if (unigrams < 0).any() or int(unigrams.sum()) != opened.num_tokens:
            raise UserError(f"{reader.folder / UNIGRAMS} does not sum to {opened.num_tokens}; prepare the shards again")
        return opened

    @classmethod
    def _shard(
        cls, reader: IndexReader, entry: Any, number: int, dtype: np.dtype[Any], vocab_size: int, verify: bool
    ) -> Shard:
        return _open_shard(reader, entry, number, dtype, vocab_size, verify)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.folder,)

    @property
    def vocab_size(self) -> int:
        """Return the number of ids; all tokens are below it."""
        return len(self.vocabulary)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in all shards."""
        return sum(int(shard.sentence_offsets[-1]) for shard in self.shards)

    @property
    def num_sentences(self) -> int:
        """Return the number of sentences in all shards."""
        return sum(len(shard.sentence_offsets) - 1 for shard in self.shards)

    @property
    def num_documents(self) -> int:
        """Return the number of documents in all shards."""
        return sum(len(shard.document_offsets) - 1 for shard in self.shards)

    def document_ranges(self) -> NDArray[np.int64]:
        """Return the first and last (exclusive) sentence of each document, over all shards: int64 (documents, 2)."""
        ranges = []
        base = 0
        for shard in self.shards:
            offsets = shard.document_offsets
            ranges.append(np.stack([offsets[:-1], offsets[1:]], axis=1) + base)
            base += len(shard.sentence_offsets) - 1
        return np.ascontiguousarray(np.concatenate(ranges), dtype=np.int64)

    def token_ranges(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token of each document and its number of tokens, two int64 (documents,).

        `documents` int64 (documents, 2) are ranges of sentences, as `document_ranges` returns them, in any order.
        """
        begins, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        sentence = token = 0
        for shard in self.shards:
            offsets = shard.sentence_offsets
            rows = (documents[:, 0] >= sentence) & (documents[:, 0] < sentence + len(offsets) - 1)
            first, last = (offsets[documents[rows, column] - sentence] for column in (0, 1))
            begins[rows], lengths[rows] = first + token, last - first
            sentence, token = sentence + len(offsets) - 1, token + int(offsets[-1])
        return begins, lengths

    def count(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each id occurs in documents, int64 (vocab_size,); `documents` as in `token_ranges`."""
        return self.corpus.count(documents, self.vocab_size)

    def loaded(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> _C.TokenCorpus:
        """Return a corpus that holds runs of tokens; `begins` and `lengths` int64 (runs,) are their first tokens and
        their numbers of tokens."""
        return self.corpus

    def read_ahead(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Begin to fetch runs of tokens that `loaded` will be called for, where they are in another place; `begins` and
        `lengths` int64 (runs,)."""

    def sentence(self, number: int) -> NDArray[Any]:
        """Return the token ids of one sentence, numbered over all shards: uint16 or uint32 (tokens,).

        Raises IndexError for a sentence that the corpus does not have.
        """
        for shard in self.shards:
            count = len(shard.sentence_offsets) - 1
            if 0 <= number < count:
                return shard.tokens[shard.sentence_offsets[number] : shard.sentence_offsets[number + 1]]
            number -= count
        raise IndexError(f"the corpus has {self.num_sentences} sentences")


def _reopen(folder: Path) -> TokenShards:
    return TokenShards.open(folder, verify=False)


def read_vocabulary(path: Path, vocab_size: int) -> tuple[str, ...]:
    """Return the tokens of a vocabulary file of shards, in the order of their ids. Raises UserError."""
    return (_read_json_vocabulary if path.name == JSON_VOCABULARY else _read_lines)(path, vocab_size)


def _read_lines(path: Path, vocab_size: int) -> tuple[str, ...]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {error.start}; prepare the shards again") from None
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) != vocab_size:
        raise UserError(f"{path} has {len(lines)} lines, not vocab_size={vocab_size}; prepare the shards again")
    return tuple(line.rstrip("\r") for line in lines)


def _read_json_vocabulary(path: Path, vocab_size: int) -> tuple[str, ...]:
    try:
        tokens = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); prepare the shards again") from None
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens) or len(tokens) != vocab_size:
        raise UserError(f"{path} is not a list of vocab_size={vocab_size} tokens; prepare the shards again")
    return tuple(tokens)


def shard_counts(reader: IndexReader, entry: Any) -> dict[str, int]:
    """Return the numbers of tokens, sentences and documents of a shard from its entry. Raises UserError."""
    return {kind: reader.count(entry, kind) for kind in ("tokens", "sentences", "documents")}


def shard_file_bytes(kind: str, counts: Mapping[str, int], dtype: np.dtype[Any]) -> int:
    """Return the size of one of a shard's files."""
    return counts[kind] * dtype.itemsize if kind == "tokens" else (counts[kind] + 1) * OFFSET_DTYPE.itemsize


def _open_shard(
    reader: IndexReader, entry: Any, number: int, dtype: np.dtype[Any], vocab_size: int, verify: bool
) -> Shard:
    counts = shard_counts(reader, entry)
    files = reader.get(entry, "files", dict)
    paths = {
        kind: reader.file(files, kind, name, shard_file_bytes(kind, counts, dtype), verify)
        for kind, name in shard_files(number).items()
    }
    tokens = mapped(paths["tokens"], dtype)
    sentences, documents = open_offsets(paths, counts)
    if verify:
        bad = _C.find_bad_token(tokens, vocab_size)
        if bad >= 0:
            raise UserError(
                f"{paths['tokens']}: token {bad} has id {tokens[bad]}, outside the vocabulary of {vocab_size};"
                " prepare the shards again with the right tokenizer"
            )
    return Shard(tokens, sentences, documents)


def mapped(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file into memory, as numbers (n,) of a dtype: a plain view, without np.memmap's overhead at every slice."""
    return np.asarray(np.memmap(path, dtype, mode="r"))


def open_offsets(paths: Mapping[str, Path], counts: Mapping[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Map the offsets of sentences, int64 (sentences + 1,), and of documents, int64 (documents + 1,).

    Raises UserError unless they rise within their bounds.
    """
    sentences, documents = (mapped(paths[kind], OFFSET_DTYPE) for kind in ("sentences", "documents"))
    for kind, offsets, total in (
        ("sentences", sentences, counts["tokens"]),
        ("documents", documents, counts["sentences"]),
    ):
        bad = _C.find_bad_offset(offsets, total)
        if bad >= 0:
            raise UserError(
                f"{paths[kind]}: offset {bad} is {offsets[bad]}, but offsets must rise from 0 to {total};"
                " prepare the shards again"
            )
    return sentences, documents
