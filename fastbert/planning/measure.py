"""Measure steps of models with few layers, from which the time of a step with all layers follows.

A step is that of `fastbert pretrain`: forward and backward pass of each micro-batch, clipping, the optimiser. Both
halves of its time are linear in the number of layers, so that two models tell them for any number.
"""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from fastbert.models.elmo.config import ElmoConfig
from fastbert.packing import PackedBatch
from fastbert.planning.flops import BatchStatistics, Checkpointing
from fastbert.planning.shape import model_shape
from fastbert.planning.stacks import ElmoShape
from fastbert.tasks.predicting import autocast
from fastbert.training.config import Objective
from fastbert.training.objectives import pretraining_model
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.optimizer_flags import OptimizerFlags, OptimizerName
from fastbert.training.precision import narrow_weights
from fastbert.training.precision_flags import PrecisionFlags
from fastbert.training.step_loss import StepLoss

WARMING_STEPS = 2
LEARNING_RATE = 1e-5
SECONDS = 5.0  # of measured steps of both models
LEAST_STEPS, MOST_STEPS = 3, 40
FIRST_ID = 5  # below are special tokens
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
Clock = Callable[[], float]


@dataclass(frozen=True)
class MeasuredSteps:
    """Seconds of the two halves of a step for two numbers of layers."""

    layers: tuple[int, int]
    passes: tuple[float, float]
    """Forward and backward pass of one micro-batch."""
    update: tuple[float, float]
    """Clipping and the optimiser's step."""
    steps: int
    """Measured steps of each model."""
    framework: int | None
    """Resident bytes of this process without a model, None except on Linux."""

    def passes_of(self, layers: int) -> float:
        """Return the seconds of forward and backward pass of a micro-batch of a model with so many layers."""
        return _line(self.layers, self.passes, layers)

    def update_of(self, layers: int) -> float:
        """Return the seconds of the update of a model with so many layers."""
        return _line(self.layers, self.update, layers)


def _line(layers: tuple[int, int], seconds: tuple[float, float], wanted: int) -> float:
    few, more = layers
    if few == more:
        return seconds[0]
    slope = max(seconds[1] - seconds[0], 0.0) / (more - few)
    return max(seconds[0] + slope * (wanted - few), 0.0)


def layers_to_measure(layers: int, *, least: int = 1, period: int = 2) -> tuple[int, int]:
    """Return the two numbers of layers that are measured for a model: fewer than it has, where it has more than
    `least`; they differ by `period`, after which the kinds of layers repeat, if it has so many."""
    if layers <= least:
        return layers, layers
    return least, min(least + period, max(layers - 1, least + 1))


def period_of(windows: Sequence[int | None]) -> int:
    """Return the number of layers, at least 2, after which the windows of layers repeat behind the first."""
    pairs = ((period, zip(windows[1:], windows[1 + period :], strict=False)) for period in range(2, len(windows)))
    return next((period for period, repeated in pairs if all(a == b for a, b in repeated)), 2)


def measure_steps(
    config: Any,
    objective: Objective,
    micro_batch: BatchStatistics,
    *,
    device: torch.device,
    dtype: str,
    checkpointing: Checkpointing = "none",
    generator_size: float | None = None,
    optimizer: OptimizerName = "adamw",
    param_dtype: Literal["fp32", "bf16"] = "fp32",
    seconds: float = SECONDS,
    clock: Clock = time.perf_counter,
) -> MeasuredSteps:
    """Measure steps of two models that differ from `config`'s in their number of layers alone, on random tokens in
    sequences of the lengths of `micro_batch`."""
    framework = resident_bytes()
    stack = model_shape(config, objective, generator_size)[-1]
    windows = () if isinstance(stack, ElmoShape) else stack.windows
    # DeBERTa's z-steps repeat one of so many layers.
    least = max(1, getattr(config, "z_steps", 0))
    layers = layers_to_measure(config.num_hidden_layers, least=least, period=period_of(windows))
    vocab = config.output_size if isinstance(config, ElmoConfig) else config.vocab_size
    batch = random_batch(micro_batch, objective, vocab)
    flags = _Flags(optimizer=optimizer, param_dtype=param_dtype)
    trials = []
    for count in dict.fromkeys(layers):
        model = pretraining_model(replace(config, num_hidden_layers=count), objective, generator_size)
        model.checkpoint_activations(checkpointing)
        trials.append(_Trial(model, flags, device, DTYPES[dtype]))
    batch = batch.to(device)
    times: list[list[tuple[float, float]]] = [[] for _ in trials]
    taken, spent = 0, 0.0
    while taken < WARMING_STEPS + LEAST_STEPS or (spent < seconds and taken < WARMING_STEPS + MOST_STEPS):
        for trial, measured in zip(trials, times, strict=True):
            started = time.perf_counter()
            pair = trial.step(batch, clock)
            if taken >= WARMING_STEPS:
                measured.append(pair)
                spent += time.perf_counter() - started
        taken += 1
    medians = [tuple(statistics.median(each) for each in zip(*measured, strict=True)) for measured in times]
    del trials
    gc.collect()
    first, last = medians[0], medians[-1]
    return MeasuredSteps(layers, (first[0], last[0]), (first[1], last[1]), taken - WARMING_STEPS, framework)


