"""Tasks whose loss reads the vectors of a whole batch together, since each example is compared with all others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastbert.errors import UserError
from fastbert.tasks.base import Task
from fastbert.tasks.examples import E
from fastbert.tasks.rows import Rows, TaskBatch

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fastbert.packing import PackedBatch


@dataclass(frozen=True)
class CoupledLosses:
    """The mean loss of a batch, an fp32 scalar, and numbers of it to report."""

    total: Tensor
    parts: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class CoupledBatch:
    """What a loss reads beside vectors: `sizes`, the rows of each unit, int64 (units,); `offsets`, the vectors of each
    row, int64 (rows + 1,); and targets by name, one item per unit or per row."""

    sizes: Tensor
    offsets: Tensor
    targets: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device) -> CoupledBatch:
        """Return the batch on a device."""
        targets = {name: tensor.to(device) for name, tensor in self.targets.items()}
        return CoupledBatch(self.sizes.to(device), self.offsets.to(device), targets)


class CoupledTask(Task[E]):
    """A task whose model turns rows into vectors, and whose loss compares the vectors of all rows of a batch."""

    couples = True
    parts: ClassVar[tuple[str, ...]] = ()
    """Names in metrics.jsonl of the parts of `coupled_loss`."""

    @abstractmethod
    def represent(self, model: Any, inputs: PackedBatch) -> Tensor:
        """Return one vector per row, (rows, width), or per token, (tokens, width), of any floating dtype."""

    def kept_tokens(self, rows: Rows, indices: np.ndarray) -> np.ndarray | None:
        """Return which tokens of the rows of these numbers have a vector, bool (tokens,); None: vectors are those of
        rows."""
        return None

    def vector_counts(self, rows: Rows, indices: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
        """Return the number of vectors of each of the rows, int64."""
        if kept is None:
            return np.ones(len(indices), dtype=np.int64)
        ends = np.cumsum(rows.lengths[indices])
        return np.diff(np.concatenate(([0], np.cumsum(kept)))[np.concatenate(([0], ends))])

    @abstractmethod
    def coupled_loss(self, vectors: Tensor, batch: CoupledBatch, items: float, progress: float) -> CoupledLosses:
        """Return the mean loss of a batch of `items` units from the vectors of all its rows, fp32; `progress` is the
        finished fraction of the training."""

    def items(self, batch: TaskBatch) -> float:
        raise UserError(f"{self.name}: its loss is that of a whole batch of vectors (coupled_loss)")
