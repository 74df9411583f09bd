"""The training loop: micro-batches, mixed precision, schedule, validation, checkpoints, and a clean way to stop."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from fastbert import cpu_capability
from fastbert.errors import CheckpointError, UserError
from fastbert.models.heads.pretraining import BertForPreTraining
from fastbert.models.outputs import PreTrainingOutput
from fastbert.ops import dispatch
from fastbert.ops.native import caching_allocator
from fastbert.packing import PackedBatch
from fastbert.training import checkpoint
from fastbert.training.checkpoint import STATE, Checkpoints, require
from fastbert.training.config import CHANGEABLE, Budget, PretrainConfig
from fastbert.training.graphed import GraphedStep, StepStats, reason_not_captured
from fastbert.training.metrics import Metrics, MetricsLog, Totals, last_of, read_metrics
from fastbert.training.optimizer import (
    GradientError,
    adamw,
    clip_gradients,
    learning_rate_factor,
    set_learning_rate,
)
from fastbert.training.run_record import check_configuration, plain
from fastbert.training.step_loss import loss_weights, micro_batch_loss, micro_batch_shares
from fastbert.training.stopping import Stopped, StopRequest

logger = logging.getLogger("fastbert")
EVALUATIONS, CHECKPOINTS, CHECKPOINT_STEPS = 10, 20, 1000  # a run's defaults, unless flags say otherwise


class TrainingError(UserError):
    """Training cannot go on, the loss is no number for example."""


DistillationLoss = Callable[..., tuple[torch.Tensor, PreTrainingOutput]]
"""(model, micro-batch, *loss_weights, shares) -> the micro-batch's loss and the model's output."""


class Data(Protocol):
    """Where batches come from: both methods are pure functions of their arguments."""

    def training_step(self, step: int, batch_size: int, micro_batch: int) -> list[PackedBatch]:
        """The micro-batches of one optimiser step, counted from 0."""

    def validation_batches(self, samples: int, micro_batch: int) -> list[PackedBatch]:
        """The same held-out sequences every time, at most `samples` of them."""


@dataclass
class Reporter:
    """What a run tells whoever watches it; every hook may be left out."""

    on_step: Callable[[Metrics, float], None] = field(default=lambda metrics, progress: None)
    """After each optimiser step: its own metrics and the finished fraction of the run."""
    on_validation: Callable[[Metrics], None] = field(default=lambda metrics: None)
    on_message: Callable[[str], None] = field(default=lambda message: None)
    on_stage: Callable[[str, int | None], Callable[[int], None]] = field(default=lambda name, total: lambda done: None)
    """A stage of preparation begins: its name and size in bytes; returns what is told the bytes done."""


@dataclass
class _Step:
    """An optimiser step that has been started: `total_tokens` with it and those before, `seconds` of training until it
    was computed, the `finished` fraction of the run, its own losses, which a graph's step tells later, and the batches
    that explain a gradient that is not finite."""

    number: int
    tokens: int
    total_tokens: int
    seconds: float
    learning_rate: float
    finished: float
    own: Totals | StepStats
    batches: Sequence[PackedBatch]


@dataclass
class _Window:
    """What the next line of metrics.jsonl averages: sums of losses, and where the run was at the line before."""

    totals: Totals
    tokens: int
    seconds: float


@dataclass(frozen=True)
class _State:
    """The run's place in a checkpoint's state.json, with its types checked."""

    step: int
    tokens: int
    seconds: float
    window: _Window
    vocabulary: str
    data: str
    scaler: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any]) -> _State:
        """Read what `Trainer.save` wrote. Raises `CheckpointError`."""
        window = require(state, "window", dict)
        return cls(
            step=require(state, "step", int),
            tokens=require(state, "tokens", int),
            seconds=require(state, "seconds", float),
            window=_Window(
                Totals.from_state(window), require(window, "tokens", int), require(window, "seconds", float)
            ),
            vocabulary=require(state, "vocabulary", str),
            data=require(state, "data", str),
            scaler=require(state, "scaler", dict),
        )


class Trainer:
    """One pre-training run in memory: model, optimiser, data and the place where it is kept."""

    def __init__(
        self,
        model: BertForPreTraining,
        data: Data,
        config: PretrainConfig,
        budget: Budget,
        *,
        device: torch.device,
        dtype: torch.dtype,
        folder: Path,
        fingerprint: str,
        data_fingerprint: str,
        configuration: Mapping[str, Any] | None = None,
        reporter: Reporter | None = None,
        distillation: DistillationLoss | None = None,
    ) -> None:
        """`configuration` is what config.json says of flags and model; checkpoints hold it, and must agree with it."""
        self.distillation = distillation
        self.model, self.data, self.config, self.budget = model.to(device), data, config, budget
        self.device, self.dtype, self.folder = device, dtype, folder
        self.fingerprint, self.data_fingerprint = fingerprint, data_fingerprint
        self.configuration = plain(configuration or {})
        self.checkpoints = Checkpoints(folder / "checkpoints", config.keep_checkpoints)
        self.reporter = reporter or Reporter()
        self.optimizer = adamw(model, lr=config.lr, weight_decay=config.weight_decay)
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        default_micro = config.batch_size if device.type == "cuda" else min(32, config.batch_size)
        self.micro_batch = config.micro_batch or default_micro
        self.step = self.tokens = 0
        self.seconds = 0.0
        self.last_learning_rate = config.lr
        self._computed_seconds = 0.0
        self._window = _Window(Totals(), 0, 0.0)
        self.log: MetricsLog | None = None
        self.stop = StopRequest(self.reporter.on_message)
        if config.checkpoint_activations:
            model.checkpoint_activations(config.checkpoint_mode)
        if device.type == "cpu":
            self.reporter.on_message(_kernels(device))
        self.graphs: GraphedStep | None = None
        if config.cuda_graphs:
            reason = reason_not_captured(device, dtype)
            if reason is None:
                self.graphs = GraphedStep(model, self.optimizer, max_grad_norm=config.max_grad_norm, dtype=dtype)
            else:
                self.reporter.on_message(f"--cuda-graphs has no effect: {reason}")

    def save(self) -> Path:
        """Write a checkpoint of the present step."""
        if self.log is not None:
            self.log.sync()
        window = self._window
        state: dict[str, Any] = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "window": {**window.totals.to_state(), "tokens": window.tokens, "seconds": window.seconds},
            "vocabulary": self.fingerprint,
            "data": self.data_fingerprint,
            "configuration": self.configuration,
            "scaler": self.scaler.state_dict(),
            "torch": torch.__version__,
        }
        return self.checkpoints.save(self.model, self.optimizer, state)

    def resume(self) -> int:
        """Continue from the newest whole checkpoint; returns its step, 0 when there is none yet."""
        loaded = self.checkpoints.load_last(_State.of)
        if loaded is None:
            return 0
        last, state = loaded
        if state.vocabulary != self.fingerprint:
            raise UserError(
                f"{last.folder}: was trained with another vocabulary than {self.folder / 'tokenizer'};"
                " put the run's own tokenizer back"
            )
        if state.data != self.data_fingerprint:
            raise UserError(
                f"{last.folder}: was trained on other token shards than those found now;"
                " put the run's own back, or start another run with another --out"
            )
        check_configuration(self.folder, self.configuration, last.folder, last.state, CHANGEABLE)
        if self.scaler.is_enabled() and state.scaler:
            try:
                self.scaler.load_state_dict(state.scaler)
            except (KeyError, TypeError) as error:
                raise CheckpointError(f"{last.folder / STATE}: damaged (scaler: {error})") from None
        checkpoint.restore(last, self.model, self.optimizer)
        if self.graphs is not None:
            self.graphs.forget()
        self.step, self.tokens, self.seconds, self._window = state.step, state.tokens, state.seconds, state.window
        return self.step

    def run(self) -> Metrics:
        """Train until the budget is spent; returns the last validation. Raises `Stopped` after SIGINT or SIGTERM, when
        the state is saved, and `TrainingError` when the loss is not a number."""
        self.log = MetricsLog(self.folder / "metrics.jsonl", self.step if self.step else None)
        finished = self.budget.progress(self.step, self.seconds)
        validation = self._validated() if finished >= 1.0 else None
        with self.stop.listening(), _prefetch(self._load) as fetch:
            steps: deque[_Step] = deque()  # those whose own losses have not been reported
            self._computed_seconds = self.seconds
            while finished < 1.0:
                started = time.perf_counter()
                batches = fetch(self.step)
                lr = self.last_learning_rate = self.learning_rate()
                totals = self._window.totals
                own = self._train_step(batches, totals) if self.graphs is None else self.graphs(batches, lr)
                self._wait(steps, started)  # for the step before: the device is busy with this one meanwhile
                tokens = sum(batch.num_tokens for batch in batches)
                self.step += 1
                self.tokens += tokens
                before, finished = finished, self.budget.progress(self.step, self.seconds)
                real = batches if self.graphs is None else [batch.real for batch in batches]
                steps.append(_Step(self.step, tokens, self.tokens, self.seconds, lr, finished, own, real))
                log = self.step == 1 or self.step % self.config.log_every == 0 or finished >= 1.0
                evaluate = self._due(self.config.eval_every, EVALUATIONS, None, before, finished)
                save = self._due(self.config.checkpoint_every, CHECKPOINTS, CHECKPOINT_STEPS, before, finished)
                if log or evaluate or save or self.stop.number is not None:
                    if self.graphs is not None:
                        self._wait(steps, time.perf_counter())
                    read = self._read(steps, totals, keep=0)
                else:
                    read = self._read(steps, totals, keep=0 if self.graphs is None else 1)
                if log:
                    self._log_window()
                self._announce(read)
                if evaluate:
                    validation = self.validate()
                if self.stop.number is not None:
                    self._announce(self._read(steps, self._window.totals, keep=0))
                    raise Stopped(self.stop.number, self.save())
                if save:
                    self.save()
        caching_allocator.release()
        return validation or self.validate()

    def _log_window(self) -> None:
        """Write a line of metrics.jsonl, with means since the line before."""
        assert self.log is not None
        window = self._window
        elapsed = max(self.seconds - window.seconds, 1e-9)
        self.log.append(self._metrics("train", window.totals, (self.tokens - window.tokens) / elapsed))
        self._window = _Window(Totals(), self.tokens, self.seconds)

    def _validated(self) -> Metrics | None:
        """The validation of the present step, if an earlier start of the run has written it."""
        last = last_of(read_metrics(self.folder / "metrics.jsonl"), "validation")
        return last if last is not None and last.step == self.step else None

    def _wait(self, steps: Sequence[_Step], started: float) -> None:
        """Until the device has computed all of these steps; what passed since `started` is time of training."""
        if steps and isinstance(steps[-1].own, StepStats):
            steps[-1].own.wait()
        self.seconds += time.perf_counter() - started
        if steps:
            steps[-1].seconds = self.seconds

    def _read(self, steps: deque[_Step], totals: Totals, keep: int) -> list[tuple[Metrics, float]]:
        """Take the steps but the last `keep`, as they are reported. A graph's step is added to `totals` only here, and
        a gradient that is not finite comes to light: no such step may be saved."""
        read: list[tuple[Metrics, float]] = []
        while len(steps) > keep:
            step = steps.popleft()
            rate = step.tokens / max(step.seconds - self._computed_seconds, 1e-9)
            self._computed_seconds = step.seconds
            own = step.own
            if isinstance(own, StepStats):
                output, norm = own.read()
                own = Totals()
                own.add(output)
                totals.add(output)
                try:
                    self._check_norm(norm, step.number, own, step.batches)
                except TrainingError:
                    self._announce(read)  # the steps before were good
                    raise
            read.append((self._metrics("train", own, rate, step), step.finished))
        return read

    def _announce(self, steps: Sequence[tuple[Metrics, float]]) -> None:
        for metrics, finished in steps:
            self.reporter.on_step(metrics, finished)

    def validate(self) -> Metrics:
        """Losses and accuracies on held-out sequences, the same ones every time, without dropout."""
        totals, tokens, started = Totals(), 0, time.perf_counter()
        self.model.eval()
        with torch.no_grad():
            for batch in self.data.validation_batches(self.config.eval_samples, self.micro_batch):
                with self._autocast():
                    totals.add(self.model(batch.to(self.device)))
                tokens += batch.num_tokens
        self.model.train()
        metrics = self._metrics("validation", totals, tokens / max(time.perf_counter() - started, 1e-9))
        if self.log is not None:
            self.log.append(metrics)
        self.reporter.on_validation(metrics)
        return metrics

    def learning_rate(self) -> float:
        """The learning rate of the next optimiser step, taken in the middle of its stretch of the run."""
        half = 0.5
        if self.step and self.budget.seconds is not None:
            half_seconds = 0.5 * self.seconds / self.step
        else:
            half_seconds = 0.0
        progress = self.budget.progress(self.step + half, self.seconds + half_seconds)
        return self.config.lr * learning_rate_factor(progress, self.config.warmup)

    def _load(self, step: int) -> list[Any]:
        """A step's micro-batches as the step takes them: `Prepared` ones with graphs, else packed batches."""
        batches = self.data.training_step(step, self.config.batch_size, self.micro_batch)
        if self.graphs is not None:
            return [self.graphs.prepare(batch) for batch in batches]
        return [batch.pin_memory() for batch in batches] if self.device.type == "cuda" else batches

    def _train_step(self, batches: Sequence[PackedBatch], totals: Totals) -> Totals:
        """One optimiser step. Each micro-batch counts by its predictions, so splitting a batch changes nothing."""
        self.model.train()
        weights = loss_weights(batches)
        own = Totals()
        for batch, shares in zip(batches, micro_batch_shares(batches), strict=True):
            with self._autocast():
                loss, output = self._loss(batch.to(self.device, non_blocking=True), weights, shares)
            self.scaler.scale(loss).backward()
            own.add(output)
            totals.add(output)
        self._clip(own, batches)
        set_learning_rate(self.optimizer, self.last_learning_rate)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return own

    def _loss(
        self, batch: PackedBatch, weights: tuple[float, float], shares: tuple[float, float]
    ) -> tuple[torch.Tensor, PreTrainingOutput]:
        """A micro-batch's part of its step's loss, with a teacher's part if there is one."""
        if self.distillation is not None:
            return self.distillation(self.model, batch, *weights, shares)
        output = self.model(batch)
        return micro_batch_loss(output, *weights), output

    def _clip(self, own: Totals, batches: Sequence[PackedBatch]) -> None:
        """Keep the norm of the next step's gradient in bounds."""
        if self.device.type == "cpu" and not self.scaler.is_enabled():
            try:
                self.optimizer.clip_gradients(self.config.max_grad_norm)
            except GradientError as error:
                self._refuse(self.step + 1, own, batches, f"; {error.where}")
            return
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model.parameters(), self.config.max_grad_norm)
        if not self.scaler.is_enabled():
            self._check_norm(float(norm), self.step + 1, own, batches)

    def _check_norm(self, norm: float, step: int, own: Totals, batches: Sequence[PackedBatch]) -> None:
        """End the run when a step's gradient is not finite; its weights are those before the step."""
        if not math.isfinite(norm):
            self._refuse(step, own, batches)

    def _refuse(self, step: int, own: Totals, batches: Sequence[PackedBatch], where: str = "") -> NoReturn:
        """End the run for a gradient that is not finite; `where` it is, if that is known."""
        self.optimizer.zero_grad(set_to_none=True)
        found = f"step {step}: the gradient is not a finite number"
        # A GPU does not look at numbers: it makes NaN of an id that the model has no row for.
        for batch in batches:
            try:
                self.model.check_ranges(batch)
            except UserError as error:
                raise TrainingError(f"{found}, because {error}") from None
        raise TrainingError(
            f"{found} (loss {own.read()['loss']}{where});"
            f" start again in another --out with an --lr below {self.config.lr:g} or a longer --warmup"
        )

    def _metrics(self, split: str, totals: Totals, rate: float, step: _Step | None = None) -> Metrics:
        """What `totals` hold, as of a step; of now without one."""
        return Metrics(
            step=self.step if step is None else step.number,
            split=split,  # type: ignore[arg-type]
            tokens=self.tokens if step is None else step.total_tokens,
            tokens_per_second=round(rate, 1),
            learning_rate=self.last_learning_rate if step is None else step.learning_rate,
            seconds=round(self.seconds if step is None else step.seconds, 3),
            **totals.read(),
        )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def _due(self, every: int | None, parts: int, steps: int | None, before: float, now: float) -> bool:
        """Whether something that happens every so many steps, or in so many parts of the run, happens now."""
        if now >= 1.0:
            return True
        if every is not None:
            return self.step % every == 0
        return int(now * parts) > int(before * parts) or (steps is not None and self.step % steps == 0)


def _kernels(device: torch.device) -> str:
    """Which kernels a run on a CPU uses, in a line."""
    if not any(choice.backend == "native" for choice in dispatch.report(device)):
        return "kernels: eager torch"
    return f"kernels: native ({cpu_capability.level()}), eager torch where they do not serve"


@contextlib.contextmanager
def _prefetch(load: Callable[[int], list[Any]]) -> Iterator[Callable[[int], list[Any]]]:
    """A function like `load` that computes the next step's batches in the background while the present one trains."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="fastbert-data") as pool:
        ahead: dict[int, Any] = {}

        def fetch(step: int) -> list[Any]:
            ready = ahead.pop(step, None) or pool.submit(load, step)
            batches: list[Any] = ready.result()
            ahead[step + 1] = pool.submit(load, step + 1)
            return batches

        yield fetch
