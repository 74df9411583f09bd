"""Pre-training samples from token shards: fresh pairs and masks every epoch, each a pure function of its number.

Sample `i` of epoch `e` depends on the shards, the recipe, the seed, `e` and `i` and on nothing else: not on the batch
it is in, the worker or rank that makes it, or what was made before. A run's samples are numbered through all its epochs
("sample counter"), so a run resumes at any sample by naming it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fastbert import _C
from fastbert.data.shards import TokenShards
from fastbert.errors import CorpusError, UserError

if TYPE_CHECKING:
    from fastbert.packing import PackedBatch

Objective = Literal["mlm+nsp", "mlm", "mlm+sop"]
Split = Literal["train", "validation"]

MAX_LENGTH = 1 << 20
_PLANS_KEPT = 2  # of the current epoch and, across its end, the next


class PretrainingData:
    """The samples of one split of a corpus.

    objective: `mlm+nsp`, `[CLS] A [SEP] B [SEP]`, label 0 if B follows A, 1 if B is from another document (of the same
    split), half of each; `mlm+sop`, A and B consecutive, label 1 if they are swapped; `mlm`, `[CLS] A [SEP]` without a
    label. Samples fill `max_length` tokens, a `short_sequence_prob` of them only a random shorter length;
    csrc/collator/plan.h has the details.

    mask_prob: of the tokens that are not special by position. With `exact_mask_count` (the released recipe) each
    sequence has max(1, round(mask_prob * n)) masked tokens, else each token is drawn independently. `whole_word` masks
    all pieces of a word together. 80 % become [MASK], 10 % a random ordinary token (never a special or [unused] one).

    split: documents are ranked by a hash of the seed and their number; the lowest `validation_fraction` is validation,
    at least one document (two with NSP, and as many must remain for training). A corpus of one document is split
    inside, at a sentence. Validation has one fixed epoch: the epoch is taken as 0 whatever is asked.

    Raises CorpusError if the corpus cannot give one sample, UserError for arguments out of range.
    """

    def __init__(
        self,
        shards: TokenShards,
        *,
        objective: Objective = "mlm+nsp",
        max_length: int = 128,
        short_sequence_prob: float = 0.1,
        mask_prob: float = 0.15,
        whole_word: bool = False,
        exact_mask_count: bool = True,
        seed: int = 0,
        split: Split = "train",
        validation_fraction: float = 0.1,
    ) -> None:
        _check(objective, max_length, short_sequence_prob, mask_prob, seed, split)
        self.shards = shards
        self.objective: Objective = objective
        self.max_length = max_length
        self.short_sequence_prob = short_sequence_prob
        self.mask_prob = mask_prob
        self.whole_word = whole_word
        self.exact_mask_count = exact_mask_count
        self.seed = seed
        self.split: Split = split
        self.validation_fraction = validation_fraction

        train, validation = split_documents(
            shards, objective=objective, seed=seed, validation_fraction=validation_fraction
        )
        self.documents = train if split == "train" else validation
        if not len(self.documents):
            raise UserError(f"validation_fraction={validation_fraction} leaves no validation documents; raise it")
        self._vocabulary = vocabulary_table(shards)
        self._plans: OrderedDict[int, _C.EpochPlan] = OrderedDict()
        self._sizes: dict[int, int] = {}
        if not self.samples_per_epoch(0):
            raise CorpusError(
                f"the {split} split of {shards.folder} ({len(self.documents)} documents) is too short for one sample;"
                " add text"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Plans and tables are made again where the copy lives.
        return {key: value for key, value in self.__dict__.items() if key not in ("_plans", "_vocabulary")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._vocabulary = vocabulary_table(self.shards)
        self._plans = OrderedDict()

    def plan(self, epoch: int) -> _C.EpochPlan:
        """Which tokens make up which sample of an epoch, in visiting order. The last two plans asked for are kept."""
        epoch = self._epoch(epoch)
        if epoch in self._plans:
            self._plans.move_to_end(epoch)
            return self._plans[epoch]
        plan = _C.EpochPlan(
            self.shards.corpus,
            self.documents,
            self._vocabulary,
            objective=self.objective,
            budget=self.max_length - special_tokens(self.objective),
            short_probability=self.short_sequence_prob,
            seed=self.seed,
            epoch=epoch,
            validation=self.split == "validation",
        )
        self._plans[epoch] = plan
        self._sizes[epoch] = len(plan)
        if len(self._plans) > _PLANS_KEPT:
            self._plans.popitem(last=False)
        return plan

    def samples_per_epoch(self, epoch: int) -> int:
        """The number of samples of an epoch; it varies a little, since every epoch draws new pairs."""
        epoch = self._epoch(epoch)
        if epoch not in self._sizes:
            self.plan(epoch)
        return self._sizes[epoch]

    def locate(self, sample_counter: int) -> tuple[int, int]:
        """The epoch and the index in it of a sample that is counted through all epochs."""
        if sample_counter < 0:
            raise UserError(f"sample_counter={sample_counter} must not be negative")
        epoch = 0
        while sample_counter >= (size := self.samples_per_epoch(epoch)):
            if self.split == "validation":
                return sample_counter // size, sample_counter % size
            if not size:
                raise CorpusError(f"epoch {epoch} of {self.shards.folder} has no samples; add text")
            sample_counter -= size
            epoch += 1
        return epoch, sample_counter

    def batch(self, epoch: int, indices: NDArray[np.int64] | Sequence[int]) -> PackedBatch:
        """Samples of one epoch, by index, as a batch: a pure function."""
        from fastbert.packing import PackedBatch

        return PackedBatch(**_tensors(self._arrays(epoch, indices), with_label=self.objective != "mlm"))

    def samples(self, counters: NDArray[np.int64] | Sequence[int] | range) -> PackedBatch:
        """Samples by counter, which may lie in different epochs, as a batch in the order given."""
        from fastbert.packing import PackedBatch

        places = np.array([self.locate(int(counter)) for counter in counters], np.int64).reshape(-1, 2)
        runs = np.flatnonzero(np.diff(places[:, 0])) + 1
        parts = [self._arrays(int(part[0, 0]), part[:, 1]) for part in np.split(places, runs) if len(part)]
        arrays = parts[0] if len(parts) == 1 else _concatenate(parts or [self._arrays(0, [])])
        return PackedBatch(**_tensors(arrays, with_label=self.objective != "mlm"))

    # For torch's DataLoader: a map-style data set whose keys are lists of counters.
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
        """The batches of a run from sample `start` to `stop` (default: without end), `batch_size` samples a step.

        Of every step, rank r of a `world_size` gets samples r, r + world_size, ... The batches are the same for any
        `num_workers`; the last may be smaller.
        """
        from torch.utils.data import DataLoader

        if batch_size < world_size or not 0 <= rank < world_size:
            raise UserError(f"batch_size={batch_size} must be at least world_size={world_size}, above rank={rank}")
        # Planned here, so that forked workers share the plan.
        self.samples_per_epoch(self.locate(start)[0])
        loader: DataLoader[PackedBatch] = DataLoader(
            self,  # type: ignore[arg-type]  # a map-style data set needs no more than __getitem__
            sampler=StepSampler(batch_size, start=start, stop=stop, rank=rank, world_size=world_size),
            batch_size=None,
            num_workers=num_workers,
            pin_memory=pin_memory,
            collate_fn=_identity,  # type: ignore[arg-type]  # a batch is what the data set gives
        )
        return iter(loader)

    def _epoch(self, epoch: int) -> int:
        if not 0 <= epoch < 1 << 32:
            raise UserError(f"epoch={epoch} must be from 0 to 2^32 - 1")
        return epoch if self.split == "train" else 0

    def _arrays(self, epoch: int, indices: NDArray[np.int64] | Sequence[int]) -> dict[str, NDArray[Any]]:
        try:
            return self.plan(epoch).collate(
                self.shards.corpus,
                np.ascontiguousarray(indices, dtype=np.int64),
                self._vocabulary,
                mask_probability=self.mask_prob,
                exact_count=self.exact_mask_count,
                whole_word=self.whole_word,
            )
        except IndexError as error:
            raise UserError(f"epoch {epoch}: {error}") from None


class StepSampler:
    """The sample counters of each step, for one rank: what torch's DataLoader asks a data set for."""

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
    """The training and the validation documents, as ranges of sentences in corpus order: int64 (documents, 2) each.

    The same seed gives the same split. With `validation_fraction` 0, all documents are for training.
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
    """A single document's first sentences for training, its last for validation."""
    first, last = int(document[0]), int(document[1])
    if last - first < 2:
        raise CorpusError(f"{shards.folder} has a single sentence, which cannot be split into training and validation")
    cut = min(max(last - round((last - first) * fraction), first + 1), last - 1)
    return np.array([[first, cut]], np.int64), np.array([[cut, last]], np.int64)


