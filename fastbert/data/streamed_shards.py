"""Token shards behind a URL: their small files are downloaded once, their tokens streamed as batches need them.

The cache folder has a folder per corpus, named by the SHA-256 of its index, which all processes of a machine share:

    <cache>/<index>/files/    index.json, the tokenizer's files, unigrams, and per shard offsets, continuation bits and
                              checksums, each verified; about a fifth of the size of the tokens
    <cache>/<index>/          the blocks of tokens, in `fastbert.data.block_cache`'s two files

Batches are those of a local copy of the shards, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.block_cache import BlockCache
from fastbert.data.block_files import BLOCK_BYTES, CHECKSUM_DTYPE, block_file_names, num_blocks
from fastbert.data.shards import (
    INDEX,
    OFFSET_DTYPE,
    SAMPLE,
    UNIGRAMS,
    IndexReader,
    ListedFile,
    Shard,
    TokenShards,
    mapped,
    open_offsets,
    shard_counts,
    shard_files,
    token_dtype,
)
from fastbert.data.token_stream import StreamStats, TokenFile, TokenStream
from fastbert.errors import UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.checksums import sha256
from fastbert.io.locations import Location, is_remote, local_path
from fastbert.io.locking import awaited_folder
from fastbert.io.remote_files import RemoteFolder

PATIENCE, OPENING_PATIENCE = 300.0, 10.0  # seconds; the address of the first read may be wrong
LEAST_BLOCKS = 256
DOWNLOADS = 8  # files at a time
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_COUNTED = 1 << 22  # tokens in memory while they are counted


def default_cache() -> Path:
    """Return the folder of the cache: fastbert/shards in $XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fastbert" / "shards"


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The cache of shards behind a URL; local shards ignore it."""

    cache_dir: Path | None = None
    """Folder of the cache; None: `default_cache`."""
    cache_bytes: int = 10**10
    """Most bytes of one corpus in the cache."""
    patience: float | None = None
    """Seconds for which a failing read is repeated; None: 300, and 10 for the first one."""

    @property
    def opening_patience(self) -> float:
        """Return the seconds for which the first read of a URL is repeated."""
        return OPENING_PATIENCE if self.patience is None else self.patience


def open_shards(
    location: Location,
    options: StreamOptions | None = None,
    *,
    verify: bool = True,
    on_stage: Callable[[str, float], Callable[[float], None]] = lambda name, size: lambda done: None,
) -> TokenShards:
    """Open the token shards of a local folder or a URL.

    `verify` as in `TokenShards.open`; blocks of streamed tokens are verified when they are read. `on_stage` is called
    with the name of a longer stage and its bytes, and returns a function to call with the bytes done.

    Raises UserError, which names the file or URL, the value and the cure.
    """
    if not is_remote(location):
        return TokenShards.open(local_path(location), verify=verify)
    return StreamedShards.stream(os.fspath(location), options or StreamOptions(), verify=verify, on_stage=on_stage)


def open_index(location: Location, options: StreamOptions | None = None) -> IndexReader:
    """Read the index of token shards. Raises UserError for a location that holds none."""
    if not is_remote(location):
        return IndexReader(local_path(location))
    remote = RemoteFolder(os.fspath(location))
    return IndexReader(Path(), _index_of(remote, options or StreamOptions()), remote.address(INDEX))


def tokenizer_folder(location: Location, options: StreamOptions | None = None) -> Path:
    """Return a local folder with the tokenizer of token shards; that of a URL is downloaded. Raises UserError."""
    if not is_remote(location):
        return local_path(location)
    options = options or StreamOptions()
    remote, reader, _ = _open_remote(os.fspath(location), options)
    with _writing(reader.folder):
        _download(remote, reader.folder, _tokenizer_files(reader), True, lambda name, size: lambda done: None)
    return reader.folder


class StreamedShards(TokenShards):
    """Token shards behind a URL. `folder` is the local copy of all files but those of tokens, and `unigrams`, int64
    (vocab_size,), holds the count of each id."""

    is_local: ClassVar[bool] = False

    @classmethod
    def stream(
        cls,
        url: str,
        options: StreamOptions,
        *,
        verify: bool = True,
        on_stage: Callable[[str, float], Callable[[float], None]] = lambda name, size: lambda done: None,
    ) -> StreamedShards:
        """Open shards behind a URL, as `open_shards` does. Raises UserError."""
        remote, reader, index = _open_remote(url, options)
        files = _side_files(reader)
        dtype = token_dtype(reader.count(reader.content, "vocab_size"))
        limit = _block_limit(reader, options.cache_bytes, sum(file.bytes for file in files), dtype)
        remote.check_ranges(INDEX, len(index), patience=options.opening_patience)
        with _writing(reader.folder):
            _download(remote, reader.folder, files, verify, on_stage)
            write_atomic(reader.folder / INDEX, index.decode())
        shards = cls._read(reader, verify=False)
        shards.url, shards.options = remote.url, options
        token_files = [
            TokenFile(
                shard_files(number)["tokens"],
                int(shard.sentence_offsets[-1]),
                mapped(reader.folder / block_file_names(number)["checksums"], CHECKSUM_DTYPE),
            )
            for number, shard in enumerate(shards.shards)
        ]
        blocks = sum(num_blocks(file.tokens, dtype.itemsize) for file in token_files)
        cache = BlockCache(reader.folder.parent, blocks=blocks, block_bytes=BLOCK_BYTES, limit=limit)
        shards.tokens = TokenStream(remote, token_files, dtype, shards.vocab_size, cache)
        return shards

    url: str
    options: StreamOptions
    tokens: TokenStream

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.url, self.options)

    @property
    def stats(self) -> StreamStats:
        """Return what has been fetched so far, and how long was waited for it."""
        return replace(self.tokens.stats)

    @property
    def retries(self) -> int:
        """Return how many reads failed and were repeated."""
        return self.tokens.remote.retries

    def described(self, window: int | None) -> str:
        """Return in a line how the corpus is streamed, if `window` tokens are shuffled at a time (None: all)."""
        cache, size = self.tokens.cache, self.num_tokens * self.tokens.dtype.itemsize
        held = cache.slots * cache.block_bytes
        share = "all of them" if cache.holds_all else f"{held / 1e9:.3g} GB of them"
        line = f"{self.url}: {size / 1e9:.3g} GB of tokens are streamed; {cache.folder} holds {share}"
        if cache.holds_all or (window is not None and window * self.tokens.dtype.itemsize <= held):
            return line
        return f"{line}, and other samples are fetched again: raise --cache-size, or lower --shuffle-window"

    def described_stats(self) -> str:
        """Return in a line what has been fetched."""
        stats, retries = self.stats, f", {self.retries:,} tries repeated" if self.retries else ""
        damaged = f", {stats.damaged_blocks:,} damaged blocks fetched again" if stats.damaged_blocks else ""
        return (
            f"{self.url}: {stats.fetched_bytes / 1e6:,.1f} MB in {stats.requests:,} requests{retries}{damaged};"
            f" {stats.cached_blocks:,} blocks from the cache; waited {stats.seconds_waited:.1f} s"
        )

    def loaded(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> _C.TokenCorpus:
        """Fetch runs of tokens, and return a corpus that holds these alone; `begins` and `lengths` int64 (runs,)."""
        return _C.TokenCorpus.runs(*self.tokens.gather(begins, lengths)) if lengths.any() else self.corpus

    def read_ahead(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Begin to fetch runs of tokens that `loaded` will be called for; `begins` and `lengths` int64 (runs,)."""
        self.tokens.read_ahead(begins, lengths)

    def count(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each id occurs in documents, int64 (vocab_size,); their tokens are fetched."""
        counts = np.zeros(self.vocab_size, np.int64)
        begins, lengths = self.token_ranges(documents)
        slabs = list(_slabs(lengths))
        for rows, following in zip(slabs, [*slabs[1:], slice(0, 0)], strict=True):
            self.tokens.read_ahead(begins[following], lengths[following])
            counts += np.bincount(self.tokens.gather(begins[rows], lengths[rows])[2], minlength=self.vocab_size)
        return counts

    def sentence(self, number: int) -> NDArray[Any]:
        """Return the token ids of one sentence, numbered over all shards: uint16 or uint32 (tokens,).

        Raises IndexError for a sentence that the corpus does not have.
        """
        if not 0 <= number < self.num_sentences:
            raise IndexError(f"the corpus has {self.num_sentences} sentences")
        return self.tokens.gather(*self.token_ranges(np.array([[number, number + 1]], np.int64)))[2]

    def _corpus(self) -> _C.TokenCorpus:
        return _C.TokenCorpus.planned(
            [
                (int(shard.sentence_offsets[-1]), shard.sentence_offsets, bits)
                for shard, bits in zip(self.shards, self._continuation_bits(), strict=True)
            ]
        )

    def _continuation_bits(self) -> list[NDArray[np.uint8]]:
        names = (block_file_names(number)["continuations"] for number in range(len(self.shards)))
        return [mapped(self.folder / name, np.dtype(np.uint8)) for name in names]

    @classmethod
    def _shard(
        cls, reader: IndexReader, entry: Any, number: int, dtype: np.dtype[Any], vocab_size: int, verify: bool
    ) -> Shard:
        paths = {kind: reader.folder / name for kind, name in shard_files(number).items()}
        return Shard(np.empty(0, dtype), *open_offsets(paths, shard_counts(reader, entry)))


def _reopen(url: str, options: StreamOptions) -> StreamedShards:
    return StreamedShards.stream(url, options, verify=False)


def _index_of(remote: RemoteFolder, options: StreamOptions) -> bytes:
    try:
        return remote.read(INDEX, patience=options.opening_patience)
    except UserError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise UserError(
                f"{remote.url} holds no token shards: there is no {INDEX}; check the address, or make them with"
                " `fastbert prepare` and copy the folder there"
            ) from None
        raise


def _open_remote(url: str, options: StreamOptions) -> tuple[RemoteFolder, IndexReader, bytes]:
    """Return the folder of a URL, its index with the local folder of its small files, and the content of the index."""
    remote = RemoteFolder(url, patience=PATIENCE if options.patience is None else options.patience)
    index = _index_of(remote, options)
    folder = (options.cache_dir or default_cache()) / hashlib.sha256(index).hexdigest() / "files"
    reader = IndexReader(folder, index, remote.address(INDEX))
    reader.check_format()
    if "block_bytes" not in reader.content:
        raise UserError(
            f"{reader.path} has no checksums of blocks, which streaming needs: prepare the shards again with this"
            " fastbert, or copy the folder and give --data the copy"
        )
    if reader.count(reader.content, "block_bytes") != BLOCK_BYTES:
        size = reader.content["block_bytes"]
        raise UserError(f"{reader.path} has block_bytes={size}, not {BLOCK_BYTES}; update fastbert")
    return remote, reader, index


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Lock a folder of the cache. Raises UserError where it cannot be written."""
    try:
        with awaited_folder(folder):
            yield
    except OSError as error:
        raise UserError(
            f"{folder}: the cache cannot be written there ({error.strerror or error}); free some space, or name another"
            " --cache-dir"
        ) from None


def _tokenizer_files(reader: IndexReader) -> list[ListedFile]:
    """Return the files of the tokenizer. Raises UserError for names that are none of plain files."""
    files = []
    for entry in reader.get(reader.content, "tokenizer", list):
        name = reader.get(entry, "name", str)
        if not _PLAIN_NAME.fullmatch(name) or name == INDEX:
            raise reader.damaged(f"lists the file {name[:80]!r} of the tokenizer, which is no plain file name")
        files.append(reader.listed({name: entry}, name, name, None))
    return files


def _side_files(reader: IndexReader) -> list[ListedFile]:
    """Return the files to download: all but those of tokens. Raises UserError for an index that lists others."""
    index, entries = reader.content, reader.get(reader.content, "shards", list)
    vocab_size = reader.count(index, "vocab_size")
    files = [reader.listed(index, "unigrams", UNIGRAMS, 8 * vocab_size), *_tokenizer_files(reader)]
    if "sample" in index:
        files.append(reader.listed(reader.get(index, "sample", dict), "file", SAMPLE, None, smallest=0))
    itemsize = token_dtype(vocab_size).itemsize
    for number, entry in enumerate(entries):
        counts, listed = shard_counts(reader, entry), reader.get(entry, "files", dict)
        names = shard_files(number) | block_file_names(number)
        sizes = {
            "sentences": (counts["sentences"] + 1) * OFFSET_DTYPE.itemsize,
            "documents": (counts["documents"] + 1) * OFFSET_DTYPE.itemsize,
            "continuations": -(-counts["tokens"] // 8),
            "checksums": num_blocks(counts["tokens"], itemsize) * CHECKSUM_DTYPE.itemsize,
        }
        files += [reader.listed(listed, kind, names[kind], size) for kind, size in sizes.items()]
    return files


def _block_limit(reader: IndexReader, cache_bytes: int, side_bytes: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes that remain for blocks. Raises UserError if they are too few."""
    tokens = reader.count(reader.content, "tokens") * dtype.itemsize
    least = side_bytes + min(LEAST_BLOCKS * BLOCK_BYTES, tokens)
    if cache_bytes < least:
        raise UserError(
            f"--cache-size {cache_bytes / 1e9:g} is too small for {reader.path}: the files that are always kept take"
            f" {side_bytes / 1e9:.3g} GB; give at least {least / 1e9 + 0.001:.3f}"
        )
    return cache_bytes - side_bytes


def _download(
    remote: RemoteFolder,
    folder: Path,
    files: Sequence[ListedFile],
    verify: bool,
    on_stage: Callable[[str, float], Callable[[float], None]],
) -> None:
    """Bring the files that are missing, or with `verify` damaged, to a local folder."""
    absent = [file for file in files if not _is_whole(folder / file.name, file, verify)]
    if not absent:
        return
    report, lock = on_stage("downloading", sum(file.bytes for file in absent)), threading.Lock()
    done: dict[str, int] = {}

    def download(file: ListedFile) -> None:
        def progress(size: int) -> None:
            with lock:
                done[file.name] = size
                report(sum(done.values()))

        remote.download(file.name, file.bytes, file.sha256, folder / file.name, progress)

    with ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="fastbert-download") as pool:
        futures = [pool.submit(download, file) for file in absent]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()


def _is_whole(path: Path, file: ListedFile, verify: bool) -> bool:
    if not path.is_file() or path.stat().st_size != file.bytes:
        return False
    return not verify or sha256(path) == file.sha256


def _slabs(lengths: NDArray[np.int64]) -> Iterator[slice]:
    """Yield the rows of consecutive runs that together have at most `_COUNTED` tokens, or of a longer one."""
    begin, tokens = 0, 0
    for row, length in enumerate(lengths.tolist()):
        if tokens and tokens + length > _COUNTED:
            yield slice(begin, row)
            begin, tokens = row, 0
        tokens += length
    yield slice(begin, len(lengths))
