"""Examples as concatenated rows of tokens, batches of them, and arithmetic of such rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fastbert.errors import require_whole

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fastbert.packing import PackedBatch

# Tokens per batch: few enough for their activations to stay in a CPU's caches, or enough to fill a GPU.
BATCH_TOKENS = {"cpu": 4096, "cuda": 65536}


def tokens_per_batch(device: str, batch_tokens: int | None = None) -> int:
    """Return `batch_tokens`, or the default of a type of device for None. Raises `UserError` for less than one."""
    require_whole("batch_tokens", batch_tokens, 1, optional=True)
    return batch_tokens or BATCH_TOKENS.get(device, BATCH_TOKENS["cpu"])


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskBatch:
    """The packed rows of a forward pass, their targets by name, and for sequence to sequence the decoder's rows."""

    inputs: PackedBatch
    targets: dict[str, Tensor]
    decoder: PackedBatch | None = None
    token_share: float = 1.0
    """For a micro-batch, its share of the batch's tokens."""
    next_token_share: float = 1.0
    """For a micro-batch, its share of the batch's tokens that follow another token of their row."""
    pair_share: float = 1.0
    """For a micro-batch, its share of the pairs of tokens that attend to each other."""

    @property
    def pairs(self) -> int:
        """The number of pairs of tokens in the same row."""
        return int(self.inputs.cu_seqlens.diff().long().square().sum())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TaskBatch:
        """Return the batch on a different device."""
        return replace(
            self,
            inputs=self.inputs.to(device, non_blocking),
            targets={name: tensor.to(device, non_blocking=non_blocking) for name, tensor in self.targets.items()},
            decoder=None if self.decoder is None else self.decoder.to(device, non_blocking),
        )

    def pin_memory(self) -> TaskBatch:
        """Return the batch in page-locked memory, from which copies to a GPU are asynchronous."""
        return replace(
            self,
            inputs=self.inputs.pin_memory(),
            targets={name: tensor.pin_memory() for name, tensor in self.targets.items()},
            decoder=None if self.decoder is None else self.decoder.pin_memory(),
        )


@dataclass(frozen=True)
class BatchSizes:
    """The tokens of a batch, its rows, and its pairs of tokens in the same row."""

    tokens: float
    rows: float
    pairs: float

    @classmethod
    def of(cls, batches: Sequence[TaskBatch]) -> BatchSizes:
        """Return the sizes of a batch that these micro-batches make up."""
        return cls(
            sum(batch.inputs.num_tokens for batch in batches),
            sum(len(batch.inputs) for batch in batches),
            sum(batch.pairs for batch in batches),
        )