def unigram_cross_entropy(
    shards: TokenShards, *, objective: Objective = "mlm+nsp", seed: int = 0, validation_fraction: float = 0.1
) -> float:
    """Nats per token of the validation documents under the training documents' unigrams (add-one smoothed).

    What a model that has learned word frequencies and nothing else would score: the bar a language model must get
    under. The arguments are those of the split.
    """
    _, validation = split_documents(shards, objective=objective, seed=seed, validation_fraction=validation_fraction)
    held_out = shards.corpus.count(validation, shards.vocab_size)
    if not held_out.sum():
        raise UserError(f"validation_fraction={validation_fraction} leaves no validation documents; raise it")
    smoothed = (shards.unigrams - held_out + 1).astype(np.float64)
    return float(-(held_out * np.log(smoothed / smoothed.sum())).sum() / held_out.sum())


def special_tokens(objective: Objective) -> int:
    """How many of a sample's tokens are [CLS] and [SEP]."""
    return 2 if objective == "mlm" else 3


def vocabulary_table(shards: TokenShards) -> _C.VocabularyTable:
    """What the collator must know of the vocabulary: pieces that continue a word, and ids a random token may have."""
    tokens = np.array(shards.vocabulary, dtype=object)
    continues = np.array([token.startswith("##") for token in tokens], dtype=bool)
    ordinary = np.array([not (token.startswith("[unused") and token.endswith("]")) for token in tokens], dtype=bool)
    ordinary[list(shards.special_ids.values())] = False
    if not ordinary.any():
        raise UserError(f"{shards.folder / 'vocab.txt'} holds only special and unused tokens; train a vocabulary")
    return _C.VocabularyTable(
        is_continuation=continues,
        replacements=np.flatnonzero(ordinary).astype(np.int64),
        cls_id=shards.special_ids["cls"],
        sep_id=shards.special_ids["sep"],
        mask_id=shards.special_ids["mask"],
    )