@dataclass(frozen=True, kw_only=True)
class _Flags(OptimizerFlags, PrecisionFlags):
    """The flags of a run that a step depends on."""


class _Trial:
    """A model with its optimiser."""

    def __init__(self, model: Any, flags: _Flags, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype, self.model = device, dtype, model.to(device).train()
        if isinstance(model.config, ElmoConfig):
            words = [*(f"{index:x}word" for index in range(model.config.vocab_size - 2)), "[CLS]", "[SEP]"]
            model.set_vocabulary(words)
        masters = narrow_weights(model, flags)
        self.loss = StepLoss(model)
        self.optimizer = pretraining_optimizer(model, flags, LEARNING_RATE, masters=masters)
        self.optimizer.flatten_if_faster(model, device, dtype)

    def step(self, batch: PackedBatch, clock: Clock) -> tuple[float, float]:
        """Take a step; return the seconds of both passes, and of the update."""
        (part,) = self.loss.parts([batch])
        self._wait()
        started = clock()
        with self.optimizer.copies():
            with autocast(self.device, self.dtype):
                loss, _ = self.loss(batch, part)
            loss.backward()
        self._wait()
        passed = clock()
        self.optimizer.clip_gradients(1.0)
        flat = self.optimizer.flat is not None
        self.optimizer.step(clear=flat)
        if not flat:
            self.optimizer.zero_grad(set_to_none=True)
        self._wait()
        return passed - started, clock() - passed

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def random_batch(statistics: BatchStatistics, objective: str, vocab: int) -> PackedBatch:
    """Return random tokens, with labels as an objective has them, in sequences with these statistics: some as long as
    the longest, the others spread evenly below."""
    count = max(round(statistics.sequences), 1)
    mean = statistics.tokens / statistics.sequences
    longest = _longest(mean, statistics.squared_lengths / statistics.sequences)
    short = min(max(2 * (1 - mean / longest), 0.0), 1.0)
    lengths = [
        max(4, round(longest * min(1.0, (index + 0.5) / (short * count)) if short else longest))
        for index in range(count)
    ]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    total = int(offsets[-1])
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(FIRST_ID, vocab - 1), vocab, (total,), generator=generator)
    if objective in ("ltr", "bilm"):
        keep = torch.ones(total, dtype=torch.bool).index_fill_(0, offsets[1:] - 1, False)
        positions = keep.nonzero().flatten()
        labels = ids[positions + 1]
    else:
        chosen = max(1, min(total, round(statistics.predictions * total / statistics.tokens)))
        positions = torch.randperm(total, generator=generator)[:chosen].sort().values
        labels = ids[positions]
    paired = objective in ("mlm+nsp", "mlm+sop")
    return PackedBatch(
        input_ids=ids,
        cu_seqlens=offsets.int(),
        max_seqlen=max(lengths),
        dropout_key=torch.randint(0, 1 << 62, (count,), generator=generator),
        masked_positions=positions,
        labels=labels,
        next_sentence_label=torch.arange(count) % 2 if paired else None,
    ).longest_first()


def _longest(mean: float, mean_square: float) -> float:
    """Return the maximum length of samples of which some are as long as that, and the others of any length."""
    if mean_square <= mean * mean * (1 + 1e-9):
        return mean
    # With a share s of short ones: mean = L (1 - s / 2), mean square = L^2 (1 - 2 s / 3).
    low, high = mean, 2 * mean
    for _ in range(60):
        middle = (low + high) / 2
        share = 2 * (1 - mean / middle)
        low, high = (middle, high) if middle**2 * (1 - 2 * share / 3) < mean_square else (low, middle)
    return low


def resident_bytes() -> int | None:
    """Return the resident bytes of this process, None except on Linux."""
    status = Path("/proc/self/status")
    match = re.search(r"^VmRSS:\s+(\d+) kB$", status.read_text(), re.MULTILINE) if status.exists() else None
    return None if match is None else int(match[1]) << 10
