"""Tokenize a corpus into token shards, in bounded memory."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.block_files import BLOCK_BYTES, write_block_files
from fastbert.data.continuations import continuation_flags
from fastbert.data.corpus import Corpus
from fastbert.data.dedup import DedupReport, repeats_of
from fastbert.data.dedup_flags import Dedup
from fastbert.data.parallel import map_in_order
from fastbert.data.sentence_reader import sentence_reader
from fastbert.data.sentence_sample import LEAST_TOKENS, SentenceSampler, hash_sentences, repeated_share
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
from fastbert.errors import CorpusError, UserError, require_whole
from fastbert.io.atomic_write import make_folder, sync, write_synced
from fastbert.io.checksums import sealed
from fastbert.io.folder_exchange import recover_folder, remove, replace_folder
from fastbert.io.locking import locked_folder
from fastbert.io.log import logger
from fastbert.tokenizers import call
from fastbert.tokenizers.tokenizer import Tokenizer

_BATCH_BYTES = 1 << 20
MOST_REPEATED = 0.2
"""The share of repeated sentences above which a warning is logged."""


def prepare(
    documents: Corpus | Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    *,
    shard_tokens: int = 1 << 28,
    overwrite: bool = False,
    dedup: Dedup = "off",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TokenShards:
    """Tokenize documents into the folder `out`, in bounded memory, and open it.

    Sentences without tokens and documents without sentences are dropped. A shard is closed with the document that
    reaches `shard_tokens`. With `dedup`, lines, documents or both ("all") that repeat earlier ones are dropped: they
    are found by 64-bit hashes, which take 10 to 20 bytes per different line, and index.json has the counts. `workers`
    threads tokenize (default: the cores of this process); the files do not depend on their number. `progress` is called
    with the bytes read (of the corpus files on disk; of UTF-8 text if `documents` is not a Corpus) and the number of
    sentences written. The folder is written beside `out` under a temporary name, flushed to disk and renamed, or
    exchanged with the folder that it replaces, so `out` is always complete.

    Raises:
        UserError: `out` exists, unless `overwrite` is set and it holds token shards; it cannot be written.
        CorpusError: there is no text.
    """
    out = Path(os.path.realpath(out))
    recover_folder(out)
    _check_output(out, overwrite)
    if shard_tokens < 1:
        raise UserError(f"shard_tokens={shard_tokens} must be positive")
    require_whole("workers", workers, 1, optional=True)
    partial = out.with_name(f".{out.name}.partial")
    try:
        make_folder(out.parent)
        with locked_folder(partial, "wait for it, or choose another output"):
            for left in partial.iterdir():  # by a killed process
                remove(left)
            try:
                threads = call.checked_threads(workers)
                _write_shards(partial, documents, tokenizer, shard_tokens, dedup, threads, progress)
                sync(partial)
                replace_folder(partial, out)
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

    def __init__(self, folder: Path, number: int) -> None:
        self.files = {kind: HashedFile(folder / name) for kind, name in shard_files(number).items()}
        self.tokens = self.sentences = self.documents = 0
        for kind in ("sentences", "documents"):
            self.files[kind].write(np.zeros(1, OFFSET_DTYPE))

    def add(self, ids: NDArray[Any], ends: NDArray[np.int64], document_ends: NDArray[np.int64]) -> None:
        """Add sentences by their ends in `ids`, and ends of documents by the number of sentences before."""
        self.files["tokens"].write(ids)
        self.files["sentences"].write((self.tokens + ends).astype(OFFSET_DTYPE))
        self.files["documents"].write((self.sentences + document_ends).astype(OFFSET_DTYPE))
        self.tokens += len(ids)
        self.sentences += len(ends)
        self.documents += len(document_ends)

    def close(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "sentences": self.sentences,
            "documents": self.documents,
            "files": {kind: file.close() for kind, file in self.files.items()},
        }


@dataclass(frozen=True)
class _TokenizedBatch:
    """The sentences of a batch that have tokens."""

    ids: NDArray[Any]
    """In the dtype of the shards."""
    offsets: NDArray[np.int64]
    """The offset of each sentence in the ids, and the end of the last, int64 (sentences + 1,)."""
    document_ends: NDArray[np.int64]
    """The number of sentences before each end of a document; some documents may have none."""
    unigrams: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    hashed: NDArray[np.int64]
    """The sentences that have hashes."""


class _BatchTokenizer:
    """Tokenize a batch on one thread; all the work that does not depend on other batches."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocab_size = tokenizer.vocab_size
        self.dtype = token_dtype(tokenizer.vocab_size)
        # Another way to encode needs the sentences as strings.
        is_plain = isinstance(tokenizer, Tokenizer) and type(tokenizer).encode_ragged is Tokenizer.encode_ragged
        self._core = tokenizer._core if is_plain else None
        self._tokenizer = tokenizer
        self._separator = _separator(tokenizer) if isinstance(tokenizer, Tokenizer) else ""

    def __call__(self, batch: _C.SentenceBatch) -> _TokenizedBatch:
        if self._core is not None:
            ids, offsets = batch.encode(self._core, 1, self._separator)
        else:
            ids, offsets = self._tokenizer.encode_ragged(self._separated(batch))
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(f"the tokenizer returned ids outside its vocabulary of {self.vocab_size}")
        has_tokens = np.diff(offsets) > 0
        document_ends = np.concatenate([[0], has_tokens.cumsum()])[batch.document_ends]
        offsets = np.concatenate([offsets[:1], offsets[1:][has_tokens]])
        stored = ids.astype(self.dtype)
        unigrams = np.bincount(ids, minlength=self.vocab_size)
        return _TokenizedBatch(stored, offsets, document_ends, unigrams, *hash_sentences(stored, offsets))

    def _separated(self, batch: _C.SentenceBatch) -> list[str]:
        """Return the sentences, those that do not begin a document behind the separator."""
        sentences: list[str] = batch.strings()
        if not self._separator:
            return sentences
        ends, begins, separated = {*batch.document_ends.tolist()}, batch.begins_document, list[str]()
        for i, text in enumerate(sentences):
            begins = begins or i in ends
            separated.append(text if begins or not text else self._separator + text)
            begins = begins and not text  # an empty sentence is dropped
        return separated


