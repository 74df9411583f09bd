"""Token shards: a tokenized corpus as flat files that are mapped into memory, never loaded.

`prepare` writes a folder of them, `TokenShards.open` maps one; what is read is checked before it is believed. The files
are described in `fastbert.data.shard_format`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.corpus import Corpus
from fastbert.data.shard_format import (
    FORMAT,
    INDEX,
    OFFSET_DTYPE,
    UNIGRAMS,
    VERSION,
    VOCABULARY,
    HashedFile,
    IndexReader,
    describe,
    shard_files,
    token_dtype,
)
from fastbert.errors import CorpusError, UserError
from fastbert.io.atomic_write import sync, write_synced
from fastbert.io.folder_exchange import recover_folder, remove, replace_folder
from fastbert.io.locking import locked_folder

_BATCH_CHARS = 1 << 22
_BATCH_SENTENCES = 1 << 16
_SPECIALS = ("pad", "unk", "cls", "sep", "mask")


class ShardTokenizer(Protocol):
    """What `prepare` asks of a tokenizer; `WordPieceTokenizer` has it."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def pad_token_id(self) -> int: ...
    @property
    def unk_token_id(self) -> int: ...
    @property
    def cls_token_id(self) -> int: ...
    @property
    def sep_token_id(self) -> int: ...
    @property
    def mask_token_id(self) -> int: ...
    def encode_ragged(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The ids of all texts end to end, and where each begins."""

    def save_pretrained(self, folder: Any) -> Any:
        """Writes vocab.txt and tokenizer_config.json."""


# Writing


def prepare(
    documents: Corpus | Iterable[Sequence[str]],
    tokenizer: ShardTokenizer,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = 1 << 28,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TokenShards:
    """Tokenize documents into the folder `out`, in bounded memory, and open it.

    Sentences without tokens and documents without sentences are dropped. A shard is closed with the document that
    reaches `shard_tokens`. `progress` is called with the bytes read (of the corpus files on disk; of UTF-8 text where
    `documents` is not a Corpus) and the sentences written so far. The folder is written beside `out` under a temporary
    name, flushed to disk and renamed, or exchanged with the folder that it replaces, so `out` is always whole. Raises
    UserError if `out` exists, unless `overwrite` is set and it holds token shards; CorpusError if there is no text.
    """
    out = Path(os.path.realpath(out))
    recover_folder(out)
    _check_output(out, overwrite)
    if shard_tokens < 1:
        raise UserError(f"shard_tokens={shard_tokens} must be positive")
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(partial, "wait for it, or choose another output"):
            for left in partial.iterdir():  # by a process that was killed
                remove(left)
            try:
                _write_shards(partial, documents, tokenizer, shard_tokens, progress)
                sync(partial)
                replace_folder(partial, out)
                sync(out.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        cure = "free some space or" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        what = f"cannot write {out}: {error.strerror or error}; {cure} choose another folder (nothing was kept)"
        raise UserError(what.replace("  ", " ")) from None
    return TokenShards.open(out, verify=False)


def _check_output(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} exists and is not a folder; choose another output")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise UserError(f"{out} already exists; choose another output, or overwrite it")
    if not (out / INDEX).is_file() or FORMAT.encode() not in (out / INDEX).read_bytes()[:4096]:
        raise UserError(f"{out} is not a folder of token shards, so it is not overwritten; choose another output")


class _ShardWriter:
    """One shard being written: tokens, where sentences begin, where documents begin."""

    def __init__(self, folder: Path, number: int, dtype: np.dtype[Any]) -> None:
        self.files = {kind: HashedFile(folder / name) for kind, name in shard_files(number).items()}
        self.dtype = dtype
        self.tokens = self.sentences = self.documents = 0
        for kind in ("sentences", "documents"):
            self.files[kind].write(np.zeros(1, OFFSET_DTYPE))

    def add_sentences(self, ids: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        self.files["tokens"].write(ids.astype(self.dtype))
        self.files["sentences"].write((self.tokens + lengths.cumsum()).astype(OFFSET_DTYPE))
        self.tokens += len(ids)
        self.sentences += len(lengths)

    def end_document(self) -> None:
        self.files["documents"].write(np.array([self.sentences], OFFSET_DTYPE))
        self.documents += 1

    def close(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "sentences": self.sentences,
            "documents": self.documents,
            "files": {kind: file.close() for kind, file in self.files.items()},
        }


class _Preparation:
    """Gathers sentences into batches for the tokenizer and spreads the ids over shards."""

    def __init__(self, folder: Path, tokenizer: ShardTokenizer, shard_tokens: int) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.shard_tokens = shard_tokens
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.unigrams = np.zeros(tokenizer.vocab_size, np.int64)
        self.shards: list[dict[str, Any]] = []
        self.writer: _ShardWriter | None = None
        self.open_sentences = 0  # of the document that is being written
        self.sentences = 0
        self._texts: list[str] = []
        self._chars = 0
        self._document_ends: list[int] = []  # in texts of the batch

    def add_document(self, document: Sequence[str]) -> None:
        for start in range(0, len(document), _BATCH_SENTENCES):
            part = document[start : start + _BATCH_SENTENCES]
            self._texts += part
            self._chars += sum(map(len, part))
            if self._chars >= _BATCH_CHARS or len(self._texts) >= _BATCH_SENTENCES:
                self._flush()
        self._document_ends.append(len(self._texts))

    def _flush(self) -> None:
        ids, offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
        if self._texts:
            ids, offsets = self.tokenizer.encode_ragged(self._texts)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.unigrams):
            raise ValueError(f"the tokenizer made ids outside its vocabulary of {len(self.unigrams)}")
        self.unigrams += np.bincount(ids, minlength=len(self.unigrams))
        start = 0
        for end in self._document_ends:
            self._write_sentences(ids, offsets[start : end + 1])
            self._end_document()
            start = end
        self._write_sentences(ids, offsets[start:])
        self._texts, self._chars, self._document_ends = [], 0, []

    def _write_sentences(self, ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        lengths = np.diff(offsets)
        lengths = lengths[lengths > 0]
        if not len(lengths):
            return
        if self.writer is None:
            self.writer = _ShardWriter(self.folder, len(self.shards), self.dtype)
        self.writer.add_sentences(ids[offsets[0] : offsets[-1]], lengths)
        self.open_sentences += len(lengths)
        self.sentences += len(lengths)

    def _end_document(self) -> None:
        if not self.open_sentences or self.writer is None:
            return
        self.writer.end_document()
        self.open_sentences = 0
        if self.writer.tokens >= self.shard_tokens:
            self._close_shard()

    def _close_shard(self) -> None:
        if self.writer is not None:
            self.shards.append(self.writer.close())
            self.writer = None

    def finish(self) -> None:
        self._flush()
        self._close_shard()
        if not self.shards:
            raise CorpusError("the corpus is empty: no sentence of it has a token")


def _added_tokens(tokenizer: ShardTokenizer) -> dict[str, int]:
    """The tokens that the tokenizer recognises as a whole, if it tells."""
    return getattr(tokenizer, "added_tokens_encoder", {})


def _write_shards(
    folder: Path,
    documents: Corpus | Iterable[Sequence[str]],
    tokenizer: ShardTokenizer,
    shard_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    behind = {index: token for token, index in _added_tokens(tokenizer).items() if index >= tokenizer.vocab_size}
    if behind:
        raise UserError(
            f"the tokenizer has added tokens behind its vocabulary ({behind[min(behind)]!r}, id {min(behind)}), which"
            " shards cannot hold; put them at the end of vocab.txt"
        )
    preparation = _Preparation(folder, tokenizer, shard_tokens)
    bytes_read = 0

    def record(position: int) -> None:
        nonlocal bytes_read
        bytes_read = position

    reported = (0, 0)
    for document in documents.documents(record) if isinstance(documents, Corpus) else documents:
        if isinstance(document, str):
            raise UserError("a document must be a list of sentences, not a string; split it with split_sentences")
        if not isinstance(documents, Corpus):
            bytes_read += sum(len(sentence.encode("utf-8", "replace")) for sentence in document)
        preparation.add_document(document)
        if progress is not None and reported != (bytes_read, preparation.sentences):
            reported = (bytes_read, preparation.sentences)
            progress(*reported)
    preparation.finish()
    if progress is not None:
        progress(bytes_read, preparation.sentences)

    unigrams = HashedFile(folder / UNIGRAMS)
    unigrams.write(preparation.unigrams.astype(OFFSET_DTYPE))
    tokenizer.save_pretrained(folder)
    for saved in [*sorted(folder.glob("*.json")), folder / VOCABULARY]:
        sync(saved)
    index = {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "special_ids": {name: getattr(tokenizer, f"{name}_token_id") for name in _SPECIALS},
        "dtype": preparation.dtype.name,
        "tokens": sum(shard["tokens"] for shard in preparation.shards),
        "sentences": sum(shard["sentences"] for shard in preparation.shards),
        "documents": sum(shard["documents"] for shard in preparation.shards),
        "unigrams": unigrams.close(),
        "vocabulary": describe(folder / VOCABULARY),
        "shards": preparation.shards,
    }
    write_synced(folder / INDEX, json.dumps(index, indent=1))


# Reading


@dataclass(frozen=True)
class Shard:
    """One shard's arrays, mapped from its files."""

    tokens: NDArray[Any]
    sentence_offsets: NDArray[np.int64]
    document_offsets: NDArray[np.int64]


class TokenShards:
    """A tokenized corpus on disk: `num_documents`, `num_sentences`, `num_tokens`, `vocab_size`, `fingerprint`.

    Pickles as its folder, so that workers map the files for themselves.
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
        self.corpus = _C.TokenCorpus([(shard.tokens, shard.sentence_offsets) for shard in shards])

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> TokenShards:
        """Map the shards of a folder.

        Everything is checked before it is used: the format's version, each file's name and size, that offsets rise
        within their bounds; with `verify` also every checksum and that every token id is in the vocabulary, which reads
        all files once (about 1 GB/s). Raises UserError, which names the file, the value and the cure.
        """
        reader = IndexReader(Path(os.path.abspath(folder)))
        index = reader.content
        if not isinstance(index, dict) or index.get("format") != FORMAT:
            raise reader.damaged(f"does not describe token shards (format {FORMAT!r})")
        version = reader.count(index, "version")
        if version > VERSION:
            raise UserError(f"{reader.path} has format version {version}, newer than {VERSION}; update fastbert")
        vocab_size = reader.count(index, "vocab_size")
        if vocab_size > 1 << 31:
            raise reader.damaged(f"has vocab_size={vocab_size}, which is out of range")
        dtype = token_dtype(vocab_size)
        if reader.get(index, "dtype", str) != dtype.name:
            raise reader.damaged(f"has dtype {str(index['dtype'])[:40]!r}, not {dtype.name!r}")
        specials = reader.get(index, "special_ids", dict)
        special_ids = {name: reader.count(specials, name, smallest=0) for name in _SPECIALS}
        for name, token_id in special_ids.items():
            if token_id >= vocab_size:
                raise reader.damaged(f"has the {name} id {token_id}, outside the vocabulary of {vocab_size}")
        vocabulary = _read_vocabulary(reader.file(index, "vocabulary", VOCABULARY, None, verify=True), vocab_size)
        unigrams = np.fromfile(reader.file(index, "unigrams", UNIGRAMS, 8 * vocab_size, verify=True), OFFSET_DTYPE)
        entries = reader.get(index, "shards", list)
        if not entries:
            raise reader.damaged("lists no shards")
        shards = tuple(_open_shard(reader, entry, i, dtype, vocab_size, verify) for i, entry in enumerate(entries))
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.folder,)

    @property
    def vocab_size(self) -> int:
        """The number of ids; all tokens are below it."""
        return len(self.vocabulary)

    @property
    def num_tokens(self) -> int:
        """The tokens of all shards."""
        return sum(len(shard.tokens) for shard in self.shards)

    @property
    def num_sentences(self) -> int:
        """The sentences of all shards."""
        return sum(len(shard.sentence_offsets) - 1 for shard in self.shards)

    @property
    def num_documents(self) -> int:
        """The documents of all shards."""
        return sum(len(shard.document_offsets) - 1 for shard in self.shards)

    def document_ranges(self) -> NDArray[np.int64]:
        """The first and last (exclusive) sentence of each document, through all shards: int64 (documents, 2)."""
        ranges = []
        base = 0
        for shard in self.shards:
            offsets = shard.document_offsets
            ranges.append(np.stack([offsets[:-1], offsets[1:]], axis=1) + base)
            base += len(shard.sentence_offsets) - 1
        return np.ascontiguousarray(np.concatenate(ranges), dtype=np.int64)

    def sentence(self, number: int) -> NDArray[Any]:
        """The token ids of one sentence, numbered through all shards."""
        for shard in self.shards:
            count = len(shard.sentence_offsets) - 1
            if 0 <= number < count:
                return shard.tokens[shard.sentence_offsets[number] : shard.sentence_offsets[number + 1]]
            number -= count
        raise IndexError(f"the corpus has {self.num_sentences} sentences")


def _reopen(folder: Path) -> TokenShards:
    return TokenShards.open(folder, verify=False)


def _read_vocabulary(path: Path, vocab_size: int) -> tuple[str, ...]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 at byte {error.start}; prepare the shards again") from None
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) != vocab_size:
        raise UserError(f"{path} has {len(lines)} lines, not vocab_size={vocab_size}; prepare the shards again")
    return tuple(line.rstrip("\r") for line in lines)


def _open_shard(
    reader: IndexReader, entry: Any, number: int, dtype: np.dtype[Any], vocab_size: int, verify: bool
) -> Shard:
    counts = {kind: reader.count(entry, kind) for kind in ("tokens", "sentences", "documents")}
    files = reader.get(entry, "files", dict)
    paths = {}
    for kind, name in shard_files(number).items():
        size = counts[kind] * dtype.itemsize if kind == "tokens" else (counts[kind] + 1) * OFFSET_DTYPE.itemsize
        paths[kind] = reader.file(files, kind, name, size, verify)
    # np.asarray: a plain view of the map, without the cost of np.memmap's bookkeeping at every slice.
    tokens = np.asarray(np.memmap(paths["tokens"], dtype, mode="r"))
    sentences, documents = (
        np.asarray(np.memmap(paths[kind], OFFSET_DTYPE, mode="r")) for kind in ("sentences", "documents")
    )
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
    if verify:
        bad = _C.find_bad_token(tokens, vocab_size)
        if bad >= 0:
            raise UserError(
                f"{paths['tokens']}: token {bad} has id {tokens[bad]}, outside the vocabulary of {vocab_size};"
                " prepare the shards again with the vocabulary that is meant"
            )
    return Shard(tokens, sentences, documents)