def share_out(batches: Sequence[TaskBatch], whole: BatchSizes | None = None) -> list[TaskBatch]:
    """Set the shares of micro-batches in a batch of the sizes `whole`; by default they make up all of it."""
    whole = whole or BatchSizes.of(batches)
    return [
        replace(
            batch,
            token_share=batch.inputs.num_tokens / max(whole.tokens, 1),
            next_token_share=(batch.inputs.num_tokens - len(batch.inputs)) / max(whole.tokens - whole.rows, 1),
            pair_share=batch.pairs / max(whole.pairs, 1),
        )
        for batch in batches
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows of tokens, special ones included: row i has the tokens `offsets[i]` up to `offsets[i + 1]`.

    `input_ids` and `token_type_ids` are int32 (tokens,), `offsets` int64 (rows + 1,), `examples` int64 (rows,) the
    example of the dataset that each row belongs to (sorted; an example may have several rows: windows, choices).
    `per_unit` adjacent rows are trained on together: the choices of a question, the orders of a pair. With
    `unit_sizes`, int64 (units,), units have different numbers of rows: a query and its texts. `unit_targets` have one
    item per unit, `row_targets` one per row. `joined`: a model has one output per unit, so its rows are in one batch in
    inference too.
    `decoder`: the decoder's rows, as many as there are rows here.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    offsets: np.ndarray
    examples: np.ndarray
    per_unit: int = 1
    joined: bool = False
    unit_targets: Mapping[str, np.ndarray] = field(default_factory=dict)
    row_targets: Mapping[str, np.ndarray] = field(default_factory=dict)
    unit_sizes: np.ndarray | None = None
    decoder: Rows | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def units(self) -> int:
        """The number of units, in which training batches are counted."""
        return len(self) // self.per_unit if self.unit_sizes is None else len(self.unit_sizes)

    @cached_property
    def unit_offsets(self) -> np.ndarray:
        """The first row of each unit, and the number of all rows: int64 (units + 1,)."""
        return np.arange(self.units + 1) * self.per_unit if self.unit_sizes is None else bounds(self.unit_sizes)

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row."""
        return np.diff(self.offsets)

    def unit_lengths(self, units: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each of these units, those of the decoder included."""
        first, end = self.unit_offsets[units], self.unit_offsets[units + 1]
        lengths: np.ndarray = self.offsets[end] - self.offsets[first]
        return lengths if self.decoder is None else lengths + self.decoder.offsets[end] - self.decoder.offsets[first]

    def arrays(self) -> Iterator[np.ndarray]:
        """Yield all arrays that the rows are made of."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                yield value
            elif isinstance(value, Mapping):
                yield from value.values()
            elif isinstance(value, Rows):
                yield from value.arrays()

    def batch(self, units: np.ndarray, keys: np.ndarray | None = None) -> TaskBatch:
        """Return the units of these numbers, in this order, with their targets; `keys`, int64, one per unit, seed
        dropout."""
        import torch

        rows = self.of_units(units)
        row_keys = None if keys is None else self.row_keys(units, keys)
        targets = {name: torch.from_numpy(values[units]) for name, values in self.unit_targets.items()}
        targets |= {name: torch.from_numpy(values[rows]) for name, values in self.row_targets.items()}
        decoder = None if self.decoder is None else self.decoder.packed(rows, row_keys)
        return TaskBatch(inputs=self.packed(rows, row_keys), targets=targets, decoder=decoder)

    def of_units(self, units: np.ndarray) -> np.ndarray:
        """Return the numbers of the rows of units, int64, in the order of the units."""
        return runs(self.unit_offsets[units], self.unit_offsets[units + 1] - self.unit_offsets[units])

    def row_keys(self, units: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Return a dropout key per row of the units, int64, from one per unit."""
        sizes = self.unit_offsets[units + 1] - self.unit_offsets[units]
        return np.repeat(keys, sizes) + runs(np.zeros_like(sizes), sizes)

    def packed(self, rows: np.ndarray, keys: np.ndarray | None = None) -> PackedBatch:
        """Return the rows of these numbers, in this order, without targets."""
        import torch

        from fastbert.packing import PackedBatch

        tokens, lengths = self._tokens(rows), self.lengths[rows]
        return PackedBatch(
            input_ids=torch.from_numpy(self.input_ids[tokens].astype(np.int64)),
            token_type_ids=torch.from_numpy(self.token_type_ids[tokens].astype(np.int64)),
            cu_seqlens=torch.from_numpy(bounds(lengths).astype(np.int32)),
            max_seqlen=int(lengths.max(initial=0)),
            dropout_key=None if keys is None else torch.from_numpy(keys.astype(np.int64)),
        )

    def by_length(self, batch_tokens: int) -> Iterator[np.ndarray]:
        """Return all rows, longest first, in groups of at most `batch_tokens` tokens; a longer row stands alone. So do
        joined units, in place of rows."""
        if not self.joined:
            return by_length(self.lengths, batch_tokens)
        return map(self.of_units, by_length(np.diff(self.offsets[self.unit_offsets]), batch_tokens))

    def _tokens(self, rows: np.ndarray) -> np.ndarray:
        """Return the indices of the tokens of these rows, in the order of the rows."""
        return runs(self.offsets[rows], self.lengths[rows])


def bounds(sizes: np.ndarray) -> np.ndarray:
    """Return the offsets of runs of these sizes, and the end of the last: int64 (runs + 1,)."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def runs(begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return the token indices of runs, one run after the other: `begins[0]`, `begins[0] + 1`, ... int64."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)


def by_length(lengths: np.ndarray, batch_tokens: int) -> Iterator[np.ndarray]:
    """Yield the numbers of runs, longest first, in groups of at most `batch_tokens` tokens; a longer run stands
    alone."""
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    first = done = 0
    while first < len(order):
        last = max(first + 1, int(np.searchsorted(ends, done + batch_tokens, side="right")))
        yield order[first:last]
        first, done = last, int(ends[last - 1])
