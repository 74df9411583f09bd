"""The pre-training loop: micro-batches, mixed precision, schedule, validation, checkpoints and signals."""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from fastbert import cpu_capability
from fastbert.errors import UserError
from fastbert.models.heads.prediction import set_z_loss
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.ops import dispatch
from fastbert.ops.kernel_failures import until_compiled
from fastbert.ops.native import caching_allocator
from fastbert.packing import PackedBatch
from fastbert.tasks.predicting import autocast
from fastbert.training import checkpoint, defaults
from fastbert.training.averaging import Averaging
from fastbert.training.batches import PretrainingBatches, prefetch
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.defaults import EVALUATIONS
from fastbert.training.device_step import DeviceStep, StepStats
from fastbert.training.graphed import FilledBatch, GraphedStep, reason_not_captured, reason_not_chosen
from fastbert.training.metrics import Metrics, MetricsLog, Totals, TrainerState, Window, last_of, read_metrics
from fastbert.training.optimizer import GradientError, set_learning_rate
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.precision import narrow_weights, restore_masters
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import check_configuration, plain
from fastbert.training.step_loss import DistillationLoss, StepLoss
from fastbert.training.stopping import Stopped, StopRequest

CHECKPOINTS, CHECKPOINT_STEPS = 20, 1000  # a run's defaults, unless flags say otherwise


class TrainingError(UserError):
    """Training cannot continue, for example after a non-finite gradient."""


@dataclass
class _Step:
    """An optimiser step that has been started, but not yet reported."""

    number: int
    tokens: int
    total_tokens: int
    """Tokens of this step and all before it."""
    seconds: float
    """Seconds of training until the step was computed."""
    learning_rate: float
    finished: float
    """The finished fraction of the run."""
    losses: Totals | StepStats
    """The step's own losses; those of a GPU are read later."""
    batches: Sequence[PackedBatch]
    """For the message about a non-finite gradient."""
    logs: bool
    """True if a line of metrics.jsonl follows the step."""


