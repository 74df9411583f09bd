"""What a run reports: one JSON object a line in metrics.jsonl."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.models.outputs import PreTrainingOutput
from fastbert.training.checkpoint import write_atomic


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A line of metrics.jsonl. Losses in nats a prediction; `tokens` and `seconds` of training so far.

    `nsp_loss` and `nsp_accuracy` are None without sentence pairs, and speak of sentence order with `mlm+sop`.
    """

    step: int
    split: Literal["train", "validation"]
    loss: float
    mlm_loss: float
    nsp_loss: float | None
    mlm_accuracy: float
    nsp_accuracy: float | None
    tokens: int
    tokens_per_second: float
    learning_rate: float
    seconds: float


class Totals:
    """Sums of losses and counts over batches, kept on the device until they are asked for."""

    NAMES = ("mlm_loss_sum", "mlm_count", "mlm_correct", "nsp_loss_sum", "nsp_count", "nsp_correct")

    def __init__(self) -> None:
        self.sums: list[Tensor] | None = None
        self.has_pairs = False

    def add(self, output: PreTrainingOutput) -> None:
        """Add one batch."""
        values = [getattr(output, name) for name in self.NAMES]
        self.has_pairs = self.has_pairs or values[3] is not None
        device = next(value for value in values if value is not None).device
        zero = torch.zeros((), device=device)
        tensors = [zero if value is None else value.detach().double() for value in values]
        self.sums = tensors if self.sums is None else [a + b for a, b in zip(self.sums, tensors)]

    def read(self) -> dict[str, Any]:
        """Means of the losses and accuracies, under the names of `Metrics`."""
        if self.sums is None:
            raise AssertionError("no batch was added")
        mlm_loss, mlm_count, mlm_correct, nsp_loss, nsp_count, nsp_correct = (float(value) for value in self.sums)
        mlm_count, nsp_count = max(mlm_count, 1.0), max(nsp_count, 1.0)
        pairs = self.has_pairs
        return {
            "loss": mlm_loss / mlm_count + (nsp_loss / nsp_count if pairs else 0.0),
            "mlm_loss": mlm_loss / mlm_count,
            "nsp_loss": nsp_loss / nsp_count if pairs else None,
            "mlm_accuracy": mlm_correct / mlm_count,
            "nsp_accuracy": nsp_correct / nsp_count if pairs else None,
        }


class MetricsLog:
    """Appends to metrics.jsonl; a resumed run first drops the lines after its checkpoint."""

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        self.path = path
        kept = [] if resumed_step is None else [line for line in read_metrics(path) if line.step <= resumed_step]
        write_atomic(path, "".join(line_of(asdict(metrics)) for metrics in kept))

    def append(self, metrics: Metrics) -> None:
        """Write one line and hand it to the system, so that a killed run loses none."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(asdict(metrics)))


def line_of(values: Mapping[str, Any]) -> str:
    """A line of a metrics.jsonl; what is not finite is null there."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(plain) + "\n"


def read_records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a metrics.jsonl with their lines, from 1; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append((number, json.loads(line)))
        except json.JSONDecodeError:
            if number < len(lines):
                raise UserError(f"{path}: line {number} is not a metrics record") from None
    return records


def read_metrics(path: Path) -> list[Metrics]:
    """The lines of a pre-training run's metrics.jsonl."""
    records: list[Metrics] = []
    for number, values in read_records(path):
        try:
            records.append(Metrics(**values))
        except TypeError:
            raise UserError(f"{path}: line {number} is not a metrics record") from None
    return records


def last_of(records: Iterable[Metrics], split: str) -> Metrics | None:
    """The last record of a split."""
    found = [record for record in records if record.split == split]
    return found[-1] if found else None
