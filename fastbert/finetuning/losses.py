"""The loss of a training batch, as the loop of a trial minimises and reports it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fastbert.tasks.rows import TaskBatch


@dataclass(frozen=True, eq=False)
class Losses:
    """A batch's share of the mean loss, fp32 scalars: the loss that is minimised, and parts of it to report."""

    total: Tensor
    parts: tuple[Tensor, ...] = ()


Objective = Callable[[Any, TaskBatch, float], Tensor | Losses]
"""(model, batch, items) -> the loss of a batch: `Task.loss`, that of distillation, or that with a language model."""
