"""The metrics of a run, one JSON object per line of metrics.jsonl, and its position in state.json of checkpoints."""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fastbert.errors import CheckpointError, UserError
from fastbert.io.atomic_write import write_atomic
from fastbert.io.log import logger
from fastbert.io.untrusted_input import UntrustedFile, require_regular_file
from fastbert.models.electra.pretraining import DISCRIMINATOR_WEIGHT
from fastbert.models.outputs import PreTrainingOutput

PERPLEXITIES = ("forward_perplexity", "backward_perplexity")
DETECTION = ("rtd_loss", "rtd_accuracy", "rtd_precision", "rtd_recall", "rtd_replaced")
WAITS = ("data_seconds", "validation_seconds", "checkpoint_seconds")
MEASURED = ("seconds", "tokens_per_second", "mfu", "memory_bytes", *WAITS)
"""The fields that a clock or the machine gives: they differ between a run and its repetition, all others are equal."""

Line = TypeVar("Line")


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """A line of metrics.jsonl. Losses are in nats per prediction; `tokens` and `seconds` count training so far.

    `mlm_loss` and `mlm_accuracy` are those of predicted tokens: masked ones, or with `ltr` the next ones. `nsp_loss`
    and `nsp_accuracy` are None without sentence pairs, and those of sentence order with `mlm+sop`. With `bilm` the
    first two are means over both directions, and each has a perplexity. With `rtd` they are those of the generator;
    the discriminator has its loss per token, its accuracy over all tokens, precision and recall of replaced ones, and
    their share of all tokens (`rtd_replaced`).

    `gradient_norm` is that of the line's last step, before clipping; `mfu`, the model FLOPs utilisation since the line
    before, is a fraction of the device's peak. `memory_bytes` is the peak of the process on a CPU, and of the allocator
    on a GPU. `skipped_steps` counts steps without an update, and `data_seconds`, `validation_seconds` and
    `checkpoint_seconds` the time waited for batches and taken by validations and saves, all of them since the run
    began. What a run or its objective does not have is None; of the fields below `seconds`, None is not written.
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
    forward_perplexity: float | None = None
    backward_perplexity: float | None = None
    rtd_loss: float | None = None
    rtd_accuracy: float | None = None
    rtd_precision: float | None = None
    rtd_recall: float | None = None
    rtd_replaced: float | None = None
    gradient_norm: float | None = None
    mfu: float | None = None
    memory_bytes: int | None = None
    skipped_steps: int | None = None
    data_seconds: float | None = None
    validation_seconds: float | None = None
    checkpoint_seconds: float | None = None

    def record(self) -> dict[str, Any]:
        """Return the line as a dictionary."""
        return {name: value for name, value in vars(self).items() if value is not None or name not in _OPTIONAL}


_OPTIONAL = frozenset(item.name for item in fields(Metrics) if item.default is None)


class Totals:
    """Sums of losses and counts over batches, kept on the device until they are read."""

    NAMES = ("mlm_loss_sum", "mlm_count", "mlm_correct", "nsp_loss_sum", "nsp_count", "nsp_correct")
    FORWARD = "forward_loss_sum"
    """The part of the first sum that is of the direction from left to right, of models with two."""
    DETECTED = ("rtd_loss_sum", "rtd_count", "rtd_correct", "rtd_flagged", "rtd_replaced", "rtd_found")
    """Sums of a discriminator of replaced tokens."""
    EXTRAS = (FORWARD, *DETECTED)
    """Sums that only some models have."""
    NUMBERS = len(NAMES) + 1 + 2 * len(EXTRAS)
    """Length of `numbers`."""

    def __init__(self) -> None:
        self.sums: list[Tensor] | None = None
        self.has_pairs: bool = False
        self.extras: dict[str, Tensor] = {}

    def add(self, output: PreTrainingOutput) -> None:
        """Add one batch."""
        values = [getattr(output, name) for name in self.NAMES]
        self.has_pairs = self.has_pairs or values[3] is not None
        device = next(value for value in values if value is not None).device
        if device.type == "cpu":  # one tensor is sooner made than six are converted
            numbers = [0.0 if value is None else value.item() for value in values]
            tensors = list(torch.tensor(numbers, dtype=torch.float64, device=device).unbind())
        else:
            zero = torch.zeros((), device=device)
            tensors = [zero if value is None else value.detach().double() for value in values]
        self.sums = tensors if self.sums is None else [a + b for a, b in zip(self.sums, tensors)]
        for name in self.EXTRAS:
            extra = getattr(output, name, None)
            if extra is not None:
                extra = extra.detach().double()
                self.extras[name] = self.extras[name] + extra if name in self.extras else extra

    def add_totals(self, other: Totals) -> None:
        """Add other sums."""
        if other.sums is not None:
            sums = [value.detach().cpu() for value in other.sums]
            self.sums = sums if self.sums is None else [a + b for a, b in zip(self.sums, sums)]
        self.has_pairs = self.has_pairs or other.has_pairs
        for name, value in other.extras.items():
            value = value.detach().cpu()
            self.extras[name] = self.extras[name] + value if name in self.extras else value

    def numbers(self) -> Tensor:
        """Return the sums, and which of them there are, as numbers that can be summed over processes: fp64 on the host,
        (NUMBERS,)."""
        sums = [0.0] * len(self.NAMES) if self.sums is None else [float(value) for value in self.sums]
        extras = [(float(self.extras.get(name, 0.0)), float(name in self.extras)) for name in self.EXTRAS]
        values = [*sums, float(self.has_pairs), *(number for pair in extras for number in pair)]
        return torch.tensor(values, dtype=torch.float64, device="cpu")

    def set_numbers(self, numbers: Tensor) -> None:
        """Take over the sums of several processes, fp64 (NUMBERS,)."""
        values = numbers.clone()
        count = len(self.NAMES)
        self.sums, self.has_pairs = list(values[:count].unbind()), bool(values[count])
        rest = values[count + 1 :].view(-1, 2)
        self.extras = {name: value for name, (value, present) in zip(self.EXTRAS, rest, strict=True) if present}

    def to_state(self) -> dict[str, Any]:
        """Return the exact sums as JSON can store them."""
        sums = None if self.sums is None else [float(value).hex() for value in self.sums]
        extras = {name: float(value).hex() for name, value in self.extras.items()}
        return {"sums": sums, "has_pairs": self.has_pairs, **extras}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Totals:
        """Return the totals that `to_state` stored. Raises `CheckpointError`."""
        totals = cls()
        sums, totals.has_pairs = state.get("sums"), state.get("has_pairs") is True
        if sums is None:
            return totals
        try:
            values = [float.fromhex(value) for value in sums]
            for name in cls.EXTRAS:
                if state.get(name) is not None:
                    value = float.fromhex(state[name])
                    totals.extras[name] = torch.tensor(value, dtype=torch.float64, device="cpu")
        except (TypeError, ValueError, OverflowError):
            raise CheckpointError("the sums of the metrics since the last line are not numbers") from None
        if len(values) != len(cls.NAMES):
            raise CheckpointError(f"there are {len(values)} sums of metrics, not {len(cls.NAMES)}")
        # On the host: scalars there are added to those of any device.
        totals.sums = [torch.tensor(value, dtype=torch.float64, device="cpu") for value in values]
        return totals

    def read(self) -> dict[str, Any]:
        """Return mean losses and accuracies, under the names of `Metrics`."""
        if self.sums is None:
            raise AssertionError("no batch was added")
        mlm_loss, mlm_count, mlm_correct, nsp_loss, nsp_count, nsp_correct = (float(value) for value in self.sums)
        mlm_count, nsp_count = max(mlm_count, 1.0), max(nsp_count, 1.0)
        pairs, detection = self.has_pairs, self._detection()
        detection_loss = DISCRIMINATOR_WEIGHT * (detection.get("rtd_loss") or 0.0)
        return {
            "loss": mlm_loss / mlm_count + (nsp_loss / nsp_count if pairs else 0.0) + detection_loss,
            "mlm_loss": mlm_loss / mlm_count,
            "nsp_loss": nsp_loss / nsp_count if pairs else None,
            "mlm_accuracy": mlm_correct / mlm_count,
            "nsp_accuracy": nsp_correct / nsp_count if pairs else None,
            **self._perplexities(mlm_loss, mlm_count),
            **detection,
        }

    def _perplexities(self, loss_sum: float, count: float) -> dict[str, float]:
        """Return the perplexity of each direction of two that predict `count` words in all."""
        if self.FORWARD not in self.extras:
            return {}
        forward = float(self.extras[self.FORWARD])
        means = (forward / (count / 2), (loss_sum - forward) / (count / 2))
        return {name: math.exp(min(mean, 700.0)) for name, mean in zip(PERPLEXITIES, means, strict=True)}

    def _detection(self) -> dict[str, float | None]:
        """Return the metrics of a discriminator; precision and recall are None where they are undefined."""
        if not all(name in self.extras for name in self.DETECTED):
            return {}
        loss, count, correct, flagged, replaced, found = (float(self.extras[name]) for name in self.DETECTED)
        tokens = max(count, 1.0)
        precision, recall = (found / total if total else None for total in (flagged, replaced))
        values = (loss / tokens, correct / tokens, precision, recall, replaced / tokens)
        return dict(zip(DETECTION, values, strict=True))


class MetricsLog:
    """Appends objects to a metrics.jsonl, one per line."""

    def __init__(
        self,
        path: Path,
        keep: Callable[[dict[str, Any]], bool] | None,
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Start an empty file, or one with the lines of an earlier start that `keep` accepts. `on_line` is called after
        each line that is appended."""
        self.path = path
        self.on_line = on_line
        write_atomic(path, "" if keep is None else "".join(_kept_lines(path, keep)))

    def append(self, values: Mapping[str, Any]) -> None:
        """Append a line and pass it to the system, so that a killed run loses none."""
        _append(self.path, line_of(values).encode())
        if self.on_line is not None:
            self.on_line(dict(values))

    def sync(self) -> None:
        """Flush all lines to the disk, as a checkpoint requires for those up to its step."""
        with self.path.open("ab") as file:
            os.fsync(file.fileno())