def _separator(tokenizer: Tokenizer) -> str:
    """Return what stands between two sentences of a document: the space that byte-level BPE keeps with the word behind
    it, as in running text; other tokenizers split at it, or add it themselves."""
    ids, offsets = tokenizer.encode_ragged(["x x", "x", " x"])
    both, bare, spaced = (ids[begin:end].tolist() for begin, end in pairwise(offsets.tolist()))
    return " " if both == bare + spaced and bare != spaced else ""


class _Preparation:
    """Distribute tokenized batches over shards."""

    def __init__(self, folder: Path, vocab_size: int, shard_tokens: int) -> None:
        self.folder = folder
        self.shard_tokens = shard_tokens
        self.unigrams = np.zeros(vocab_size, np.int64)
        self.sample = SentenceSampler()
        self.shards: list[dict[str, Any]] = []
        self.writer: _ShardWriter | None = None
        self.document_is_open = False
        self.sentences = 0

    def add(self, batch: _TokenizedBatch) -> None:
        self.unigrams += batch.unigrams
        self.sample.add(batch.hashes, batch.hashed + self.sentences)
        self.sentences += len(batch.offsets) - 1
        ends = batch.document_ends
        before = np.concatenate([[-1 if self.document_is_open else 0], ends])[:-1]
        ends = ends[ends > before]  # of documents with tokens
        start = 0  # the first sentence that is not written
        while True:
            written = 0 if self.writer is None else self.writer.tokens
            full = written + batch.offsets[ends] - batch.offsets[start] >= self.shard_tokens
            if not full.any():
                break
            index = int(full.argmax())
            self._write(batch, start, int(ends[index]), ends[: index + 1])
            self._close_shard()
            start, ends = int(ends[index]), ends[index + 1 :]
        self._write(batch, start, len(batch.offsets) - 1, ends)

    def _write(self, batch: _TokenizedBatch, start: int, stop: int, ends: NDArray[np.int64]) -> None:
        """Write the sentences from `start` to `stop`, and the ends of documents among them."""
        if start == stop and not len(ends):
            return
        if self.writer is None:
            self.writer = _ShardWriter(self.folder, len(self.shards))
        first = batch.offsets[start]
        self.writer.add(
            batch.ids[first : batch.offsets[stop]], batch.offsets[start + 1 : stop + 1] - first, ends - start
        )
        self.document_is_open = stop > (ends[-1] if len(ends) else start) or (self.document_is_open and not len(ends))

    def _close_shard(self) -> None:
        if self.writer is not None:
            self.shards.append(self.writer.close())
            self.writer = None

    def finish(self) -> None:
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
    dedup: Dedup,
    workers: int,
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
    tokenize = _BatchTokenizer(tokenizer)
    preparation = _Preparation(folder, tokenizer.vocab_size, shard_tokens)
    repeats = repeats_of(dedup)
    bytes_read = 0

    def record(position: int) -> None:
        nonlocal bytes_read
        bytes_read = position

    if isinstance(documents, Corpus):
        batches = documents.batches(record, repeats=repeats)
    else:
        batches = _batches(documents, record, repeats)
    reported = (0, 0)
    for batch in map_in_order(tokenize, batches, workers):
        preparation.add(batch)
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
        shard["files"] |= write_block_files(folder, number, tokenize.dtype, flags)
    saved = sorted(path for path in folder.iterdir() if not path.name.endswith(".bin"))
    for path in saved:
        sync(path)  # the others are on the disk already
    index = {
        "format": FORMAT,
        "version": VERSION,
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "special_ids": special_ids,
        "dtype": tokenize.dtype.name,
        "tokens": sum(shard["tokens"] for shard in preparation.shards),
        "sentences": sum(shard["sentences"] for shard in preparation.shards),
        "documents": sum(shard["documents"] for shard in preparation.shards),
        "unigrams": unigrams.close(),
        "vocabulary": describe(vocabulary),
        "tokenizer": [describe(path) for path in saved if path.is_file()],
        "block_bytes": BLOCK_BYTES,
        "shards": preparation.shards,
        "sample": preparation.sample.write(folder),
        "repeated_share": round(repeated_share(preparation.sample.rows()["hash"]), 4),
    }
    if repeats is not None:
        index["dedup"] = DedupReport.of(dedup, repeats).to_dict()
    write_synced(folder / INDEX, json.dumps(sealed(index), indent=1))
    if index["repeated_share"] > MOST_REPEATED:
        logger.warning(
            "%.0f %% of the sentences of %d tokens or more repeat an earlier one%s",
            100 * index["repeated_share"],
            LEAST_TOKENS,
            "; --dedup drops lines and documents that repeat" if dedup == "off" else "",
        )


def _batches(
    documents: Iterable[Sequence[str]], record: Callable[[int], None], repeats: _C.Repeats | None
) -> Iterator[_C.SentenceBatch]:
    """Yield the sentences of documents in batches; `record` is called with the bytes of UTF-8 so far."""
    reader = sentence_reader("lines", max_paragraph_chars=0, repeats=repeats)
    done = 0
    for document in documents:
        if isinstance(document, str):
            raise UserError("a document must be a list of sentences, not a string; split it with split_sentences")
        reader.add_document(document)
        record(done + reader.complete_bytes)
        if reader.complete_bytes >= _BATCH_BYTES:
            done += reader.complete_bytes
            yield reader.take()
    yield reader.take()
