"""The pre-training loop: micro-batches, mixed precision, schedule, validation, checkpoints and signals.

One file: a step from its specification to its metrics, and what comes between two steps.
"""

from __future__ import annotations

import functools
import math
import signal
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from fastbert import cpu_capability
from fastbert.distributed.world import World
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
from fastbert.training.batches import Prefetcher
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.defaults import EVALUATIONS
from fastbert.training.device_step import DeviceStep, StepStats
from fastbert.training.graphed import FilledBatch, GraphedStep, captures_steps
from fastbert.training.metrics import Metrics, MetricsLog, Totals, TrainerState, Window, last_of, read_metrics
from fastbert.training.optimizer import GradientError, set_learning_rate
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.parallel import Replicas
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import check_configuration, plain
from fastbert.training.saving import Checkpoints
from fastbert.training.schedule_log import FILE as SCHEDULE
from fastbert.training.schedule_log import ScheduledStep, ScheduleLog
from fastbert.training.schedules import learning_rate_factor
from fastbert.training.snapshot import snapshot
from fastbert.training.step_log import StepLog, weights_sum
from fastbert.training.step_loss import DistillationLoss, StepLoss
from fastbert.training.step_spec import Cursor, LoadedStep, StepCounts, StepSource, StepSpec
from fastbert.training.stopping import Stopped, StopRequest

CHECKPOINTS, CHECKPOINT_STEPS = 20, 1000  # a run's defaults, unless flags say otherwise

MOST_SKIPPED = 50
CONTINUE = "its checkpoints are whole: continue with --resume"


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
    norm: float = math.nan
    """The norm of the gradient before clipping; that of a GPU is read later, with the losses."""
    weights: int | None = None
    """`weights_sum` after the step, of steps that log on a CPU."""


