"""The loss and the gradient's norm of every step, exactly, in steps.jsonl, so that `fastbert replay` can compare them.

A line per step: {"step", "loss", "gradient_norm"}, numbers that read back to the same bits, and on steps that have a
line in metrics.jsonl "weights", the sum of all weights' bits after the step. A step that was left out, since its loss
had been a spike, is "omitted".
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastbert import _C
from fastbert.training.metrics import MetricsLog, read_records, typed

FILE = "steps.jsonl"


@dataclass(frozen=True)
class ExactStep:
    """A line of steps.jsonl; numbers that are not finite are None."""

    step: int
    loss: float | None
    gradient_norm: float | None
    weights: int | None = None
    omitted: bool = False

    @classmethod
    def of(
        cls, step: int, loss: float, gradient_norm: float, weights: int | None = None, *, omitted: bool = False
    ) -> ExactStep:
        """Return the line of a step."""
        finite = [value if math.isfinite(value) else None for value in (loss, gradient_norm)]
        return cls(step, finite[0], finite[1], weights, omitted)


class StepLog:
    """Appends a line per step to steps.jsonl."""

    def __init__(self, folder: Path, after: int) -> None:
        """Start an empty log, or continue that of a run which resumes after the step `after`."""
        self._log = MetricsLog(folder / FILE, (lambda line: int(line["step"]) <= after) if after else None)

    def append(self, line: ExactStep) -> None:
        """Append the line of a step."""
        values = vars(line).copy()
        if line.weights is None:
            del values["weights"]
        if not line.omitted:
            del values["omitted"]
        self._log.append(values)

    def sync(self) -> None:
        """Flush all lines to the disk."""
        self._log.sync()


def read_steps(folder: Path) -> dict[int, ExactStep]:
    """Read the steps of a run by number. Raises `UserError` for a line that is not a step's."""
    lines: list[Any] = read_records(folder / FILE, functools.partial(typed, ExactStep))
    return {line.step: line for line in lines}


@torch.no_grad()
def weights_sum(model: nn.Module) -> int:
    """Return a sum of a model's weights, read as integers of their width and weighted by the row and the parameter in
    which they stand, modulo 2^64: equal weights have equal sums, and a change of one bit changes it. It takes one pass
    over the weights."""
    total, on_cpu = 0, []
    for index, parameter in enumerate(model.parameters()):
        plain = parameter.detach().contiguous()
        matrix = plain.reshape(len(plain) if plain.dim() else 1, -1) if plain.numel() else plain.new_empty(0, 0)
        if matrix.is_cpu:
            on_cpu.append(matrix)
            continue
        on_cpu.append(torch.empty(0, 0))  # so that the others keep their places
        rows = matrix.view({4: torch.int32, 2: torch.int16, 8: torch.int64}[matrix.element_size()]).sum(1)
        odd = 2 * torch.arange(len(rows), device=rows.device) + 1  # odd factors lose no bit
        total += int((rows * odd).sum()) * (2 * index + 1)
    total += _C.weights_sum([(matrix.data_ptr(), *matrix.shape, matrix.element_size()) for matrix in on_cpu])
    return total % 2**64
