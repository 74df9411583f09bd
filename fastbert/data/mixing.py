"""Mix several corpora in fixed proportions: each is a source with samples of its own, and an epoch draws from all.

An epoch of a mixture has as many samples as one epoch of every source together, and of each source the share that its
weight says. A source's samples are taken in the order of its own epochs, however many epochs of the mixture they last:
a large source is sampled without replacement until all of it has been seen, and a small one repeats, with new pairs and
masks in each of its passes. Where a sample stands, and which source it is from, is a pure function of the seed, the
weights and its number, as everything else about it is.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.epochs import MAX_EPOCHS
from fastbert.data.pretraining import PAIRED, Objective, PretrainingData, unigram_counts
from fastbert.data.sample_arrays import concatenated, packed
from fastbert.data.shards import TokenShards
from fastbert.errors import UserError

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch

MAX_SOURCES = 256
_CACHED = 2  # epochs
_COMMON = ("objective", "max_length", "short_sequence_prob", "mask_prob", "mask_replacement", "masking", "split")


@dataclass(frozen=True)
class Drawn:
    """The samples of an epoch of a mixture: number, source, and which of the source's own."""

    number: int
    source: NDArray[np.uint8]
    """The source of each sample, uint8 (samples,)."""
    counter: NDArray[np.int64]
    """The sample's counter in its source: int64 (samples,)."""