class Trainer:
    """A pre-training run in memory: model, optimiser, data and folder."""

    def __init__(
        self,
        model: ForPreTraining,
        data: StepSource,
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
        world: World | None = None,
    ) -> None:
        """`configuration` holds the flags and the model of config.json; checkpoints store it and must agree with it.

        With several processes, `world`, all of them make the same trainer; the first one writes the folder.
        """
        self.world = world or World()
        self.model, self.data, self.config, self.budget = model.to(device), data, config, budget
        self.device, self.dtype, self.folder = device, dtype, folder
        self.fingerprint, self.data_fingerprint = fingerprint, data_fingerprint
        self.configuration = plain(configuration or {})
        self.checkpoints = Checkpoints(
            folder / "checkpoints",
            config.keep_checkpoints,
            keep_every=config.keep_every,
            background=config.async_save,
        )
        self.reporter = reporter or Reporter()
        assert config.lr is not None  # `pretrain` has chosen what the flags left open
        assert config.batch_size is not None
        self.lr, self.batch_size = config.lr, config.batch_size
        self.optimizer = pretraining_optimizer(model, config, self.lr)
        set_z_loss(model, config.z_loss)
        self.averaging = Averaging(config, model, self.optimizer, folder / "checkpoints")
        reason: str | None = "several processes sum gradients in buckets of DDP's"
        if self.world.size == 1:
            reason = self.optimizer.flatten_if_faster(model, device, dtype)
        if reason is not None and device.type == "cuda":
            self.reporter.on_message(f"no bf16 copies of weights, ordinary gradients: {reason}")
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        self.loss = StepLoss(model, distillation)
        if config.checkpoint_activations:
            model.checkpoint_activations(config.checkpoint_mode)
        self.replicas = Replicas(self.loss, self.world, dtype)
        default_micro = self.batch_size if device.type == "cuda" else min(32, self.batch_size)
        self.micro_batch = config.micro_batch or default_micro
        self.step = self.tokens = self.skipped = 0
        self.cursor: Cursor = data.start
        self.seconds = 0.0
        self.last_learning_rate = self.lr
        self._computed_seconds = 0.0
        self._window = Window(Totals(), 0, 0.0)
        self.log: MetricsLog | None = None
        self.step_log: StepLog | None = None
        self.schedule: ScheduleLog | None = None
        self.recorded: dict[int, float] = {}
        """Progress of the steps behind the checkpoint of a run by the clock, by number, as it was the first time."""
        self._skipped_in_a_row = 0
        self._last_progress = 0.0
        self._repeats_schedule = True
        self.stop = StopRequest(self.reporter.on_message)
        if device.type == "cpu":
            self.reporter.on_message(_kernels(device))
        self.device_step: DeviceStep | None = None
        self.graphs: GraphedStep | None = None
        if self._captures():
            self.graphs = GraphedStep(model, self.optimizer, max_grad_norm=config.max_grad_norm, dtype=dtype)
        if device.type != "cpu" and self.graphs is None:
            self.device_step = DeviceStep(
                self.loss, self.optimizer, self.scaler, max_grad_norm=config.max_grad_norm, dtype=dtype,
                replicas=self.replicas,
            )  # fmt: skip

    def _captures(self) -> bool:
        """Return whether --cuda-graphs selects captured steps; report the choice on a GPU."""
        return captures_steps(
            self.config,
            self.device,
            self.dtype,
            distills=self.loss.distillation is not None,
            processes=self.world.size,
            on_message=self.reporter.on_message,
        )

    def save(self, *, behind: bool = False) -> Path:
        """Save a checkpoint of the current step, in the first process, `behind` the next steps if --async-save says so;
        return its folder."""
        if not self.world.is_main:
            return self.checkpoints.folder(self.step)
        flush = [log.sync for log in (self.log, self.step_log, self.schedule) if log is not None]
        window = self._window
        state: dict[str, Any] = {
            "step": self.step,
            "samples": list(self.cursor),
            "skipped": self.skipped,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "window": {**window.totals.to_state(), "tokens": window.tokens, "seconds": window.seconds},
            "vocabulary": self.fingerprint,
            "data": self.data_fingerprint,
            "configuration": self.configuration,
            "scaler": self.scaler.state_dict(),
            "torch": torch.__version__,
            "processes": self.world.size,
        }
        save = self.checkpoints.save_async if behind else self.checkpoints.save
        return save(snapshot(self.model, self.optimizer), state, flush)

    def resume(self) -> int:
        """Continue from the newest whole checkpoint, whatever the number of processes that wrote it; return its step,
        0 if there is none."""
        loaded = self.checkpoints.load_last(TrainerState.of)
        step = 0 if loaded is None else loaded[1].step
        self.world.require_equal(
            "checkpoint", {"checkpoint of step": step}, "--out must be on a file system that all machines share"
        )
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
        # With another length, the clock decides over the steps behind the checkpoint too.
        before = self.configuration.get("run", {}), last.state["configuration"].get("run", {})
        self._repeats_schedule = all(
            before[0].get(name) == before[1].get(name) for name in ("hours", "steps", "epochs")
        )
        self.step, self.tokens, self.seconds, self._window = state.step, state.tokens, state.seconds, state.window
        self.cursor, self.skipped = state.samples or (state.step * self.batch_size,), state.skipped
        if len(self.cursor) != len(self.data.start):
            raise UserError(f"{last.folder}: is of a run of {len(self.cursor)} phases, not {len(self.data.start)}")
        return self.step

    def run(self) -> Metrics:
        """Train until the budget is spent; return the last validation.

        Raises `Stopped` after SIGINT or SIGTERM, with the state saved, and `TrainingError` for a non-finite gradient.
        """
        if self.world.is_main:
            self.log = MetricsLog(
                self.folder / "metrics.jsonl", (lambda line: Metrics(**line).step <= self.step) if self.step else None
            )
            self.step_log = StepLog(self.folder, self.step)
        self._open_schedule()
        finished = self.budget.progress(self.step, self.seconds)
        validation = self._validated() if finished >= 1.0 else None
        # Signals are still handled while the reason of another process's end is awaited: torchrun sends one then.
        with self.checkpoints, self.stop.listening(), self.world.watched(CONTINUE), Prefetcher(self.load) as ahead:
            launch = self.graphs or self.device_step  # None on a CPU, where a step ends before the next begins
            steps: deque[_Step] = deque()  # not yet reported
            self._computed_seconds = self.seconds
            if finished < 1.0:
                ahead.submit(self.spec(self.step, self.cursor))
            while finished < 1.0:
                started = time.perf_counter()
                self.checkpoints.check()
                loaded = ahead.result()
                spec = loaded.spec
                ahead.submit(self.spec(spec.number, spec.after))
                lr = self.last_learning_rate = spec.learning_rate
                losses, norm = self.compute(loaded)
                self.averaging.update(spec.number)
                self._wait(steps, started)  # for the previous step, while the device computes this one
                stopping = self._agree(losses)
                tokens = round(loaded.counts.tokens)
                self.step, self.cursor = spec.number, spec.after
                self.tokens += tokens
                before, finished = finished, self.budget.progress(self.step, self.seconds)
                real = [batch.real if isinstance(batch, FilledBatch) else batch for batch in loaded.batches]
                log = self.step == 1 or self.step % self.config.log_every == 0 or finished >= 1.0
                summed = weights_sum(self.model) if log and launch is None and self.world.is_main else None
                steps.append(
                    _Step(self.step, tokens, self.tokens, self.seconds, lr, finished, losses, real, log, norm, summed)
                )
                evaluate = self._due(self.config.eval_every, EVALUATIONS, None, before, finished)
                save = self._due(self.config.checkpoint_every, CHECKPOINTS, CHECKPOINT_STEPS, before, finished)
                save = save or self.checkpoints.keeps(self.step)
                all_now = evaluate or save or stopping is not None
                if all_now and launch is not None:
                    self._wait(steps, time.perf_counter())
                self._announce(self._read(steps, keep=0 if all_now or launch is None else 1))
                if evaluate:
                    validation = self.validate()
                if self.world.size == 1:
                    stopping = self.stop.number  # also received since the step
                if stopping is not None:
                    self._announce(self._read(steps, keep=0))
                    saved = self.save()
                    self.world.wait("stopped")  # a process that ends makes torchrun end the one that saves
                    raise Stopped(stopping, saved)
                if save:
                    self.save(behind=finished < 1.0)
        caching_allocator.release()
        self.world.wait("saved")
        averaged = self.averaging.finish()
        if averaged is not None:
            self.reporter.on_message(averaged)
        if self.config.average_last is not None:
            return self.validate()
        return validation or self.validate()

    def compute(self, loaded: LoadedStep) -> tuple[Totals | StepStats, float]:
        """Take an optimiser step; return its losses, of this process alone on a CPU, and the norm of its gradient, NaN
        on a GPU, which has not computed it yet."""
        launch = self.graphs or self.device_step
        with self.optimizer.copies():
            if launch is None:
                return self._train_step(loaded)
            return self._launch(launch, loaded), math.nan

    def _open_schedule(self) -> None:
        """Open schedule.jsonl of a run by the clock; the steps behind the checkpoint take their progress from it."""
        if self.budget.seconds is None:
            return
        path = self.folder / SCHEDULE
        if self.world.is_main:
            self.schedule = ScheduleLog(path, self.step or None, replay=self._repeats_schedule)
        name = f"schedule-{self.step}"
        steps = self.world.shared(name, lambda: {str(line.step): line.progress for line in self._scheduled()})
        self.recorded = {int(step): progress for step, progress in steps.items()}

    def _scheduled(self) -> Iterable[ScheduledStep]:
        return [] if self.schedule is None else self.schedule.values(self.step + 1)

    def _agree(self, losses: Totals | StepStats) -> int | None:
        """Sum the losses of a CPU's step over all processes, and take the first one's clock; return the signal that any
        of them has received, None without."""
        stop = self.stop.number
        if self.world.size == 1:
            return stop
        numbers = torch.zeros(3 + Totals.NUMBERS, dtype=torch.float64)
        numbers[0], numbers[1] = stop == signal.SIGINT, stop == signal.SIGTERM
        numbers[2] = self.seconds if self.world.is_main else 0.0
        if isinstance(losses, Totals):
            numbers[3:] = losses.numbers()
        self.world.sum(numbers)
        self.seconds = float(numbers[2])
        if isinstance(losses, Totals):
            losses.set_numbers(numbers[3:])
        return signal.SIGINT if numbers[0] else signal.SIGTERM if numbers[1] else None

    def spec(self, step: int, cursor: Cursor) -> StepSpec:
        """Return the step after `step` steps, which begins with the next one or later."""
        seconds = self.seconds
        if self.step:
            seconds += self.seconds / self.step * (step - self.step + 0.5)
        number = step + 1
        progress = self.recorded.get(number)
        if progress is None:
            progress = max(self.budget.progress(step + 0.5, seconds), self._last_progress)
        self._last_progress = progress
        if self.schedule is not None:
            self.schedule.append(number, progress)
        spec = self.data.spec(number, cursor, progress)
        return replace(spec, learning_rate=self.lr * self._rate(spec.progress))

    def _rate(self, progress: float) -> float:
        """Return the learning rate at the finished fraction of the run, as a fraction of the peak."""
        flags = self.config
        return learning_rate_factor(
            progress,
            flags.warmup,
            flags.schedule,
            decay_fraction=flags.decay_fraction,
            min_ratio=flags.min_lr_ratio,
        )

    def _log_window(self, step: _Step) -> None:
        """Write the line of metrics.jsonl that follows a step: means since the previous line."""
        window = self._window
        rate = (step.total_tokens - window.tokens) / max(step.seconds - window.seconds, 1e-9)
        if self.log is not None and window.totals.sums is not None:  # else all steps since then were skipped
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
        """Remove all but the last `keep` steps; return their metrics, and write the lines that follow them. Losses are
        added to the window here, and a non-finite gradient of a GPU raises: such a step must not be saved."""
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
                step.norm = norm
                if not math.isfinite(norm) and not self.scaler.is_enabled() and self.config.on_nan == "stop":
                    self._announce(read)  # the steps before had finite gradients
                    self._refuse(step.number, losses, step.batches)
            if math.isfinite(step.norm):
                self._window.totals.add_totals(losses)
                self._skipped_in_a_row = 0
            else:
                self._skip(step)
            read.append((self._metrics("train", losses, rate, step), step.finished))
            if self.step_log is not None:
                self.step_log.append(step.number, losses.read()["loss"], step.norm, step.weights)
            if step.logs:
                self._log_window(step)
        return read

    def _skip(self, step: _Step) -> None:
        """Count a step that changed no weight. Raises `TrainingError` after `MOST_SKIPPED` of them in a row."""
        self.skipped += 1
        self._skipped_in_a_row += 1
        if not self.scaler.is_enabled():  # whose overflows are a part of fp16 training
            count = f"{self.skipped:,} so far"
            self.reporter.on_message(f"step {step.number:,}: the gradient is not finite; it is skipped ({count})")
        if self._skipped_in_a_row >= MOST_SKIPPED:
            raise TrainingError(
                f"step {step.number}: the gradients of {MOST_SKIPPED} steps in a row were not finite numbers; start"
                f" again in another --out with an --lr below {self.lr:g} or a longer --warmup"
            )

    def _announce(self, steps: Sequence[tuple[Metrics, float]]) -> None:
        for metrics, finished in steps:
            self.reporter.on_step(metrics.record(), finished)

    def validate(self) -> Metrics:
        """Compute losses and accuracies on the held-out sequences, without dropout."""
        totals, tokens, started = Totals(), 0, time.perf_counter()
        self.model.eval()
        samples, progress = self.validation_samples(), self.budget.progress(self.step, self.seconds)
        with torch.no_grad(), self.averaging.applied(), self.optimizer.copies():
            for batch in self.data.validation_batches(
                samples, self.micro_batch, progress, self.world.rank, self.world.size
            ):
                with autocast(self.device, self.dtype):
                    totals.add(self.model(batch.to(self.device)))
                tokens += batch.num_tokens
        self.model.train()
        if self.world.size > 1:
            numbers = torch.cat((totals.numbers(), torch.tensor([tokens], dtype=torch.float64)))
            self.world.sum(numbers)
            totals.set_numbers(numbers[:-1])
            tokens = round(float(numbers[-1]))
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

    def load(self, spec: StepSpec) -> LoadedStep:
        """Return a step with this process's micro-batches: of type `FilledBatch` for CUDA graphs, else packed."""
        micro_batches = self.data.batches(spec, self.micro_batch, self.world.rank, self.world.size)
        counts = self.loss.counts(micro_batches)
        if self.world.size > 1:
            counts = StepCounts(*self.world.sum_ahead(torch.tensor(astuple(counts), dtype=torch.float64)).tolist())
        batches: list[Any] = [batch.longest_first() for batch in micro_batches]
        launch = self.graphs or self.device_step
        return LoadedStep(spec, batches if launch is None else [launch.prepare(batch) for batch in batches], counts)

    def _launch(self, step: DeviceStep | GraphedStep, loaded: LoadedStep) -> StepStats:
        """Launch a step; once more, without them, if kernels of its backward pass do not compile."""
        return until_compiled(functools.partial(step, loaded.batches, loaded.spec.learning_rate, loaded.counts))

    def _train_step(self, loaded: LoadedStep) -> tuple[Totals, float]:
        """Take an optimiser step on a CPU; return its losses, of this process alone, and the norm of its gradient."""
        self.model.train()
        losses, batches = Totals(), loaded.batches
        for index, (batch, part) in enumerate(zip(batches, self.loss.parts(batches, loaded.counts), strict=True)):
            with self.replicas.accumulating(last=index == len(batches) - 1):
                with autocast(self.device, self.dtype):
                    loss, output = self.replicas(batch.to(self.device), part)
                loss.backward()
            losses.add(output)
        try:
            norm = float(self.optimizer.clip_gradients(self.config.max_grad_norm))
        except GradientError as error:
            if self.config.on_nan == "stop":
                self._refuse(loaded.spec.number, losses, batches, f"; {error.where}")
            self.optimizer.zero_grad(set_to_none=True)
            return losses, math.nan
        set_learning_rate(self.optimizer, loaded.spec.learning_rate)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses, norm

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
            f" start again in another --out with an --lr below {self.lr:g} or a longer --warmup, or with --on-nan skip"
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
