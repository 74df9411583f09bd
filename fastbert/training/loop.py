"""The pre-training loop: micro-batches, mixed precision, schedule, validation, checkpoints and signals.

One file: a step from its specification to its metrics, and what comes between two steps.
"""

from __future__ import annotations

import functools
import math
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from fastbert import cpu_capability
from fastbert.data.prefetch import Prefetcher
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
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.defaults import EVALUATIONS
from fastbert.training.device_step import DeviceStep, StepStats
from fastbert.training.graphed import FilledBatch, GraphedStep, captures_steps
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import Metrics, Totals, TrainerState, last_of, read_metrics
from fastbert.training.monitors import Monitors
from fastbert.training.optimizer import GradientError, set_learning_rate
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.parallel import Replicas, Shards
from fastbert.training.precision import narrow_weights, restore_masters
from fastbert.training.profiling import StepProfiler
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import check_configuration, plain
from fastbert.training.saving import Checkpoints
from fastbert.training.schedule_log import FILE as SCHEDULE
from fastbert.training.schedule_log import ScheduledStep, ScheduleLog
from fastbert.training.step_log import ExactStep, weights_sum
from fastbert.training.step_loss import DistillationLoss, StepLoss
from fastbert.training.step_reports import SpikeError, Step, StepReports, TrainingError
from fastbert.training.step_spec import Cursor, LoadedStep, StepCounts, StepSource, StepSpec
from fastbert.training.stopping import Stopped, StopRequest

CHECKPOINTS, CHECKPOINT_STEPS = 20, 1000  # a run's defaults, unless flags say otherwise

