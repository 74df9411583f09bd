"""The tokens of shards behind a URL: blocks are fetched as batches need them, verified, and cached.

A block is looked for in memory, then in the cache on disk (`fastbert.data.block_cache`), and else fetched by one of
several threads, together with missing neighbours. Whatever its source, it is used only if its CRC-32C is the one that
was computed when the shards were prepared.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.block_cache import BlockCache
from fastbert.data.block_files import BLOCK_BYTES, num_blocks
from fastbert.errors import UserError
from fastbert.io.checksums import crc32c
from fastbert.io.remote_files import RemoteFolder

THREADS = 32
MEMORY_BLOCKS = 1024
RUN_BLOCKS = 64  # of one request at most
TRIES = 3  # of a block that is damaged


@dataclass(frozen=True)
class TokenFile:
    """The tokens of one shard: name, number, and checksums of its blocks, uint32 (blocks,)."""

    name: str
    tokens: int
    checksums: NDArray[np.uint32]


@dataclass
class StreamStats:
    """What a stream has done so far."""

    seconds_waited: float = 0.0
    """Time for which a caller of `gather` waited for blocks that were fetched."""
    fetched_blocks: int = 0
    fetched_bytes: int = 0
    requests: int = 0
    cached_blocks: int = 0
    """Blocks that were read from the cache on disk."""
    damaged_blocks: int = 0
    """Blocks that were damaged on their way, and fetched again."""


class TokenStream:
    """Tokens of a corpus, by their numbers over all shards. Several threads may call it.

    Args:
        remote: the folder of the shards.
        files: the tokens of each shard.
        dtype: of a stored token, uint16 or uint32.
        vocab_size: all tokens are below it.
        cache: blocks on disk, by their numbers over all shards.
    """

    def __init__(
        self, remote: RemoteFolder, files: Sequence[TokenFile], dtype: np.dtype[Any], vocab_size: int, cache: BlockCache
    ) -> None:
        self.remote = remote
        self.files = files
        self.dtype = dtype
        self.vocab_size = vocab_size
        self.cache = cache
        self.stats: StreamStats = StreamStats()
        blocks = [num_blocks(file.tokens, dtype.itemsize) for file in files]
        self._first_block = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
        self._first_token = np.concatenate([[0], np.cumsum([file.tokens for file in files])]).astype(np.int64)
        self._shard_begins = frozenset(self._first_block.tolist())
        self._memory: OrderedDict[int, bytes] = OrderedDict()
        self._start()

    def gather(
        self, begins: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
        """Return runs of tokens, joined where they overlap: begins and lengths, ascending, int64 (runs,) each, and
        their tokens one after the other, uint16 or uint32.

        `begins` and `lengths` int64 (n,); each run lies in one shard. Raises UserError, which names the URL, for blocks
        that cannot be fetched or are damaged.
        """
        begins, lengths = _joined(begins, lengths)
        shards, firsts, lasts = self._spans(begins, lengths)
        blocks = self._blocks(_numbers(firsts, lasts))
        out = np.empty(int(lengths.sum()), self.dtype)
        target, position = out.view(np.uint8), 0
        itemsize = self.dtype.itemsize
        for begin, length, shard, first, last in zip(begins, lengths, shards, firsts, lasts, strict=True):
            start = (begin - self._first_token[shard]) * itemsize - (first - self._first_block[shard]) * BLOCK_BYTES
            remaining = length * itemsize
            for number in range(first, last + 1):
                part = np.frombuffer(blocks[number], np.uint8)[start : start + remaining]
                target[position : position + len(part)] = part
                position, remaining, start = position + len(part), remaining - len(part), 0
        return begins, lengths, out

    def read_ahead(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Begin to fetch the blocks of runs of tokens that are in no cache, and return at once; `begins` and `lengths`
        int64 (runs,)."""
        self._restart_after_fork()
        _, firsts, lasts = self._spans(*_joined(begins, lengths))
        with self._lock:
            self._submit(
                number
                for number in _numbers(firsts, lasts)
                if number not in self._memory and number not in self._pending and not self.cache.has(number)
            )

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._pending: dict[int, Future[dict[int, bytes]]] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fastbert-stream")

    def _restart_after_fork(self) -> None:
        """Start new threads in a process that was forked: those of its parent are not there."""
        if self._process != os.getpid():
            self.cache.after_fork()
            self._start()

    def _spans(self, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[list[int], list[int], list[int]]:
        """Return the shard, the first and the last block of each run of tokens."""
        shards = np.searchsorted(self._first_token, begins, "right") - 1
        local = begins - self._first_token[shards]
        itemsize, base = self.dtype.itemsize, self._first_block[shards]
        firsts = base + local * itemsize // BLOCK_BYTES
        lasts = base + ((local + lengths) * itemsize - 1) // BLOCK_BYTES
        return shards.tolist(), firsts.tolist(), lasts.tolist()

    def _blocks(self, numbers: list[int]) -> dict[int, bytes]:
        """Return blocks by their numbers, given in ascending order."""
        self._restart_after_fork()
        blocks: dict[int, bytes] = {}
        with self._lock:
            for number in numbers:
                if (data := self._memory.get(number)) is not None:
                    self._memory.move_to_end(number)
                    blocks[number] = data
            pending = {number: self._pending[number] for number in numbers if number in self._pending}
        absent = [number for number in numbers if number not in blocks and number not in pending]
        for number in absent:
            if (data := self._from_disk(number)) is not None:
                blocks[number] = data
        with self._lock:
            self._remember({number: blocks[number] for number in absent if number in blocks})
            pending |= self._submit(number for number in absent if number not in blocks)
        began = time.perf_counter()
        for number, future in pending.items():
            blocks[number] = future.result()[number]
        if pending:
            self.stats.seconds_waited += time.perf_counter() - began
        return blocks

    def _submit(self, numbers: Iterable[int]) -> dict[int, Future[dict[int, bytes]]]:
        """Fetch blocks, given in ascending order, neighbours in one request; the lock is held."""
        submitted: dict[int, Future[dict[int, bytes]]] = {}
        run: list[int] = []

        def submit() -> None:
            submitted.update(dict.fromkeys(run, self._pool.submit(self._fetch, run[0], run[-1] + 1)))

        for number in numbers:
            if run and (number != run[-1] + 1 or len(run) == RUN_BLOCKS or number in self._shard_begins):
                submit()
                run = []
            run.append(number)
        if run:
            submit()
        self._pending |= submitted
        return submitted

    def _remember(self, blocks: dict[int, bytes]) -> None:
        """Keep blocks in memory in place of those that were used least recently; the lock is held."""
        self._memory |= blocks
        while len(self._memory) > MEMORY_BLOCKS:
            self._memory.popitem(last=False)

    def _from_disk(self, number: int) -> bytes | None:
        shard, first, size = self._place(number)
        data = self.cache.get(number, size)
        if data is None or crc32c(data) != self.files[shard].checksums[number - first]:
            return None
        self.stats.cached_blocks += 1
        return data

    def _place(self, number: int) -> tuple[int, int, int]:
        """Return the shard of a block, the first block of the shard, and the block's size in bytes."""
        shard = int(np.searchsorted(self._first_block, number, "right")) - 1
        first = int(self._first_block[shard])
        left = self.files[shard].tokens * self.dtype.itemsize - (number - first) * BLOCK_BYTES
        return shard, first, min(left, BLOCK_BYTES)

    def _fetch(self, begin: int, end: int) -> dict[int, bytes]:
        """Fetch the blocks from number `begin` to `end` of one shard, verify and cache them."""
        blocks: dict[int, bytes] = {}
        try:
            blocks = self._verified(begin, end)
            for number, data in blocks.items():
                self.cache.put(number, data)
        finally:  # from now on they are in memory, or are fetched anew
            with self._lock:
                self._remember(blocks)
                for number in range(begin, end):
                    self._pending.pop(number, None)
        return blocks

    def _verified(self, begin: int, end: int) -> dict[int, bytes]:
        """Fetch these blocks, once more where they are damaged, and compare them with their checksums."""
        shard, first, _ = self._place(begin)
        file = self.files[shard]
        start = (begin - first) * BLOCK_BYTES
        stop = min((end - first) * BLOCK_BYTES, file.tokens * self.dtype.itemsize)
        for _ in range(TRIES):
            content = self.remote.read(file.name, start, stop)
            blocks = {
                begin + i: content[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]
                for i in range(-(-len(content) // BLOCK_BYTES))
            }
            damaged = [number for number, data in blocks.items() if crc32c(data) != file.checksums[number - first]]
            with self._lock:
                self.stats.requests += 1
                self.stats.fetched_blocks += len(blocks)
                self.stats.fetched_bytes += len(content)
                self.stats.damaged_blocks += len(damaged)
            if not damaged:
                break
        else:
            at = (damaged[0] - first) * BLOCK_BYTES
            raise UserError(
                f"{self.remote.address(file.name)}: is damaged: the checksum of the bytes from {at} to"
                f" {min(at + BLOCK_BYTES, stop)} differs; copy the file again from where it was prepared, or prepare"
                " the shards again"
            )
        for number, data in blocks.items():
            bad = _C.find_bad_token(np.frombuffer(data, self.dtype), self.vocab_size)
            if bad >= 0:
                token = (number - first) * BLOCK_BYTES // self.dtype.itemsize + bad
                raise UserError(
                    f"{self.remote.address(file.name)}: token {token} is outside the vocabulary of {self.vocab_size};"
                    " prepare the shards again with the right tokenizer"
                )
        return blocks


def _numbers(firsts: Sequence[int], lasts: Sequence[int]) -> list[int]:
    """Return the numbers of ranges of blocks in ascending order, each once."""
    return sorted({number for first, last in zip(firsts, lasts, strict=True) for number in range(first, last + 1)})


def _joined(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the runs in ascending order, those that overlap as one, those without tokens left out."""
    order = np.argsort(begins, kind="stable")
    order = order[lengths[order] > 0]
    begins, ends = begins[order], begins[order] + lengths[order]
    reached = np.maximum.accumulate(ends)
    is_first = np.concatenate([[True], begins[1:] >= reached[:-1]])[: len(begins)]
    firsts = np.flatnonzero(is_first)
    last = np.concatenate([firsts[1:] - 1, [len(begins) - 1]])[: len(firsts)]
    return begins[firsts], reached[last] - begins[firsts]