class Trainer:
    """A pre-training run in memory: model, optimiser, data and folder."""

    def __init__(
        self,
        model: ForPreTraining,
        data: PretrainingBatches,
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
        """`configuration` holds the flags and the model of config.json; checkpoints store it and must agree with it."""
        self.model, self.data, self.config, self.budget = model.to(device), data, config, budget
        self.device, self.dtype, self.folder = device, dtype, folder
        self.fingerprint, self.data_fingerprint = fingerprint, data_fingerprint
        self.configuration = plain(configuration or {})
        self.checkpoints = checkpoint.Checkpoints(folder / "checkpoints", config.keep_checkpoints)
        self.reporter = reporter or Reporter()
        assert config.lr is not None  # `pretrain` has chosen what the flags left open
        assert config.batch_size is not None
        self.lr, self.batch_size = config.lr, config.batch_size
        self.optimizer = pretraining_optimizer(model, config, self.lr, masters=narrow_weights(model, config))
        set_z_loss(model, config.z_loss)
        self.averaging = Averaging(config, model, self.optimizer, folder / "checkpoints")
        reason = self.optimizer.flatten_if_faster(model, device, dtype)
        if reason is not None and device.type == "cuda":
            self.reporter.on_message(f"no bf16 copies of weights, ordinary gradients: {reason}")
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.loss = StepLoss(model, distillation)
        default_micro = self.batch_size if device.type == "cuda" else min(32, self.batch_size)
        self.micro_batch = config.micro_batch or default_micro
        self.step = self.tokens = 0
        self.seconds = 0.0
        self.last_learning_rate = self.lr
        self._computed_seconds = 0.0
        self._window = Window(Totals(), 0, 0.0)
        self.log: MetricsLog | None = None
        self.stop = StopRequest(self.reporter.on_message)
        if config.checkpoint_activations:
            model.checkpoint_activations(config.checkpoint_mode)
        if device.type == "cpu":
            self.reporter.on_message(_kernels(device))
        self.device_step: DeviceStep | None = None
        self.graphs = self._graphed_step()
        if device.type != "cpu" and self.graphs is None:
            self.device_step = DeviceStep(
                self.loss, self.optimizer, self.scaler, max_grad_norm=config.max_grad_norm, dtype=dtype
            )

    def _graphed_step(self) -> GraphedStep | None:
        """Return the captured step if --cuda-graphs selects it; report the choice on a GPU."""
        choice, distills = self.config.cuda_graphs, self.loss.distillation is not None
        if choice == "off":
            return None
        if self.config.objective == "bilm":
            reason: str | None = "an LSTM has a step per word, so that its kernels differ between batches"
        elif self.config.objective == "rtd":
            reason = "the discriminator's loss is over all tokens, and graphs pad batches with further ones"
        elif choice == "on":
            reason = reason_not_captured(self.device, self.dtype, distills=distills)
        else:
            reason = reason_not_chosen(self.device, self.dtype, distills=distills)
        if reason is not None:
            if choice == "on":
                self.reporter.on_message(f"--cuda-graphs has no effect: {reason}")
            elif self.device.type == "cuda":
                self.reporter.on_message(f"no CUDA graphs: {reason}")
            return None
        self.reporter.on_message("the training step is captured in CUDA graphs; --cuda-graphs off launches its kernels")
        return GraphedStep(self.model, self.optimizer, max_grad_norm=self.config.max_grad_norm, dtype=self.dtype)

    def save(self) -> Path:
        """Write a checkpoint of the current step; return its folder."""
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
        """Continue from the newest whole checkpoint; return its step, 0 if there is none."""
        loaded = self.checkpoints.load_last(TrainerState.of)
        if loaded is None:
            return 0
        last, state = loaded
        if state.vocabulary != self.fingerprint:
            raise UserError(
                f"{last.folder}: was trained with a different vocabulary than {self.folder / 'tokenizer'};"
                " put the run's own tokenizer back"
            )
        if state.data != self.data_fingerprint:
            raise UserError(
                f"{last.folder}: was trained on token shards other than those given now;"
                " put the run's own back, or start another run with another --out"
            )
        check_configuration(self.folder, self.configuration, last.folder, last.state, PretrainConfig.CHANGEABLE)
        checkpoint.restore_scaler(self.scaler, state.scaler, last.folder)
        checkpoint.restore(last, self.model, self.optimizer)
        if self.graphs is not None:
            self.graphs.forget()
        self.step, self.tokens, self.seconds, self._window = state.step, state.tokens, state.seconds, state.window
        return self.step

    def run(self) -> Metrics:
        """Train until the budget is spent; return the last validation.

        Raises `Stopped` after SIGINT or SIGTERM, with the state saved, and `TrainingError` for a non-finite gradient.
        """
        self.log = MetricsLog(
            self.folder / "metrics.jsonl", (lambda line: Metrics(**line).step <= self.step) if self.step else None
        )
        finished = self.budget.progress(self.step, self.seconds)
        validation = self._validated() if finished >= 1.0 else None
        with self.stop.listening(), prefetch(self._load) as fetch:
            launch = self.graphs or self.device_step  # None on a CPU, where a step ends before the next begins
            steps: deque[_Step] = deque()  # not yet reported
            self._computed_seconds = self.seconds
            while finished < 1.0:
                started = time.perf_counter()
                batches = fetch(self.step)
                lr = self.last_learning_rate = self.learning_rate()
                with self.optimizer.copies():
                    losses = self._train_step(batches) if launch is None else self._launch(launch, batches, lr)
                self.averaging.update(self.step + 1)
                self._wait(steps, started)  # for the previous step, while the device computes this one
                tokens = sum(batch.num_tokens for batch in batches)
                self.step += 1
                self.tokens += tokens
                before, finished = finished, self.budget.progress(self.step, self.seconds)
                real = [batch.real if isinstance(batch, FilledBatch) else batch for batch in batches]
                log = self.step == 1 or self.step % self.config.log_every == 0 or finished >= 1.0
                steps.append(_Step(self.step, tokens, self.tokens, self.seconds, lr, finished, losses, real, log))
                evaluate = self._due(self.config.eval_every, EVALUATIONS, None, before, finished)
                save = self._due(self.config.checkpoint_every, CHECKPOINTS, CHECKPOINT_STEPS, before, finished)
                all_now = evaluate or save or self.stop.number is not None
                if all_now and launch is not None:
                    self._wait(steps, time.perf_counter())
                self._announce(self._read(steps, keep=0 if all_now or launch is None else 1))
                if evaluate:
                    validation = self.validate()
                if self.stop.number is not None:
                    self._announce(self._read(steps, keep=0))
                    raise Stopped(self.stop.number, self.save())
                if save:
                    self.save()
        caching_allocator.release()
        restore_masters(self.model, self.optimizer)
        averaged = self.averaging.finish()
        if averaged is not None:
            self.reporter.on_message(averaged)
        if self.config.average_last is not None:
            return self.validate()
        return validation or self.validate()

    def _log_window(self, step: _Step) -> None:
        """Write the line of metrics.jsonl that follows a step: means since the previous line."""
        assert self.log is not None
        window = self._window
        rate = (step.total_tokens - window.tokens) / max(step.seconds - window.seconds, 1e-9)
        self.log.append(self._metrics("train", window.totals, rate, step).record())
        self._window = Window(Totals(), step.total_tokens, step.seconds)

    def _validated(self) -> Metrics | None:
        """Return the validation of the current step if an earlier start of the run has written it."""
        last = last_of(read_metrics(self.folder / "metrics.jsonl"), "validation")
        return last if last is not None and last.step == self.step else None

    def _wait(self, steps: Sequence[_Step], started: float) -> None:
        """Wait until the device has computed these steps; count the time since `started` as training time."""
        if steps and isinstance(steps[-1].losses, StepStats):
            steps[-1].losses.wait()
        self.seconds += time.perf_counter() - started
        if steps:
            steps[-1].seconds = self.seconds

    def _read(self, steps: deque[_Step], keep: int) -> list[tuple[Metrics, float]]:
        """Remove all but the last `keep` steps; return their metrics, and write the lines that follow them. Losses of
        a GPU are added to the window here, and a non-finite gradient raises: such a step must not be saved."""
        read: list[tuple[Metrics, float]] = []
        while len(steps) > keep:
            step = steps.popleft()
            rate = step.tokens / max(step.seconds - self._computed_seconds, 1e-9)
            self._computed_seconds = step.seconds
            losses = step.losses
            if isinstance(losses, StepStats):
                output, norm = losses.read()
                losses = Totals()
                losses.add(output)
                self._window.totals.add(output)
                if not math.isfinite(norm) and not self.scaler.is_enabled():
                    self._announce(read)  # the steps before had finite gradients
                    self._refuse(step.number, losses, step.batches)
            read.append((self._metrics("train", losses, rate, step), step.finished))
            if step.logs:
                self._log_window(step)
        return read

    def _announce(self, steps: Sequence[tuple[Metrics, float]]) -> None:
        for metrics, finished in steps:
            self.reporter.on_step(metrics.record(), finished)

    def validate(self) -> Metrics:
        """Compute losses and accuracies on the held-out sequences, without dropout."""
        totals, tokens, started = Totals(), 0, time.perf_counter()
        self.model.eval()
        with torch.no_grad(), self.averaging.applied(), self.optimizer.copies():
            for batch in self.data.validation_batches(self.validation_samples(), self.micro_batch):
                with autocast(self.device, self.dtype):
                    totals.add(self.model(batch.to(self.device)))
                tokens += batch.num_tokens
        self.model.train()
        metrics = self._metrics("validation", totals, tokens / max(time.perf_counter() - started, 1e-9))
        if self.log is not None:
            self.log.append(metrics.record())
        self.reporter.on_validation(metrics.record())
        return metrics

    def validation_samples(self) -> int:
        """Return the sequences per validation: --eval-samples, else few enough that validating takes at most 5 % of the
        time."""
        if self.config.eval_samples is not None:
            return self.config.eval_samples
        steps = self.budget.steps
        if steps is None or self.budget.seconds is not None:  # a run by the clock goes on as it began
            steps = round(self.step / max(self.budget.progress(self.step, self.seconds), 1e-9))
        every = self.config.eval_every
        return defaults.evaluation_samples(steps * self.batch_size, EVALUATIONS if every is None else steps // every)

    def learning_rate(self) -> float:
        """Return the learning rate of the next optimiser step: that of the middle of the step."""
        half_seconds = 0.5 * self.seconds / self.step if self.step else 0.0
        progress = self.budget.progress(self.step + 0.5, self.seconds + half_seconds)
        return self.lr * self.config.rate_factor(progress)

    def _load(self, step: int) -> list[Any]:
        """Return a step's micro-batches: of type `FilledBatch` for CUDA graphs, else packed batches."""
        micro_batches = self.data.training_step(step, self.batch_size, self.micro_batch)
        batches: list[Any] = [batch.longest_first() for batch in micro_batches]
        launch = self.graphs or self.device_step
        return batches if launch is None else [launch.prepare(batch) for batch in batches]

    def _launch(self, step: DeviceStep | GraphedStep, batches: Sequence[Any], lr: float) -> StepStats:
        """Launch a step; once more, without them, if kernels of its backward pass do not compile."""
        return until_compiled(functools.partial(step, batches, lr))

    def _train_step(self, batches: Sequence[PackedBatch]) -> Totals:
        """Take an optimiser step on a CPU; return its losses."""
        self.model.train()
        losses, totals = Totals(), self._window.totals
        for batch, part in zip(batches, self.loss.parts(batches), strict=True):
            with autocast(self.device, self.dtype):
                loss, output = self.loss(batch.to(self.device), part)
            loss.backward()
            losses.add(output)
            totals.add(output)
        try:
            self.optimizer.clip_gradients(self.config.max_grad_norm)
        except GradientError as error:
            self._refuse(self.step + 1, losses, batches, f"; {error.where}")
        set_learning_rate(self.optimizer, self.last_learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses

    def _refuse(self, step: int, losses: Totals, batches: Sequence[PackedBatch], where: str = "") -> NoReturn:
        """Raise `TrainingError` for a non-finite gradient; `where` names the parameter and element, if known.

        The weights are those before the step."""
        self.optimizer.zero_grad(set_to_none=True)
        problem = f"step {step}: the gradient is not a finite number"
        # On a GPU an id outside of the embedding table gives NaN instead of an error.
        for batch in batches:
            try:
                self.model.check_ranges(batch)
            except UserError as error:
                raise TrainingError(f"{problem}, because {error}") from None
        raise TrainingError(
            f"{problem} (loss {losses.read()['loss']}{where});"
            f" start again in another --out with an --lr below {self.lr:g} or a longer --warmup"
        )

    def _metrics(self, split: str, totals: Totals, rate: float, step: _Step | None = None) -> Metrics:
        """Return the means of `totals` as metrics of a step; without one, of the current step."""
        return Metrics(
            step=self.step if step is None else step.number,
            split=split,  # type: ignore[arg-type]
            tokens=self.tokens if step is None else step.total_tokens,
            tokens_per_second=round(rate, 1),
            learning_rate=self.last_learning_rate if step is None else step.learning_rate,
            seconds=round(self.seconds if step is None else step.seconds, 3),
            **totals.read(),
        )

    def _due(self, every: int | None, parts: int, steps: int | None, before: float, now: float) -> bool:
        """Return True if an action is due: `every` steps, or at each of `parts` equal parts of the run and `steps`."""
        if now >= 1.0:
            return True
        if every is not None:
            return self.step % every == 0
        return int(now * parts) > int(before * parts) or (steps is not None and self.step % steps == 0)


def _kernels(device: torch.device) -> str:
    """Describe the kernels of a run on a CPU in one line."""
    if not any(choice.backend == "native" for choice in dispatch.report(device)):
        return "kernels: PyTorch"
    return f"kernels: native ({cpu_capability.current()}), PyTorch for unsupported operations"