CONTINUE = "its checkpoints are whole: continue with --resume"


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
        masters = narrow_weights(model, config)
        set_z_loss(model, config.z_loss)
        if config.checkpoint_activations:
            model.checkpoint_activations(config.checkpoint_mode)
        self.loss = StepLoss(model, distillation)
        kind = Shards if config.parallel == "fsdp" and self.world.size > 1 else Replicas
        self.replicas = kind(self.loss, self.world, dtype)
        self.optimizer = pretraining_optimizer(model, config, self.lr, masters=masters)
        self.optimizer.reduce_sums = self.replicas.reduce_sums
        self.optimizer.share(self.world.rank, self.world.size, self.replicas.sum)
        self.averaging = Averaging(config, model, self.optimizer, folder / "checkpoints")
        reason: str | None = "several processes sum gradients in buckets of DDP's"
        if self.world.size == 1:
            reason = self.optimizer.flatten_if_faster(model, device, dtype)
        if reason is not None and device.type == "cuda":
            self.reporter.on_message(f"no bf16 copies of weights, ordinary gradients: {reason}")
        self.scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
        default_micro = self.batch_size if device.type == "cuda" else min(32, self.batch_size)
        self.micro_batch = config.micro_batch or default_micro
        self.step = self.tokens = 0
        self.cursor: Cursor = data.start
        self.seconds = 0.0
        self.last_learning_rate = self.lr
        self.meters = RunMeters(device)
        self.monitors = Monitors(config, folder, device, model.num_parameters(), self.reporter.on_message)
        self.reports = StepReports(
            self.reporter,
            self.meters,
            self.monitors,
            self._refuse,
            skips=config.on_nan == "skip",
            scales=self.scaler.is_enabled(),
        )
        self.schedule: ScheduleLog | None = None
        self.recorded: dict[int, float] = {}
        """Progress of the steps behind the checkpoint of a run by the clock, by number, as it was the first time."""
        self.omitted: set[int] = set()
        """Steps that change no weight, since their loss was a spike from which the run was rolled back."""
        self._last_progress = 0.0
        self._agreements = 0
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

    @property
    def progress(self) -> float:
        """Return the finished fraction of the run."""
        return self.budget.progress(self.step, self.seconds)

    def report_to(self, reporter: Reporter) -> None:
        """Report to other hooks from now on."""
        self.reporter = self.reports.reporter = reporter

    def measure_with(self, meters: RunMeters) -> None:
        """Count costs with other meters, which know the model's operations."""
        self.meters = self.reports.meters = meters

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
        tensors = self.replicas.snapshot(self.optimizer) if self.world.is_main or self.replicas.gathers else None
        if tensors is None or not self.world.is_main:
            return self.checkpoints.folder(self.step)
        self.monitors.before_save()
        flush = [*self.reports.flush, *([] if self.schedule is None else [self.schedule.sync])]
        window = self.reports.window
        state: dict[str, Any] = {
            "step": self.step,
            "samples": list(self.cursor),
            "meters": self.meters.to_state(),
            "skipped": self.reports.skipped,
            "spikes": self.monitors.spikes.to_state(),
            "omitted": sorted(self.omitted),
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
        with self.meters.timed("checkpoint"):
            if behind:
                return self.checkpoints.save_async(tensors, state, flush, owned=self.replicas.gathers)
            return self.checkpoints.save(tensors, state, flush)

    def _unique(self, name: str) -> str:
        """Return the name of an agreement of all processes that may be made more than once."""
        self._agreements += 1
        return f"{name}-{self._agreements}"

    def resume(self, at_most: int | None = None) -> int:
        """Continue from the newest whole checkpoint, of step `at_most` or before, whatever the number of processes that
        wrote it; return its step, 0 if there is none."""
        loaded = self.checkpoints.load_last(TrainerState.of, at_most)
        step = 0 if loaded is None else loaded[1].step
        self.world.require_equal(
            self._unique("checkpoint"),
            {"checkpoint of step": step},
            "--out must be on a file system that all machines share",
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
        checkpoint.restore(last, self.model, self.optimizer, self.replicas.shard)
        if self.graphs is not None:
            self.graphs.forget()
        # With another length, the clock decides over the steps behind the checkpoint too.
        before = self.configuration.get("run", {}), last.state["configuration"].get("run", {})
        self._repeats_schedule = all(
            before[0].get(name) == before[1].get(name) for name in ("hours", "steps", "epochs")
        )
        self.step, self.tokens, self.seconds = state.step, state.tokens, state.seconds
        self.reports.window = state.window
        self.cursor = state.samples or (state.step * self.batch_size,)
        self.omitted |= set(state.omitted)
        self.meters.restore(state.meters)
        self.reports.skipped = state.skipped
        if state.spikes:
            self.monitors.spikes.restore(state.spikes)
        if len(self.cursor) != len(self.data.start):
            raise UserError(f"{last.folder}: is of a run of {len(self.cursor)} phases, not {len(self.data.start)}")
        return self.step

    def run(self) -> Metrics:
        """Train until the budget is spent; return the last validation.

        Raises `Stopped` after SIGINT or SIGTERM, with the state saved, and `TrainingError` for a non-finite gradient.
        """
        self.monitors.begin()
        # Signals are still handled while the reason of another process's end is awaited: torchrun sends one then.
        with self.checkpoints, self.stop.listening(), self.world.watched(CONTINUE):
            while True:
                try:
                    validation = self._run()
                    break
                except SpikeError as spike:
                    self._roll_back(spike)
        caching_allocator.release()
        self.world.wait("saved")
        restore_masters(self.model, self.optimizer)
        averaged = self.averaging.finish(self.replicas.shard)
        if averaged is not None:
            self.reporter.on_message(averaged)
        if self.config.average_last is not None:
            return self.validate()
        return validation or self.validate()

    def _run(self) -> Metrics | None:
        """Train from the current step until the budget is spent; return the last validation, if there was one."""
        reports = self.reports
        if self.world.is_main:
            reports.open(self.folder, self.step, self.seconds)
        self._open_schedule()
        finished = self.budget.progress(self.step, self.seconds)
        validation = self._validated() if finished >= 1.0 else None
        left = math.inf if self.budget.steps is None else self.budget.steps - self.step
        profiler = StepProfiler.of(
            self.config,
            self.folder,
            self.device,
            self.reporter.on_message,
            steps_left=left,
            writes=self.world.is_main,
        )
        with self._prefetcher() as ahead, profiler:
            launch = self.graphs or self.device_step  # None on a CPU, where a step ends before the next begins
            specs = self._specs()
            for _ in range(ahead.depth if finished < 1.0 else 0):
                ahead.submit(next(specs))
            while finished < 1.0:
                started = time.perf_counter()
                self.checkpoints.check()
                with profiler.step():
                    with self.meters.timed("data"), self.monitors.waiting(self.step + 1):
                        loaded = ahead.result()
                    spec = loaded.spec
                    ahead.submit(next(specs))
                    self.last_learning_rate = spec.learning_rate
                    losses, norm = self.compute(loaded)
                    self.averaging.update(spec.number)
                    self._wait(started)  # for the previous step, while the device computes this one
                stopping = self._agree(losses)
                self.step, self.cursor = spec.number, spec.after
                self.tokens += round(loaded.counts.tokens)
                before, finished = finished, self.budget.progress(self.step, self.seconds)
                reports.pending.append(self._started(loaded, losses, norm, finished))
                evaluate = self._due(self.config.eval_every, EVALUATIONS, None, before, finished)
                save = self._due(self.config.checkpoint_every, CHECKPOINTS, CHECKPOINT_STEPS, before, finished)
                save = save or self.checkpoints.keeps(self.step)
                all_now = evaluate or save or stopping is not None
                if all_now and launch is not None:
                    self._wait(time.perf_counter())
                reports.read(keep=0 if all_now or launch is None else 1)
                if evaluate:
                    validation = self.validate()
                if self.world.size == 1:
                    stopping = self.stop.number  # also received since the step
                if stopping is not None:
                    reports.read(keep=0)
                    saved = self.save()
                    ahead.close()
                    self.world.wait("stopped")  # a process that ends makes torchrun end the one that saves
                    raise Stopped(stopping, saved)
                if save:
                    self.save(behind=finished < 1.0)
        return validation

    def _started(self, loaded: LoadedStep, losses: Totals | StepStats, norm: float, finished: float) -> Step:
        """Return the record of a step that was launched."""
        real = [batch.real if isinstance(batch, FilledBatch) else batch for batch in loaded.batches]
        log = self.step == 1 or self.step % self.config.log_every == 0 or finished >= 1.0
        return Step(
            self.step,
            loaded.counts,
            self.tokens,
            self.seconds,
            loaded.spec.learning_rate,
            finished,
            losses,
            real,
            log,
            loaded.spec.phase,
            norm,
            self._weights_sum() if log and isinstance(losses, Totals) else None,
            self.step in self.omitted,
        )

    def _roll_back(self, spike: SpikeError) -> None:
        """Return to the last checkpoint before a spike, and leave the step out from now on. Raises `TrainingError`
        where there is no checkpoint."""
        self.checkpoints.wait()
        self.world.wait(self._unique("spike"))
        omitted = {*self.omitted, spike.step}
        self.reports.pending.clear()
        step = self.resume(spike.step - 1)
        if not step:
            raise TrainingError(
                f"{spike}, and there is no checkpoint before it to return to; continue with --on-spike warn, or save"
                " more often (--checkpoint-every)"
            )
        self.omitted |= omitted
        self.monitors.spikes.reset()
        self.reporter.on_message(f"{spike}: back to step {step:,}; step {spike.step:,} will be left out")

    def compute(self, loaded: LoadedStep) -> tuple[Totals | StepStats, float]:
        """Take an optimiser step; return its losses, of this process alone on a CPU, and the norm of its gradient, NaN
        on a GPU, which has not computed it yet."""
        launch = self.graphs or self.device_step
        if loaded.spec.number in self.omitted:
            return self._forward(loaded), math.nan
        with self.optimizer.copies():
            if launch is None:
                return self._train_step(loaded)
            return self._launch(launch, loaded), math.nan

    def replayed(self, last: int) -> Iterator[ExactStep]:
        """Take the steps up to `last` again, from the current one on; yield each as steps.jsonl has it. Nothing is
        written."""
        specs = self._specs()
        while self.step < last:
            loaded = self.load(next(specs))
            if self.world.size > 1:
                loaded = self._summed(loaded)
            losses, norm = self.compute(loaded)
            self.averaging.update(loaded.spec.number)
            self._agree(losses)
            if isinstance(losses, StepStats):
                output, norm = losses.read()
                losses = Totals()
                losses.add(output)
            self.step, self.cursor = loaded.spec.number, loaded.spec.after
            self.tokens += round(loaded.counts.tokens)
            yield ExactStep.of(self.step, losses.read()["loss"], norm, self._weights_sum())

    def _weights_sum(self) -> int | None:
        """Return `weights_sum` of the model, in the first process; None where each process has a part of it."""
        return weights_sum(self.model) if self.world.is_main and not self.replicas.gathers else None

    def _open_schedule(self) -> None:
        """Open schedule.jsonl of a run by the clock; the steps behind the checkpoint take their progress from it."""
        if self.budget.seconds is None:
            return
        path = self.folder / SCHEDULE
        if self.world.is_main:
            if self.schedule is not None:
                self.schedule.close()
            self.schedule = ScheduleLog(path, self.step or None, replay=self._repeats_schedule)
        steps = self.world.shared(
            self._unique("schedule"), lambda: {str(line.step): line.progress for line in self._scheduled()}
        )
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

    def _specs(self) -> Iterator[StepSpec]:
        """Yield the steps that follow."""
        step, cursor = self.step, self.cursor
        while True:
            spec = self.spec(step, cursor)
            yield spec
            step, cursor = spec.number, spec.after

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
        return replace(spec, learning_rate=self.lr * self.config.rate_factor(spec.progress))

    def _validated(self) -> Metrics | None:
        """Return the validation of the current step if an earlier start of the run has written it."""
        last = last_of(read_metrics(self.folder / "metrics.jsonl"), "validation")
        return last if last is not None and last.step == self.step else None

    def _wait(self, started: float) -> None:
        """Wait until the device has computed the steps so far; count the time since `started` as training time."""
        self.reports.wait()
        self.seconds += time.perf_counter() - started
        if self.reports.pending:
            self.reports.pending[-1].seconds = self.seconds

    def validate(self) -> Metrics:
        """Compute losses and accuracies on the held-out sequences, without dropout."""
        totals, tokens, started = Totals(), 0, time.perf_counter()
        self.model.eval()
        samples, progress = self.validation_samples(), self.budget.progress(self.step, self.seconds)
        with self.meters.timed("validation"), torch.no_grad(), self.averaging.applied(), self.optimizer.copies():
            for batch, counted in self._validation_batches(samples, progress):
                with autocast(self.device, self.dtype):
                    output = self.model(batch.to(self.device))
                if counted:
                    totals.add(output)
                    tokens += batch.num_tokens
            if self.world.size > 1:
                numbers = torch.cat((totals.numbers(), torch.tensor([tokens], dtype=torch.float64)))
                self.world.sum(numbers)
                totals.set_numbers(numbers[:-1])
                tokens = round(float(numbers[-1]))
        self.model.train()
        rate = tokens / max(time.perf_counter() - started, 1e-9)
        last = Step(
            self.step, StepCounts(), self.tokens, self.seconds, self.last_learning_rate, progress, totals, [], False
        )
        return self.reports.validated(last, totals, rate)

    def _validation_batches(self, samples: int, progress: float) -> list[tuple[PackedBatch, bool]]:
        """Return this process's batches of a validation, each with True; where all processes must compute as many,
        repeated ones follow, with False."""
        world = self.world
        batches = self.data.validation_batches(samples, self.micro_batch, progress, world.rank, world.size)
        if not self.replicas.gathers:
            return [(batch, True) for batch in batches]
        numbers = torch.zeros(world.size, dtype=torch.float64)
        numbers[world.rank] = len(batches)
        most = int(world.sum(numbers).max())
        others = batches or self.data.validation_batches(samples, self.micro_batch, progress, 0, world.size)
        return [(batch, True) for batch in batches] + [(others[0], False)] * (most - len(batches))

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

    def _prefetcher(self) -> Prefetcher[StepSpec, LoadedStep]:
        finish = self._summed if self.world.size > 1 else None
        return Prefetcher(self.load, finish, workers=self.config.loader_workers)

    def _summed(self, loaded: LoadedStep) -> LoadedStep:
        """Return a step with the counts of all processes, and the most micro-batches that one of them has."""
        own = astuple(loaded.counts)
        numbers = torch.zeros(len(own) + self.world.size, dtype=torch.float64)
        numbers[: len(own)] = torch.tensor(own, dtype=torch.float64)
        numbers[len(own) + self.world.rank] = len(loaded.batches)
        self.world.sum_ahead(numbers)
        passes = int(numbers[len(own) :].max())
        return replace(loaded, counts=StepCounts(*numbers[: len(own)].tolist()), passes=passes)

    def load(self, spec: StepSpec) -> LoadedStep:
        """Return a step with this process's micro-batches: of type `FilledBatch` for CUDA graphs, else packed."""
        micro_batches = self.data.batches(spec, self.micro_batch, self.world.rank, self.world.size)
        counts = StepCounts.of(micro_batches, pairs=True)
        batches: list[Any] = [batch.longest_first() for batch in micro_batches]
        launch = self.graphs or self.device_step
        return LoadedStep(spec, batches if launch is None else [launch.prepare(batch) for batch in batches], counts)

    def _launch(self, step: DeviceStep | GraphedStep, loaded: LoadedStep) -> StepStats:
        """Launch a step; once more, without them, if kernels of its backward pass do not compile."""
        passes = {"passes": loaded.passes} if loaded.passes and isinstance(step, DeviceStep) else {}
        return until_compiled(
            functools.partial(step, loaded.batches, loaded.spec.learning_rate, loaded.counts, **passes)
        )

    @torch.no_grad()
    def _forward(self, loaded: LoadedStep) -> Totals:
        """Return the losses of a step that is left out."""
        losses = Totals()
        batches = [batch.real if isinstance(batch, FilledBatch) else batch for batch in loaded.batches]
        parts = self.loss.parts(batches, loaded.counts)
        with self.optimizer.copies():
            for batch, _, counted, _ in self.replicas.passes(batches, parts, loaded.passes):
                with autocast(self.device, self.dtype):
                    output = self.model(batch.to(self.device))
                if counted:
                    losses.add(output)
        return losses

    def _train_step(self, loaded: LoadedStep) -> tuple[Totals, float]:
        """Take an optimiser step on a CPU; return its losses, of this process alone, and the norm of its gradient."""
        self.model.train()
        losses, batches = Totals(), loaded.batches
        for batch, part, counted, last in self.replicas.passes(
            batches, self.loss.parts(batches, loaded.counts), loaded.passes
        ):
            with self.replicas.accumulating(last):
                with autocast(self.device, self.dtype):
                    loss, output = self.replicas(batch.to(self.device), part)
                loss.backward()
            if counted:
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
