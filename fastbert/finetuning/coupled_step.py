"""Steps whose loss compares all examples with each other: contrastive losses with negatives from the whole batch.

A step has two halves. The model turns rows of tokens into vectors, in passes of a bounded number of tokens, and the
loss reads the vectors of all rows at once. One pass is differentiated as it is. With several passes gradients are
cached (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited setup"): the first round
computes vectors alone, the loss gives the gradient of each vector, and the second round computes each pass again, but
for the one whose activations are still there, and carries its vectors' gradient on to the weights. Memory holds the
activations of one pass, whatever the batch.
Dropout is a function of each row's key, so both rounds drop the same elements.

Rows are packed by length and nothing is padded. With several processes each of them computes the vectors of its share;
all of them see all vectors, and therefore all negatives, and the sum of their gradients is that of the whole batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastbert.data.step_samples import share_by_tokens
from fastbert.distributed.world import World
from fastbert.packing import PackedBatch
from fastbert.tasks.coupled import CoupledBatch, CoupledTask
from fastbert.tasks.predicting import autocast
from fastbert.tasks.rows import Rows, bounds, by_length, runs
from fastbert.training.parallel import replicated

PASS_TOKENS = {"cpu": 4096, "cuda": 131072}
"""Tokens that a single pass of the model may have, unless --pass-tokens sets them."""
CACHED_PASS_TOKENS = {"cpu": 1024, "cuda": 131072}
"""Tokens per pass where several are needed: on a CPU fewer take hardly more time, and a quarter of the memory."""


@dataclass(frozen=True)
class Pass:
    """Rows that the model computes together; `vectors` are the indices of their vectors among all of the step."""

    inputs: PackedBatch
    kept: Tensor | None
    """The tokens whose vectors count, int64; None for all vectors."""
    vectors: Tensor


@dataclass(frozen=True)
class CoupledShare:
    """The passes of one process, and what the loss needs of the whole step."""

    passes: list[Pass]
    batch: CoupledBatch
    count: int
    """The vectors of the whole step."""
    items: float
    tokens: int
    idle: bool = False
    """True for a process without examples, which takes part in the sum of gradients with a row of no weight."""


class CoupledStep:
    """The forward and backward pass of steps of a coupled task."""

    def __init__(
        self,
        model: Any,
        task: CoupledTask[Any],
        rows: Rows,
        world: World,
        dtype: torch.dtype,
        *,
        pass_tokens: int | None = None,
        micro_batch: int | None = None,
    ) -> None:
        """`pass_tokens` bounds the tokens of a pass, or `micro_batch` its examples; `dtype` is that of matmuls."""
        self.model = model
        self.task = task
        self.rows = rows
        self.world = world
        self.dtype = dtype
        self.pass_tokens = pass_tokens
        self.micro_batch = micro_batch
        self._represent: Any = _Representation(model, task)
        self._replica: Any = None

    def wrap(self) -> None:
        """Set up the sum of gradients over processes; see `TrialLoss.wrap`."""
        if self.world.size > 1:
            self._replica = replicated(self._represent, self.dtype)

    def share(self, units: np.ndarray, keys: np.ndarray) -> CoupledShare:
        """Return this process's share of a step over `units` with their dropout `keys`, int64 (units,)."""
        rows, world = self.rows, self.world
        every, row_keys = rows.of_units(units), rows.row_keys(units, keys)
        sizes = np.diff(rows.unit_offsets)[units]
        mine = np.arange(len(units))
        if world.size > 1:
            mine = share_by_tokens(rows.unit_lengths(units), world.rank, world.size)
        idle = len(mine) == 0
        mine = mine if not idle else np.arange(1)
        first = bounds(sizes)
        positions = runs(first[mine], sizes[mine])
        kept = self.task.kept_tokens(rows, every)
        counts = self.task.vector_counts(rows, every, kept)
        offsets, token_offsets = bounds(counts), bounds(rows.lengths[every])

        def pass_of(group: np.ndarray) -> Pass:
            tokens = None
            if kept is not None:
                lengths = rows.lengths[every[group]]
                tokens = torch.from_numpy(np.flatnonzero(kept[runs(token_offsets[group], lengths)]))
            vectors = torch.from_numpy(runs(offsets[group], counts[group]))
            return Pass(self.task.packed(rows, every[group], row_keys[group]), tokens, vectors)

        passes = [pass_of(group) for group in self._groups(positions, sizes[mine], rows.lengths[every])]
        targets = {name: torch.from_numpy(values[units]) for name, values in rows.unit_targets.items()}
        targets |= {name: torch.from_numpy(values[every]) for name, values in rows.row_targets.items()}
        batch = CoupledBatch(torch.from_numpy(sizes), torch.from_numpy(offsets), targets)
        return CoupledShare(
            passes, batch, int(offsets[-1]), float(len(units)), int(rows.lengths[every].sum()), idle=idle
        )

    def _groups(self, positions: np.ndarray, sizes: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the rows of each pass, as positions among the rows of the step."""
        if self.micro_batch is not None:
            ends = bounds(sizes)[:: self.micro_batch]
            cuts = [*ends[1:].tolist()] if ends[-1] != len(positions) else ends[1:-1].tolist()
            yield from np.split(positions, cuts)
            return
        device = self.model.device.type if self.model.device.type in PASS_TOKENS else "cpu"
        fits = lengths[positions].sum() <= PASS_TOKENS[device]
        budget = self.pass_tokens or (PASS_TOKENS if fits else CACHED_PASS_TOKENS)[device]
        for group in by_length(lengths[positions], budget):
            yield positions[group]

    def backward(self, share: CoupledShare, scaler: torch.amp.GradScaler, progress: float) -> Tensor:
        """Add the gradients of the step to the parameters, summed over all processes; return the loss and its parts,
        fp32 (1 + parts,), in the first process and zeros in the others. `progress` is the finished fraction of the
        trial."""
        device = self.model.device
        # The last vectors keep their graph, so that one pass fewer is computed again; memory holds one graph at a time.
        rotated = [*share.passes[1:], share.passes[0]]
        vectors: Tensor | None = None
        piece: Tensor | None = None
        for each in rotated:
            replayed = each is not rotated[-1]
            with torch.no_grad() if replayed else contextlib.nullcontext():
                piece = self._vectors(each, last=len(share.passes) == 1, plain=replayed)
            if vectors is None:
                vectors = torch.zeros(share.count, *piece.shape[1:], device=device)
            if not share.idle:
                vectors[each.vectors.to(device)] = piece.detach().float()
        assert vectors is not None
        if self.world.size > 1:
            dist.all_reduce(vectors)
        vectors.requires_grad_()
        losses = self.task.coupled_loss(vectors, share.batch.to(device), share.items, progress)
        scaler.scale(losses.total).backward()
        assert vectors.grad is not None
        for number, each in enumerate(share.passes, start=1):
            last = number == len(share.passes)
            gradient = vectors.grad[each.vectors.to(device)]
            with self._accumulating(last):
                if piece is None:
                    piece = self._vectors(each, last=last)
                piece.backward(gradient.to(piece.dtype) * (0.0 if share.idle else 1.0))
            piece = None
        numbers = torch.stack((losses.total, *losses.parts)).detach().float()
        return numbers if self.world.is_main else torch.zeros_like(numbers)

    def _vectors(self, each: Pass, *, last: bool, plain: bool = False) -> Tensor:
        """Return the vectors of a pass; `plain`, without the wrapper that sums gradients."""
        device = self.model.device
        inputs = each.inputs
        if device.type == "cuda":
            inputs = inputs.pin_memory()
        kept = None if each.kept is None else each.kept.to(device)
        module = self._represent if plain or self._replica is None else self._replica
        with self._accumulating(last), autocast(device, self.dtype):
            vectors: Tensor = module(inputs.to(device, non_blocking=True), kept)
        return vectors

    def _accumulating(self, last: bool) -> contextlib.AbstractContextManager[None]:
        if self._replica is None or last:
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._replica.no_sync()
        return context


class _Representation(nn.Module):
    """The model with its task, as DDP wraps it."""

    def __init__(self, model: nn.Module, task: CoupledTask[Any]) -> None:
        super().__init__()
        self.model = model
        self._task = (task,)

    def forward(self, inputs: PackedBatch, kept: Tensor | None) -> Tensor:
        """Return the vectors of a batch, those of `kept` tokens alone."""
        vectors = self._task[0].represent(self.model, inputs)
        return vectors if kept is None else vectors.index_select(0, kept)
