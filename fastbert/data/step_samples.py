"""Cut the samples of a run into optimiser steps, the shares of ranks and micro-batches: by sequences or by tokens.

The samples of a run form one endless stream, numbered over all its epochs by "sample counters" (`PretrainingData`). A
step is a range of counters, so a run can resume at any step, and who computes which of its samples changes nothing: the
shares of all ranks, and the micro-batches of a share, hold each sample of the step exactly once. All functions here are
pure: the same samples and arguments give the same answer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fastbert.errors import CorpusError, UserError

Counters = NDArray[np.int64] | Sequence[int] | range
_CACHED = 3  # epochs: a step may lie across the end of one while the next steps are being prepared


class SampleStream(Protocol):
    """Samples in epochs, such as `PretrainingData`. A protocol: raises TypeError when instantiated."""

    def lengths(self, epoch: int) -> NDArray[np.int32]:
        """Return the tokens of each sample of an epoch, in training order: int32 (samples,)."""
        ...

    def locate(self, sample_counter: int) -> tuple[int, int]:
        """Return the epoch of a sample counter, and the index of the sample in it."""
        ...


class StepSamples:
    """The samples of steps, ranks and micro-batches of a run. Safe to use from several threads.

    A step by tokens takes O(log n) per epoch of n samples that it touches, once the epoch is planned.
    """

    def __init__(self, samples: SampleStream) -> None:
        self.samples = samples
        self._token_ends: OrderedDict[int, NDArray[np.int64]] = OrderedDict()
        self._lock = threading.Lock()

    def next_step(self, counter: int, *, sequences: int | None = None, tokens: int | None = None) -> range:
        """Return the counters of the step that begins at sample `counter`.

        Args:
            sequences: the step has this many samples.
            tokens: the step has as many samples as fit into this many tokens, special tokens included, and at least
                one.

        Exactly one of the two is given. Raises UserError for a value below 1 and for a negative counter, and
        CorpusError for an epoch without samples.
        """
        limit, by_tokens = _limit(sequences, tokens)
        if counter < 0:
            raise UserError(f"sample_counter={counter} must not be negative")
        if not by_tokens:
            return range(counter, counter + limit)
        epoch, index = self.samples.locate(counter)
        end = counter
        while True:
            ends = self._ends(epoch)
            before = int(ends[index])
            last = int(np.searchsorted(ends, before + limit, side="right")) - 1
            end += last - index
            limit -= int(ends[last]) - before
            if last < len(ends) - 1:
                return range(counter, max(end, counter + 1))
            epoch, index = epoch + 1, 0

    def lengths(self, counters: Counters) -> NDArray[np.int32]:
        """Return the tokens of samples, int32 (samples,), in the order of `counters`, int64 (samples,).

        Raises UserError for a negative counter, and CorpusError for an epoch without samples.
        """
        numbers = np.asarray(counters, np.int64)
        lengths = np.zeros(len(numbers), np.int32)
        if not len(numbers):
            return lengths
        first, last = int(numbers.min()), int(numbers.max())
        epoch, index = self.samples.locate(first)
        begin = first - index
        while begin <= last:
            ends = self._ends(epoch)
            inside = (numbers >= begin) & (numbers < begin + len(ends) - 1)
            rows = numbers[inside] - begin
            lengths[inside] = ends[rows + 1] - ends[rows]
            begin, epoch = begin + len(ends) - 1, epoch + 1
        return lengths

    def share(
        self, counters: Counters, rank: int = 0, world_size: int = 1, *, by_tokens: bool = False
    ) -> NDArray[np.int64]:
        """Return the samples of a step that one rank computes, int64 (samples,), ascending if `counters` are.

        Rank r gets samples r, r + world_size, ... of the step; with `by_tokens`, of its samples from the longest to the
        shortest, in alternating direction, so that the tokens of two ranks differ by less than the longest sample has.
        The shares hold each sample once, and their sizes differ by at most one: with fewer samples than ranks, the last
        ranks have none. `counters` int64 (samples,). Raises UserError for a rank out of range and a negative counter,
        and CorpusError for an epoch without samples.
        """
        if not 0 <= rank < world_size:
            raise UserError(f"rank={rank} must be from 0 to world_size={world_size} - 1")
        numbers = np.asarray(counters, np.int64)
        if not by_tokens:
            return numbers[rank::world_size]
        return numbers[share_by_tokens(self.lengths(numbers), rank, world_size)]

    def micro_batches(
        self, counters: Counters, *, sequences: int | None = None, tokens: int | None = None
    ) -> list[NDArray[np.int64]]:
        """Cut samples into micro-batches, in order: each int64 (samples,), as `counters` are; none for no samples.

        Args:
            sequences: samples per micro-batch; the last one may have fewer.
            tokens: each micro-batch has as many samples as fit into this many tokens, but at least one.

        Exactly one of the two is given. Raises UserError for a value below 1 and for a negative counter, and
        CorpusError for an epoch without samples.
        """
        limit, by_tokens = _limit(sequences, tokens)
        numbers = np.asarray(counters, np.int64)
        if not by_tokens:
            return [numbers[start : start + limit] for start in range(0, len(numbers), limit)]
        ends = _cumulative(self.lengths(numbers))
        parts: list[NDArray[np.int64]] = []
        start = 0
        while start < len(numbers):
            end = int(np.searchsorted(ends, ends[start] + limit, side="right")) - 1
            parts.append(numbers[start : max(end, start + 1)])
            start = max(end, start + 1)
        return parts

    def _ends(self, epoch: int) -> NDArray[np.int64]:
        """Return the tokens before each sample of an epoch, and those of all: int64 (samples + 1,)."""
        with self._lock:
            if epoch not in self._token_ends:
                lengths = self.samples.lengths(epoch)
                if not len(lengths):
                    raise CorpusError(f"epoch {epoch} has no samples; add text")
                self._token_ends[epoch] = _cumulative(lengths)
                if len(self._token_ends) > _CACHED:
                    self._token_ends.popitem(last=False)
            self._token_ends.move_to_end(epoch)
            return self._token_ends[epoch]


def share_by_tokens(lengths: NDArray[Any], rank: int, world_size: int) -> NDArray[np.int64]:
    """Return the samples of one rank, int64 (samples,), ascending, of those with these lengths in tokens, (samples,).

    Samples are dealt out from the longest to the shortest, in alternating direction, so that the tokens of two ranks
    differ by less than the longest sample has. The sizes of shares differ by at most one.
    """
    order = np.argsort(-lengths, kind="stable")
    rounds, turn = np.divmod(np.arange(len(lengths)), world_size)
    ranks = np.where(rounds % 2 == 0, turn, world_size - 1 - turn)
    return np.sort(order[ranks == rank])


def _cumulative(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends


def _limit(sequences: int | None, tokens: int | None) -> tuple[int, bool]:
    """Return the limit, and whether it is one of tokens."""
    if (sequences is None) == (tokens is None):
        raise UserError(f"give either sequences or tokens, not sequences={sequences} and tokens={tokens}")
    name, limit = ("sequences", sequences) if tokens is None else ("tokens", tokens)
    assert limit is not None
    if limit < 1:
        raise UserError(f"{name}={limit} must be at least 1")
    return limit, tokens is not None