class MixedData:
    """Samples of several sources in fixed proportions, with the interface of `PretrainingData`.

    Args:
        sources: data of one split each, with the same recipe and tokenizer.
        weights: the share of each source in the samples, of any sum; default: by the sources' number of samples.
        seed: seed of the order in which the sources take turns.

    The validation split has as many samples as keep the proportions without repeating any, in an order whose every
    beginning keeps them too. Raises UserError for other numbers of weights than of sources, a weight that is not
    positive and finite, sources that differ in tokenizer or recipe, and a source whose share has no sample.
    """

    def __init__(
        self, sources: Sequence[PretrainingData], weights: Sequence[float] | None = None, *, seed: int = 0
    ) -> None:
        if not 1 <= len(sources) <= MAX_SOURCES:
            raise UserError(f"a mixture has from 1 to {MAX_SOURCES} sources, not {len(sources)}")
        check_tokenizers([source.shards for source in sources])
        for name in _COMMON:
            values = [getattr(source, name) for source in sources]
            if any(value != values[0] for value in values):
                raise UserError(f"the sources of a mixture must have one {name}, not {values}")
        self.sources: tuple[PretrainingData, ...] = tuple(sources)
        self.seed = seed
        first = sources[0]
        self.objective: Objective = first.objective
        self.max_length: int = first.max_length
        self.split: str = first.split
        self.mask_prob: float = first.mask_prob
        sizes = [source.samples_per_epoch(0) for source in sources]
        self.weights: tuple[float, ...] = normalized(weights, sizes)
        if self.split == "validation":
            total = max(math.floor(min(size / weight for size, weight in zip(sizes, self.weights, strict=True))), 1)
        else:
            total = sum(sizes)
        self.counts: tuple[int, ...] = apportioned(total, self.weights)
        """Samples of each source in an epoch."""
        if self.split == "validation":
            # Rounding up must not repeat a sample, nor leave a source out.
            self.counts = tuple(min(max(n, 1), size) for n, size in zip(self.counts, sizes, strict=True))
        for source, count, weight in zip(sources, self.counts, self.weights, strict=True):
            if not count:
                raise UserError(
                    f"{source.shards.folder}: its share of {weight:.3g} is less than one of the {total} samples of an"
                    " epoch; raise its weight"
                )
        self._drawn: OrderedDict[int, Drawn] = OrderedDict()
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_drawn", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drawn = OrderedDict()
        self._lock = threading.RLock()

    def drawn(self, epoch: int) -> Drawn:
        """Return which samples of which source an epoch has, in training order. The last two epochs are cached.

        Raises UserError for an epoch below 0 or from 2^32 on.
        """
        if not 0 <= epoch < MAX_EPOCHS:
            raise UserError(f"epoch={epoch} must be from 0 to 2^32 - 1")
        epoch = epoch if self.split == "train" else 0
        with self._lock:
            if epoch not in self._drawn:
                self._drawn[epoch] = self._draw(epoch)
                if len(self._drawn) > _CACHED:
                    self._drawn.popitem(last=False)
            self._drawn.move_to_end(epoch)
            return self._drawn[epoch]

    def lengths(self, epoch: int) -> NDArray[np.int32]:
        """Return the tokens of each sample of an epoch, special tokens included, in training order: int32 (samples,).

        Raises UserError for an epoch below 0 or from 2^32 on.
        """
        drawn = self.drawn(epoch)
        lengths = np.zeros(len(drawn.source), np.int32)
        for number, source in enumerate(self.sources):
            places = np.flatnonzero(drawn.source == number)
            counters = drawn.counter[places]
            done = 0
            while done < len(counters):
                own_epoch, index = source.locate(int(counters[done]))
                of_epoch = source.lengths(own_epoch)[index : index + len(counters) - done]
                lengths[places[done : done + len(of_epoch)]] = of_epoch
                done += len(of_epoch)
        return lengths

    def samples_per_epoch(self, epoch: int) -> int:
        """Return the number of samples of an epoch, which is the same for all."""
        return sum(self.counts)

    @property
    def is_local(self) -> bool:
        """Return False if the tokens of a source are fetched from another place."""
        return all(source.is_local for source in self.sources)

    @property
    def tokens_per_epoch(self) -> float:
        """Return the approximate number of tokens of the text that an epoch draws."""
        passes = (n / source.samples_per_epoch(0) for source, n in zip(self.sources, self.counts, strict=True))
        return sum(source.tokens_per_epoch * n for source, n in zip(self.sources, passes, strict=True))

    def locate(self, sample_counter: int) -> tuple[int, int]:
        """Return the epoch of a sample counter, and the index of the sample in it. Raises UserError for a negative
        counter."""
        if sample_counter < 0:
            raise UserError(f"sample_counter={sample_counter} must not be negative")
        return divmod(sample_counter, sum(self.counts))

    def batch(
        self, epoch: int, indices: NDArray[np.int64] | Sequence[int], mask_prob: float | None = None
    ) -> PackedBatch:
        """Return samples of one epoch as a batch: a pure function. `indices` int64 (samples,), from 0 in each epoch.

        `mask_prob` takes the place of the recipe's. Raises UserError for a value out of range, and for a sample that
        the epoch does not have.
        """
        drawn, rows = self.drawn(epoch), np.asarray(indices, np.int64)
        outside = (rows < 0) | (rows >= len(drawn.source))
        if outside.any():
            raise UserError(f"epoch {epoch}: sample {rows[outside][0]} of an epoch of {len(drawn.source)} samples")
        return self._batch(drawn.source[rows], drawn.counter[rows], mask_prob)

    def samples(
        self, counters: NDArray[np.int64] | Sequence[int] | range, mask_prob: float | None = None
    ) -> PackedBatch:
        """Return samples by counter, possibly of different epochs, as a batch in the order of the counters.

        `counters` int64 (samples,); `mask_prob` takes the place of the recipe's. Raises UserError for a value out of
        range.
        """
        return self._batch(*self._located(counters), mask_prob)

    # For torch's DataLoader: a map-style dataset whose keys are lists of counters.
    __getitem__ = samples

    def read_ahead(self, counters: Sequence[int] | range) -> None:
        """Begin to fetch the tokens of samples that follow, where shards are streamed; returns at once.

        Samples of epochs that are not planned yet are left out. Raises UserError for a negative counter.
        """
        planned = [counter for counter in counters if self.locate(int(counter))[0] in self._drawn]
        source, counter = self._located(planned)
        for number, data in enumerate(self.sources):
            data.read_ahead(counter[source == number].tolist())

    def described(self) -> str:
        """Return the samples of each source in an epoch, and how often its own samples are seen, one line each."""
        lines = []
        for data, count, weight in zip(self.sources, self.counts, self.weights, strict=True):
            passes = f"{count / data.samples_per_epoch(0):.3g} passes over it"
            lines.append(f"{data.shards.folder}: {weight:.1%} of the samples, {count:,} per epoch ({passes})")
        return "\n".join(lines)

    def _draw(self, epoch: int) -> Drawn:
        """Place each source's samples evenly in the epoch, at random within its stretch: (k + u) / n for 0 <= u < 1."""
        places = []
        for number, count in enumerate(self.counts):
            u = np.full(count, 0.5)
            if self.split == "train":
                words = _C.random_numbers(count, seed=self.seed, epoch=epoch, purpose="mixture", source=number + 1)
                u = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
            places.append((np.arange(count) + u) / count)
        order = np.argsort(np.concatenate(places), kind="stable")
        source = np.repeat(np.arange(len(self.counts), dtype=np.uint8), self.counts)[order]
        counter = np.zeros(len(source), np.int64)
        for number, count in enumerate(self.counts):
            counter[source == number] = np.arange(epoch * count, (epoch + 1) * count)
        return Drawn(epoch, source, counter)

    def _located(
        self, counters: NDArray[np.int64] | Sequence[int] | range
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the source of each sample, and its counter there. Raises UserError for a negative counter."""
        numbers = np.asarray(counters, np.int64)
        if (numbers < 0).any():
            raise UserError(f"sample_counter={numbers.min()} must not be negative")
        epochs, rows = np.divmod(numbers, sum(self.counts))
        source, counter = np.zeros(len(numbers), np.uint8), np.zeros(len(numbers), np.int64)
        for epoch in np.unique(epochs).tolist():
            drawn, here = self.drawn(epoch), epochs == epoch
            source[here], counter[here] = drawn.source[rows[here]], drawn.counter[rows[here]]
        return source, counter

    def _batch(self, source: NDArray[Any], counter: NDArray[np.int64], mask_prob: float | None) -> PackedBatch:
        """Return these samples in their order: collated by source, then put into their order."""
        import torch

        numbers = np.unique(source).tolist() or [0]
        arrays = [self.sources[n].sample_arrays(counter[source == n], mask_prob) for n in numbers]
        order = np.argsort(np.argsort(source, kind="stable"))
        return packed(concatenated(arrays), with_label=self.objective in PAIRED).reordered(torch.from_numpy(order))


SampleData = PretrainingData | MixedData
"""Samples of one corpus, or of several."""


def normalized(weights: Sequence[float] | None, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return weights of sum 1, by default the shares of `sizes`. Raises UserError for wrong weights."""
    if weights is None:
        weights = [float(size) for size in sizes]
    if len(weights) != len(sizes):
        raise UserError(f"{len(weights)} weights for {len(sizes)} sources; give one for each")
    for weight in weights:
        if not 0 < weight < math.inf:
            raise UserError(f"a weight of {weight} must be positive and finite")
    total = sum(weights)
    if total == math.inf:
        raise UserError(f"the weights {' '.join(map(str, weights))} are too large to be added; divide them")
    return tuple(weight / total for weight in weights)


def apportioned(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers of sum `total` in the proportions of `weights` of sum 1: by largest remainder."""
    exact = [total * weight for weight in weights]
    counts = [math.floor(value) for value in exact]
    by_remainder = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for i in by_remainder[: total - sum(counts)]:
        counts[i] += 1
    return tuple(counts)


def check_tokenizers(shards: Sequence[TokenShards]) -> None:
    """Raise UserError unless all shards were made with one tokenizer."""
    for other in shards[1:]:
        if other.fingerprint != shards[0].fingerprint:
            raise UserError(
                f"{other.folder}: was tokenized with a different vocabulary than {shards[0].folder}; prepare both with"
                " one tokenizer"
            )


def open_data(
    shards: Sequence[TokenShards], weights: Sequence[float] | None = None, *, seed: int = 0, **recipe: Any
) -> SampleData:
    """Return one split of the samples of some shards, mixed in the proportions of `weights` where they are several.

    `recipe` holds the other arguments of `PretrainingData`. Several sources have seeds of their own, which follow from
    `seed` and their position. Raises UserError and CorpusError as `PretrainingData` and `MixedData` do.
    """
    check_tokenizers(shards)
    if len(shards) == 1:
        normalized(weights, [1])
        return PretrainingData(shards[0], seed=seed, **recipe)
    seeds = _C.random_numbers(len(shards), seed=seed, epoch=0, purpose="mixture").tolist()
    sources = [PretrainingData(of, seed=own, **recipe) for of, own in zip(shards, seeds, strict=True)]
    return MixedData(sources, weights, seed=seed)


def split_unigrams(train: SampleData, validation: SampleData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how often each id occurs in the training and in the validation documents, two int64 (vocab_size,).

    Those of a mixture's source count as often as an epoch draws its samples. Raises UserError as `unigram_counts` does.
    """
    if not (isinstance(train, MixedData) and isinstance(validation, MixedData)):
        assert not isinstance(train, MixedData)
        return _unigrams(train)
    totals = np.zeros((2, train.sources[0].shards.vocab_size), np.float64)
    for number, source in enumerate(train.sources):
        for row, counts in enumerate(_unigrams(source)):
            data = (train, validation)[row]
            totals[row] += counts * (data.counts[number] / data.sources[number].samples_per_epoch(0))
    first, second = np.ceil(totals).astype(np.int64)  # what occurs must not become what does not
    return first, second


def _unigrams(data: PretrainingData) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return unigram_counts(
        data.shards, objective=data.objective, seed=data.seed, validation_fraction=data.validation_fraction
    )