def _append(path: Path, data: bytes) -> None:
    """Append bytes to a file, at a tenth of what open() takes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _kept_lines(path: Path, keep: Callable[[dict[str, Any]], bool]) -> Iterator[str]:
    """Yield the lines of an earlier start that `keep` accepts; unreadable ones are reported and dropped.

    A last line that a kill has cut short is dropped without a report.
    """
    if not path.exists():
        return
    try:
        with UntrustedFile(path) as file:
            text = file.read(0, file.size).decode("utf-8", "replace")
    except CheckpointError as error:
        logger.warning("%s; metrics.jsonl starts empty", error)
        return
    *lines, _ = text.split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            accepted = keep(record)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
            logger.warning("%s: line %d is not a metrics record; it is dropped", path, number)
            continue
        if accepted:
            yield f"{line}\n"


def line_of(values: Mapping[str, Any]) -> str:
    """Format a line of metrics.jsonl; non-finite numbers become null."""
    plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
    return json.dumps(plain) + "\n"


def typed(kind: type[Line], values: dict[str, Any]) -> Line:
    """Return the values of a line as a dataclass. Raises `TypeError` for a field that is missing, unknown or of another
    type; null stands for a number that is not finite."""
    plain: Any = kind  # to mypy, a type of any class is not hashable
    line, hints = kind(**values), _hints(plain)
    wrong = [name for name, value in values.items() if not _fits(value, hints[name])]
    if wrong:
        raise TypeError(f"wrong types of {', '.join(wrong)}")
    return line


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    """Tell whether a value of JSON is of a field's type."""
    if isinstance(hint, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return value is None or isinstance(value, (int, float))
    return isinstance(value, get_origin(hint) or hint)


def _object(values: object) -> dict[str, Any]:
    """Return a JSON object. Raises `TypeError` for any other value of JSON."""
    if not isinstance(values, dict):
        raise TypeError("not an object")
    return values


def read_records(path: Path, make: Callable[[dict[str, Any]], Any] = dict) -> list[Any]:
    """Read the lines of a metrics.jsonl, each as `make` returns it; a last line that a kill has cut short is skipped.

    Raises `UserError` for a line that is not a JSON object, or that `make` refuses with a TypeError.
    """
    if not path.exists():
        return []
    require_regular_file(path)
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(make(_object(json.loads(line))))
        except (ValueError, RecursionError, TypeError) as error:
            if number < len(lines) or isinstance(error, TypeError):
                raise UserError(f"{path}: line {number} is not a metrics record") from None
    return records


def read_metrics(path: Path) -> list[Metrics]:
    """Read the lines of a pre-training run's metrics.jsonl."""
    return read_records(path, functools.partial(typed, Metrics))


def last_of(records: Iterable[Metrics], split: str) -> Metrics | None:
    """Return the last record of a split."""
    return next((record for record in reversed(list(records)) if record.split == split), None)


@dataclass
class Window:
    """Sums of losses since the last line of metrics.jsonl, and the run's tokens and seconds at that line."""

    totals: Totals
    tokens: int
    seconds: float
