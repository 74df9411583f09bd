"""Tokenize a corpus into token shards, in bounded memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert.data.block_files import BLOCK_BYTES, write_block_files
from fastbert.data.continuations import continuation_flags
from fastbert.data.corpus import Corpus
from fastbert.data.shards import (
    FORMAT,
    INDEX,
    JSON_VOCABULARY,
    OFFSET_DTYPE,
    SPECIALS,
    UNIGRAMS,
    VERSION,
    VOCABULARY,
    HashedFile,
    TokenShards,
    describe,
    read_vocabulary,
    shard_files,
    token_dtype,
)
from fastbert.errors import CorpusError, UserError
from fastbert.io.atomic_write import sync, write_synced
from fastbert.io.folder_exchange import recover_folder, remove, replace_folder
from fastbert.io.locking import locked_folder
from fastbert.tokenizers.tokenizer import Tokenizer

_BATCH_CHARS = 1 << 22
_BATCH_SENTENCES = 1 << 16


def prepare(
    documents: Corpus | Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = 1 << 28,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> TokenShards:
    """Tokenize documents into the folder `out`, in bounded memory, and open it.

    Sentences without tokens and documents without sentences are dropped. A shard is closed with the document that
    reaches `shard_tokens`. `progress` is called with the bytes read (of the corpus files on disk; of UTF-8 text if
    `documents` is not a Corpus) and the number of sentences written. The folder is written beside `out` under a
    temporary name, flushed to disk and renamed, or exchanged with the folder that it replaces, so `out` is always
    complete.

    Raises:
        UserError: `out` exists, unless `overwrite` is set and it holds token shards; it cannot be written.
        CorpusError: there is no text.
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
            for left in partial.iterdir():  # by a killed process
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
    """Write one shard: tokens, offsets of sentences, offsets of documents."""

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
    """Collect sentences into batches for the tokenizer and distribute the ids over shards."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, shard_tokens: int) -> None:
        self.folder = folder
        self.tokenizer = tokenizer
        self.shard_tokens = shard_tokens
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.unigrams = np.zeros(tokenizer.vocab_size, np.int64)
        self.shards: list[dict[str, Any]] = []
        self.writer: _ShardWriter | None = None
        self.open_sentences = 0  # of the current document
        self.sentences = 0
        self._texts: list[str] = []
        self._chars = 0
        self._document_ends: list[int] = []  # indices into the batch's texts

    def add_document(self, document: Sequence[str]) -> None:
        for start in range(0, len(document), _BATCH_SENTENCES):
            sentences = document[start : start + _BATCH_SENTENCES]
            self._texts += sentences
            self._chars += sum(map(len, sentences))
            if self._chars >= _BATCH_CHARS or len(self._texts) >= _BATCH_SENTENCES:
                self._flush()
        self._document_ends.append(len(self._texts))

    def _flush(self) -> None:
        ids, offsets = np.zeros(0, np.int32), np.zeros(1, np.int64)
        if self._texts:
            ids, offsets = self.tokenizer.encode_ragged(self._texts)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.unigrams):
            raise ValueError(f"the tokenizer returned ids outside its vocabulary of {len(self.unigrams)}")
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


def _special_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """Return the ids of `SPECIALS`; a tokenizer without [CLS] and [SEP] has tokens for the begin and end of texts."""

    def first(*roles: str) -> int | None:
        ids = (getattr(tokenizer, f"{role}_token_id", None) for role in roles)
        return next((int(token_id) for token_id in ids if token_id is not None), None)

    ids = {
        "pad": first("pad", "sep", "eos"),
        "unk": first("unk", "pad", "sep", "eos"),
        "cls": first("cls", "bos", "eos"),
        "sep": first("sep", "eos"),
        "mask": first("mask"),
    }
    missing = next((name for name in SPECIALS[:-1] if ids[name] is None), None)
    if missing is not None:
        raise UserError(f"the tokenizer has no {missing}_token, which token shards need; name one in its files")
    return ids


def _write_shards(
    folder: Path,
    documents: Corpus | Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    shard_tokens: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    added = getattr(tokenizer, "added_tokens_encoder", {})
    outside = {index: token for token, index in added.items() if index >= tokenizer.vocab_size}
    if outside:
        raise UserError(
            f"the tokenizer has added tokens after its vocabulary ({outside[min(outside)]!r}, id {min(outside)}), which"
            " shards cannot hold; put them at the end of the vocabulary"
        )
    special_ids = _special_ids(tokenizer)
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
    vocabulary = folder / VOCABULARY
    if not vocabulary.is_file():
        vocabulary = folder / JSON_VOCABULARY
        tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        write_synced(vocabulary, json.dumps(tokens, ensure_ascii=False))
    known = {name: token_id for name, token_id in special_ids.items() if token_id is not None}
    flags = continuation_flags(read_vocabulary(vocabulary, tokenizer.vocab_size), known)
    for number, shard in enumerate(preparation.shards):
        shard["files"] |= write_block_files(folder, number, preparation.dtype, flags)
    saved = sorted(path for path in folder.iterdir() if not path.name.endswith(".bin"))
    for path in saved:
        sync(path)  # the others are on the disk already
    index = {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "special_ids": special_ids,
        "dtype": preparation.dtype.name,
        "tokens": sum(shard["tokens"] for shard in preparation.shards),
        "sentences": sum(shard["sentences"] for shard in preparation.shards),
        "documents": sum(shard["documents"] for shard in preparation.shards),
        "unigrams": unigrams.close(),
        "vocabulary": describe(vocabulary),
        "tokenizer": [describe(path) for path in saved if path.is_file()],
        "block_bytes": BLOCK_BYTES,
        "shards": preparation.shards,
    }
    write_synced(folder / INDEX, json.dumps(index, indent=1))
