"""What a run reports: one JSON object a line in metrics.jsonl."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.untrusted_input import UntrustedFile, require_regular_file
from fastbert.models.outputs import PreTrainingOutput

logger = logging.getLogger("fastbert")


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

    def to_state(self) -> dict[str, Any]:
        """Return the sums, exactly, as JSON can hold them."""
        sums = None if self.sums is None else [float(value).hex() for value in self.sums]
        return {"sums": sums, "has_pairs": self.has_pairs}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Totals:
        """Return what `to_state` described. Raises `CheckpointError`."""
        totals = cls()
        sums, totals.has_pairs = state.get("sums"), state.get("has_pairs") is True
        if sums is None:
            return totals
        try:
            values = [float.fromhex(value) for value in sums]
        except (TypeError, ValueError, OverflowError):
            raise CheckpointError("the sums of the metrics since the last line are not numbers") from None
        if len(values) != len(cls.NAMES):
            raise CheckpointError(f"there are {len(values)} sums of metrics, not {len(cls.NAMES)}")
        # On the host: scalars there are added to those of any device.
        totals.sums = [torch.tensor(value, dtype=torch.float64, device="cpu") for value in values]
        return totals

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


class LineLog:
    """Appends objects to a metrics.jsonl, one per line."""

    def __init__(self, path: Path, keep: Callable[[dict[str, Any]], bool] | None) -> None:
        """Begin the file anew, or with those lines of an earlier start that `keep` accepts."""
        self.path = path
        write_atomic(path, "" if keep is None else "".join(_kept_lines(path, keep)))

    def write(self, values: Mapping[str, Any]) -> None:
        """Write one line and hand it to the system, so that a killed run loses none."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(values))

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint vouches for those up to its step."""
        with self.path.open("a", encoding="utf-8") as file:
            os.fsync(file.fileno())


def _kept_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """The lines that an earlier start left and `keep` accepts, as they are; unreadable ones are reported and dropped.

    The last line may have been cut short by a kill, which nobody needs to hear of.
    """
    if not path.exists():
        return
    try:
        with UntrustedFile(path) as file:
            text = file.read(0, file.size).decode("utf-8", "replace")
    except CheckpointError as error:
        logger.warning("%s; metrics.jsonl begins anew", error)
        return
    *lines, _ = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            accepted = keep(record)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            logger.warning("%s: line %d is not a metrics record; it is dropped", path, number)
            continue
        if accepted:
            yield f"{line}\n"


class MetricsLog(LineLog):
    """The metrics.jsonl of a pre-training run; a resumed one first drops the lines after its checkpoint."""

    def __init__(self, path: Path, resumed_step: int | None) -> None:
        super().__init__(path, None if resumed_step is None else lambda record: Metrics(**record).step <= resumed_step)

    def append(self, metrics: Metrics) -> None:
        """Write one line."""
        self.write(asdict(metrics))


def line_of(values: Mapping[str, Any]) -> str:
    """A line of a metrics.jsonl; what is not finite is null there."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(plain) + "\n"


def read_records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a metrics.jsonl with their lines, from 1; a last line cut short by a kill is left out."""
    if not path.exists():
        return []
    require_regular_file(path)
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[tuple[int, dict[str, Any]]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append((number, json.loads(line)))
        except (ValueError, RecursionError):
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
