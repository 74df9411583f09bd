"""Create pre-training samples from token shards: new pairs and masks every epoch, each a pure function of its number.

Sample `i` of epoch `e` depends only on the shards, the recipe, the seed, `e` and `i`: not on its batch, the worker or
rank that creates it, or earlier samples. A run's samples are numbered over all its epochs ("sample counter"), so a run
can resume at any sample.

One file: the split of a corpus, the samples of an epoch and the batches of a step, which share their definitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.continuations import continuation_flags
from fastbert.data.epochs import Epochs
from fastbert.data.next_tokens import next_tokens
from fastbert.data.sample_arrays import SampleArrays, concatenated, packed
from fastbert.data.shards import TokenShards
from fastbert.errors import CorpusError, UserError

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch

Objective = Literal["mlm+nsp", "mlm", "mlm+sop", "ltr", "bilm"]
Split = Literal["train", "validation"]
Masking = Literal["token", "whole-word", "span"]

MAX_LENGTH = 1 << 20
PAIRED: tuple[Objective, ...] = ("mlm+nsp", "mlm+sop")  # with a label of two segments
HELD_OUT_TOKENS = 1 << 22  # of validation documents, at which their token frequencies are taken


class PretrainingData:
    """The samples of one split of a corpus.

    Args:
        objective: `mlm+nsp`: `[CLS] A [SEP] B [SEP]`, label 0 if B follows A, 1 if B is from another document of the
            same split, half of each. `mlm+sop`: A and B are consecutive, label 1 if they are swapped. `mlm`: `[CLS] A
            [SEP]` without a label. `ltr`: the same, without masks; the label of a token is the one after it. `bilm`: as
            `ltr`; the model derives the labels of the other direction.
        max_length, short_sequence_prob: samples fill `max_length` tokens; with the given probability a sample has a
            random shorter length. csrc/collator/plan.h has the details.
        mask_prob, exact_mask_count: with `exact_mask_count` (the released recipe) a sequence of n ordinary tokens has
            max(1, round(mask_prob * n)) masked tokens; otherwise each token is drawn independently.
        mask_replacement: shares of the masked tokens that become [MASK], become a random ordinary token (never a
            special or [unused] token), and stay; they add up to 1. Training and validation have the same rule.
        masking: mask single tokens, all pieces of a word together (`whole-word`), or spans of words (SpanBERT, see
            csrc/collator/masking.h), which need `exact_mask_count`. Default: `token`.
        whole_word: the same as `masking="whole-word"`.
        static_masks: repeat the pairs and masks of the first `static_masks` epochs in later ones, each in an order and
            with dropout of its own: the duplication of the paper's data (10 there). Default: new ones in every epoch.
        validation_mask_prob: `mask_prob` of the validation split, where it differs.
        shuffle_window: shuffle the samples among as many tokens from random places of the corpus, in runs of half a
            million, instead of the whole corpus: for shards that are streamed and larger than their cache.
        split, validation_fraction: documents are ranked by a hash of the seed and their number; the lowest
            `validation_fraction` are validation, at least one document (two with NSP, and as many must remain for
            training). A corpus of one document is split at a sentence. Validation has one fixed epoch, 0.

    Raises:
        CorpusError: the corpus is too small for one sample.
        UserError: an argument is out of range.
    """

    def __init__(
        self,
        shards: TokenShards,
        *,
        objective: Objective = "mlm+nsp",
        max_length: int = 128,
        short_sequence_prob: float = 0.1,
        mask_prob: float = 0.15,
        mask_replacement: tuple[float, float, float] = (0.8, 0.1, 0.1),
        masking: Masking | None = None,
        whole_word: bool = False,
        exact_mask_count: bool = True,
        static_masks: int | None = None,
        validation_mask_prob: float | None = None,
        shuffle_window: int | None = None,
        seed: int = 0,
        split: Split = "train",
        validation_fraction: float = 0.1,
    ) -> None:
        _check(objective, max_length, short_sequence_prob, mask_prob, seed, split)
        if static_masks is not None and static_masks < 1:
            raise UserError(f"static_masks={static_masks} must be at least 1")
        if split == "validation" and validation_mask_prob is not None:
            mask_prob = _probability("validation_mask_prob", validation_mask_prob)
        self.shards = shards
        self.objective: Objective = objective
        self.max_length = max_length
        self.short_sequence_prob = short_sequence_prob
        self.mask_prob = mask_prob
        self.mask_replacement: tuple[float, float, float] = _check_replacement(mask_replacement)
        self.masking: Masking = _check_masking(masking, whole_word, exact_mask_count)
        self.exact_mask_count = exact_mask_count
        self.static_masks = static_masks
        self.shuffle_window = shuffle_window
        self.seed = seed
        self.split: Split = split
        self.validation_fraction = validation_fraction

        train, validation = split_documents(
            shards, objective=objective, seed=seed, validation_fraction=validation_fraction
        )
        self.documents: NDArray[np.int64] = train if split == "train" else validation
        if not len(self.documents):
            raise UserError(f"validation_fraction={validation_fraction} leaves no validation documents; raise it")
        if "mask" not in shards.special_ids and objective not in ("ltr", "bilm"):
            raise UserError(
                f"{shards.folder}: the tokenizer has no mask_token, which objective={objective!r} needs; use objective"
                " 'ltr', or a tokenizer with one"
            )
        self._vocabulary = vocabulary_table(shards)
        self._epochs = self._new_epochs()
        if not self.samples_per_epoch(0):
            raise CorpusError(
                f"the {split} split of {shards.folder} ({len(self.documents)} documents) is too short for one sample;"
                " add text"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Plans and tables are rebuilt after unpickling.
        return {key: value for key, value in self.__dict__.items() if key not in ("_epochs", "_vocabulary")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._vocabulary = vocabulary_table(self.shards)
        self._epochs = self._new_epochs()

    def _new_epochs(self) -> Epochs:
        fixed, name = self.split == "validation", str(self.shards.folder)
        return Epochs(
            self._plan,
            seed=self.seed,
            static_masks=self.static_masks,
            shuffle_window=self.shuffle_window,
            fixed=fixed,
            name=name,
        )

    def _plan(self, epoch: int) -> _C.EpochPlan:
        return _C.EpochPlan(
            self.shards.corpus,
            self.documents,
            self._vocabulary,
            objective=self.objective if self.objective in PAIRED else "mlm",
            budget=self.max_length - special_tokens(self.objective),
            short_probability=self.short_sequence_prob,
            seed=self.seed,
            epoch=epoch,
            validation=self.split == "validation",
            shuffle_window=self.shuffle_window or 0,
        )

    def plan(self, epoch: int) -> _C.EpochPlan:
        """Return the tokens of each sample of an epoch, in training order. The last two plans are cached.

        Raises UserError for an epoch below 0 or from 2^32 on.
        """
        return self._epochs[epoch].plan

    def lengths(self, epoch: int) -> NDArray[np.int32]:
        """Return the tokens of each sample of an epoch, special tokens included, in training order: int32 (samples,).

        Raises UserError for an epoch below 0 or from 2^32 on.
        """
        return self._epochs[epoch].lengths

    def samples_per_epoch(self, epoch: int) -> int:
        """Return the number of samples of an epoch, which varies slightly: every epoch draws new pairs.

        Raises UserError for an epoch below 0 or from 2^32 on.
        """
        return self._epochs.size(epoch)

    @property
    def is_local(self) -> bool:
        """Return False if the tokens are fetched from another place."""
        return self.shards.is_local

    @property
    def tokens_per_epoch(self) -> float:
        """Return the approximate number of tokens of the split's text."""
        validation = self.validation_fraction
        return self.shards.num_tokens * (1 - validation if self.split == "train" else validation)

    def locate(self, sample_counter: int) -> tuple[int, int]:
        """Return the epoch of a sample counter, and the index of the sample in it.

        Raises UserError for a negative counter, and CorpusError for an epoch without samples.
        """
        return self._epochs.locate(sample_counter)

    def batch(
        self, epoch: int, indices: NDArray[np.int64] | Sequence[int], mask_prob: float | None = None
    ) -> PackedBatch:
        """Return samples of one epoch as a batch: a pure function. `indices` int64 (samples,), from 0 in each epoch.

        `mask_prob` takes the place of the recipe's; objectives without masks ignore it. Raises UserError for a value
        out of range, and for a sample that the epoch does not have.
        """
        return packed(self.arrays(epoch, indices, mask_prob), with_label=self.objective in PAIRED)

    def samples(
        self, counters: NDArray[np.int64] | Sequence[int] | range, mask_prob: float | None = None
    ) -> PackedBatch:
        """Return samples by counter, possibly of different epochs, as a batch in the order of the counters.

        `counters` int64 (samples,); `mask_prob` takes the place of the recipe's, as for a schedule of mask rates: the
        same counter and rate give the same sample. Raises UserError for a value out of range, and CorpusError for an
        epoch without samples.
        """
        return packed(self.sample_arrays(counters, mask_prob), with_label=self.objective in PAIRED)

    def read_ahead(self, counters: Sequence[int] | range) -> None:
        """Begin to fetch the tokens of samples that follow, where shards are streamed; returns at once.

        Samples of epochs that are not planned yet are left out. Raises UserError for a negative counter, and
        CorpusError for an epoch without samples.
        """
        if self.shards.is_local or not len(counters):
            return
        samples: dict[int, list[int]] = {}
        for counter in counters:
            epoch, index = self.locate(counter)
            if not self._epochs.is_cached(epoch):
                break
            samples.setdefault(epoch, []).append(index)
        for epoch, indices in samples.items():
            planned = self._epochs[epoch]
            self.shards.read_ahead(*planned.plan.ranges(planned.rows(np.array(indices, np.int64))))

    # For torch's DataLoader: a map-style dataset whose keys are lists of counters.
    __getitem__ = samples

    def step_batches(
        self,
        batch_size: int,
        *,
        start: int = 0,
        stop: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> Iterator[PackedBatch]:
        """Yield the batches of a run from sample `start` to `stop` (default: endless), `batch_size` samples per step.

        Rank r of `world_size` gets samples r, r + world_size, ... of every step. The batches do not depend on
        `num_workers`; the last one may be smaller. Raises UserError for a batch size below `world_size`, and for a rank
        or a start out of range.
        """
        from torch.utils.data import DataLoader

        if batch_size < world_size or not 0 <= rank < world_size:
            raise UserError(f"batch_size={batch_size} must be at least world_size={world_size}, above rank={rank}")
        # Plan before the workers are forked, so that they share the plan.
        self.samples_per_epoch(self.locate(start)[0])
        loader: DataLoader[PackedBatch] = DataLoader(
            self,  # type: ignore[arg-type]  # a map-style dataset needs only __getitem__
            sampler=StepSampler(batch_size, start=start, stop=stop, rank=rank, world_size=world_size),
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory,
            collate_fn=_identity,  # type: ignore[arg-type]  # the dataset returns whole batches
        )
        return iter(loader)

    def sample_arrays(
        self, counters: NDArray[np.int64] | Sequence[int] | range, mask_prob: float | None = None
    ) -> SampleArrays:
        """Return the samples of `samples` as arrays of the shapes and dtypes of `PackedBatch`; `counters` int64
        (samples,).

        Raises UserError for a value out of range, and CorpusError for an epoch without samples.
        """
        samples = np.array([self.locate(int(counter)) for counter in counters], np.int64).reshape(-1, 2)
        epoch_ends = np.flatnonzero(np.diff(samples[:, 0])) + 1
        parts = [rows for rows in np.split(samples, epoch_ends) if len(rows)]
        batches = [self.arrays(int(rows[0, 0]), rows[:, 1], mask_prob) for rows in parts]
        return concatenated(batches or [self.arrays(0, [], mask_prob)])

    def arrays(
        self, epoch: int, indices: NDArray[np.int64] | Sequence[int], mask_prob: float | None = None
    ) -> SampleArrays:
        """Return the samples of `batch` as arrays of the shapes and dtypes of `PackedBatch`; `indices` int64
        (samples,), from 0 in each epoch.

        Raises UserError for a value out of range, and for a sample that the epoch does not have.
        """
        masks = self.objective not in ("ltr", "bilm")
        rate = self.mask_prob if mask_prob is None else _probability("mask_prob", mask_prob)
        planned = self._epochs[epoch]
        rows = planned.rows(np.ascontiguousarray(indices, dtype=np.int64))
        arrays = planned.plan.collate(
            self.shards.corpus if self.shards.is_local else self.shards.loaded(*planned.plan.ranges(rows)),
            rows,
            self._vocabulary,
            mask_probability=rate if masks else 0.0,
            exact_count=self.exact_mask_count and masks,
            masking=self.masking if masks else "token",
            mask_replacement=self.mask_replacement,
            dropout_epoch=planned.number,
        )
        return arrays if masks else arrays | next_tokens(arrays["input_ids"], arrays["cu_seqlens"])


class StepSampler:
    """Yield the sample counters of each step for one rank, as the sampler of torch's DataLoader."""

    def __init__(
        self, batch_size: int, *, start: int = 0, stop: int | None = None, rank: int = 0, world_size: int = 1
    ) -> None:
        self.batch_size = batch_size
        self.start = start
        self.stop = stop
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[range]:
        begin = self.start
        while self.stop is None or begin < self.stop:
            end = begin + self.batch_size if self.stop is None else min(begin + self.batch_size, self.stop)
            yield range(begin + self.rank, end, self.world_size)
            begin = end


def split_documents(
    shards: TokenShards, *, objective: Objective = "mlm+nsp", seed: int = 0, validation_fraction: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the training and the validation documents as ranges of sentences: int64 (documents, 2) each, in order.

    The same seed gives the same split. With `validation_fraction=0` all documents are for training. Raises UserError
    for a fraction out of range, and CorpusError for a corpus that is too small to be split.
    """
    if not 0 <= validation_fraction < 1:
        raise UserError(f"validation_fraction={validation_fraction} must be at least 0 and below 1")
    ranges = shards.document_ranges()
    least = 2 if objective == "mlm+nsp" else 1
    splits = 2 if validation_fraction else 1
    if objective == "mlm+nsp" and len(ranges) < least * splits:
        count = "one document" if len(ranges) == 1 else f"{len(ranges)} documents"
        raise CorpusError(
            f"{shards.folder} has only {count}, but next-sentence pairs take their negatives from other documents:"
            f" at least {least * splits} are needed ({least} in each split). Separate documents (by blank lines in"
            " text files), add text, or train with --objective mlm"
        )
    if not validation_fraction:
        return ranges, ranges[:0]
    if len(ranges) == 1:
        return _split_inside(shards, ranges[0], validation_fraction)
    count_validation = min(max(round(len(ranges) * validation_fraction), least), len(ranges) - least)
    order = np.argsort(_C.split_ranks(len(ranges), seed), kind="stable")
    is_validation = np.zeros(len(ranges), bool)
    is_validation[order[:count_validation]] = True
    return ranges[~is_validation], ranges[is_validation]


def _split_inside(
    shards: TokenShards, document: NDArray[np.int64], fraction: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a single document: its first sentences for training, its last for validation."""
    first, last = int(document[0]), int(document[1])
    if last - first < 2:
        raise CorpusError(f"{shards.folder} has a single sentence, which cannot be split into training and validation")
    cut = min(max(last - round((last - first) * fraction), first + 1), last - 1)
    return np.array([[first, cut]], np.int64), np.array([[cut, last]], np.int64)


def unigram_counts(
    shards: TokenShards, *, objective: Objective = "mlm+nsp", seed: int = 0, validation_fraction: float = 0.1
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how often each id occurs in the training and in the validation documents, two int64 (vocab_size,).

    At most the first validation documents of `HELD_OUT_TOKENS` tokens are counted; the others are counted as training.
    Arguments and errors are those of `split_documents`; raises UserError, too, without validation documents.
    """
    _, validation = split_documents(shards, objective=objective, seed=seed, validation_fraction=validation_fraction)
    _, lengths = shards.token_ranges(validation)
    counted = 1 + int(np.searchsorted(lengths.cumsum(), HELD_OUT_TOKENS))
    held_out = shards.count(validation[:counted])
    if not held_out.sum():
        raise UserError(f"validation_fraction={validation_fraction} leaves no validation documents; raise it")
    return shards.unigrams - held_out, held_out


def fold_rare(counts: NDArray[np.int64], size: int, unknown: int) -> NDArray[np.int64]:
    """Return how often each of `size` outputs occurs, int64 (size,), where ids from `size` on count as `unknown`.

    `counts` int64 (vocab_size,) are those of all ids.
    """
    folded = counts[:size].copy()
    folded[unknown] += counts[size:].sum()
    return folded


def unigram_cross_entropy(training: NDArray[np.int64], held_out: NDArray[np.int64]) -> float:
    """Return the nats per token of held-out text under the unigrams of training text (add-one smoothed).

    A language model must score lower than this, the loss of a model that has learned only token frequencies.

    Args:
        training: int64 (vocab_size,), how often each id occurs in the training text.
        held_out: int64 (vocab_size,), how often in the held-out text, once at least in all.
    """
    smoothed = (training + 1).astype(np.float64)
    return float(-(held_out * np.log(smoothed / smoothed.sum())).sum() / held_out.sum())


def special_tokens(objective: Objective) -> int:
    """Return the number of [CLS] and [SEP] tokens in a sample."""
    return 3 if objective in PAIRED else 2


def vocabulary_table(shards: TokenShards) -> _C.VocabularyTable:
    """Return the collator's view of the vocabulary: pieces that continue a word, and ids of random replacements.

    Raises UserError for a vocabulary of special and unused tokens alone.
    """
    tokens = np.array(shards.vocabulary, dtype=object)
    ordinary = np.array([not (token.startswith("[unused") and token.endswith("]")) for token in tokens], dtype=bool)
    ordinary[list(shards.special_ids.values())] = False
    if not ordinary.any():
        raise UserError(f"{shards.folder}: its vocabulary holds only special and unused tokens; train a vocabulary")
    return _C.VocabularyTable(
        is_continuation=continuation_flags(shards.vocabulary, shards.special_ids),
        replacements=np.flatnonzero(ordinary).astype(np.int64),
        cls_id=shards.special_ids["cls"],
        sep_id=shards.special_ids["sep"],
        mask_id=shards.special_ids.get("mask", shards.special_ids["unk"]),
    )


def _check(
    objective: str, max_length: int, short_sequence_prob: float, mask_prob: float, seed: int, split: str
) -> None:
    if objective not in get_args(Objective):
        raise UserError(f"objective={objective!r} must be one of {', '.join(get_args(Objective))}")
    if split not in get_args(Split):
        raise UserError(f"split={split!r} must be one of {', '.join(get_args(Split))}")
    smallest = 5 if objective in PAIRED else 3
    if not smallest <= max_length <= MAX_LENGTH:
        raise UserError(f"max_length={max_length} must be from {smallest} to {MAX_LENGTH} for objective {objective}")
    for name, value in (("short_sequence_prob", short_sequence_prob), ("mask_prob", mask_prob)):
        _probability(name, value)
    if not 0 <= seed < 1 << 64:
        raise UserError(f"seed={seed} must be from 0 to 2^64 - 1")


def _probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise UserError(f"{name}={value} must be from 0 to 1")
    return value


def _check_masking(masking: str | None, whole_word: bool, exact: bool) -> Masking:
    if masking not in (None, *get_args(Masking)):
        raise UserError(f"masking={masking!r} must be one of {', '.join(get_args(Masking))}")
    if whole_word and masking not in (None, "whole-word"):
        raise UserError(f"whole_word=True is masking='whole-word', not {masking!r}; leave one out")
    if masking == "span" and not exact:
        raise UserError("masking='span' needs exact_mask_count=True: spans are drawn until the count is reached")
    return cast(Masking, masking or ("whole-word" if whole_word else "token"))


def _check_replacement(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if len(shares) != 3 or not all(0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise UserError(
            f"mask_replacement={shares} must be three shares from 0 to 1 that add up to 1: [MASK], random, unchanged"
        )
    return (float(shares[0]), float(shares[1]), float(shares[2]))


def _identity(batch: PackedBatch) -> PackedBatch:
    return batch