def _check(
    objective: str, max_length: int, short_sequence_prob: float, mask_prob: float, seed: int, split: str
) -> None:
    if objective not in get_args(Objective):
        raise UserError(f"objective={objective!r} must be one of {', '.join(get_args(Objective))}")
    if split not in get_args(Split):
        raise UserError(f"split={split!r} must be one of {', '.join(get_args(Split))}")
    smallest = 3 if objective == "mlm" else 5
    if not smallest <= max_length <= MAX_LENGTH:
        raise UserError(f"max_length={max_length} must be from {smallest} to {MAX_LENGTH} for objective {objective}")
    for name, value in (("short_sequence_prob", short_sequence_prob), ("mask_prob", mask_prob)):
        if not 0 <= value <= 1:
            raise UserError(f"{name}={value} must be from 0 to 1")
    if not 0 <= seed < 1 << 64:
        raise UserError(f"seed={seed} must be from 0 to 2^64 - 1")


def _tensors(arrays: dict[str, NDArray[Any]], *, with_label: bool) -> dict[str, Any]:
    import torch

    fields: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    fields["max_seqlen"] = int(np.diff(arrays["cu_seqlens"]).max(initial=0))
    if not with_label:
        del fields["next_sentence_label"]
    return fields


def _concatenate(parts: list[dict[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
    """Batches one after another as one."""
    shifted = []
    rows = tokens = 0
    for i, part in enumerate(parts):
        shifted.append(
            part
            | {
                "sequence_ids": part["sequence_ids"] + rows,
                "masked_positions": part["masked_positions"] + tokens,
                "cu_seqlens": part["cu_seqlens"][min(i, 1) :] + np.int32(tokens),
            }
        )
        rows += len(part["dropout_key"])
        tokens += len(part["input_ids"])
    return {name: np.concatenate([part[name] for part in shifted]) for name in parts[0]}


def _identity(batch: PackedBatch) -> PackedBatch:
    return batch
