"""The pre-training loop: the order of steps, reports, validations and checkpoints, signals, and roll-backs.

How a step is computed, loaded and scheduled stands in `step_computing`, `step_loading` and `step_schedule`.
One file: the order of these events is the run's, and each of them touches the state that checkpoints store.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fastbert.distributed.world import World
from fastbert.models.heads.prediction import set_z_loss
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.ops.native import caching_allocator
from fastbert.training import checkpoint
from fastbert.training.agreement import agree, agreed_seconds
from fastbert.training.averaging import Averaging
from fastbert.training.config import Budget, PretrainConfig
from fastbert.training.defaults import CHECKPOINT_STEPS, CHECKPOINTS, EVALUATIONS, PAPER_BATCH, due
from fastbert.training.device import described_kernels
from fastbert.training.device_step import StepStats
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import Metrics, Totals, last_of, read_metrics
from fastbert.training.monitors import Monitors
from fastbert.training.optimizer_choice import pretraining_optimizer
from fastbert.training.parallel import Replicas, Shards
from fastbert.training.precision import narrow_weights, restore_masters
from fastbert.training.processes import CONTINUE
from fastbert.training.profiling import StepProfiler
from fastbert.training.reporter import Reporter
from fastbert.training.run_files import check_configuration, plain
from fastbert.training.saving import Checkpoints
from fastbert.training.step_computing import StepComputer, real_batches
from fastbert.training.step_loading import StepLoader
from fastbert.training.step_log import ExactStep, weights_sum
from fastbert.training.step_loss import DistillationLoss, StepLoss
from fastbert.training.step_reports import SpikeError, Step, StepReports
from fastbert.training.step_schedule import StepSchedule
from fastbert.training.step_spec import LoadedStep, Position, StepCounts, StepSource
from fastbert.training.stopping import Stopped, StopRequest
from fastbert.training.trainer_state import TrainerState
from fastbert.training.validating import Validator, validation_samples

if TYPE_CHECKING:
    from fastbert.training.optimizer import AdamW


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
        self.world: World = world or World()
        self.model: ForPreTraining = model.to(device)
        self.config = config
        self.budget = budget
        self.device = device
        self.folder = folder
        self.fingerprint = fingerprint
        self.data_fingerprint = data_fingerprint
        self.configuration: dict[str, Any] = plain(configuration or {})
        self.checkpoints: Checkpoints = Checkpoints(
            folder / "checkpoints",
            config.keep_checkpoints,
            keep_every=config.keep_every,
            background=config.async_save,
        )
        self.reporter: Reporter = reporter or Reporter()
        assert config.lr is not None  # `pretrain` has chosen what the flags left open
        assert config.batch_size is not None
        masters = narrow_weights(model, config)
        set_z_loss(model, config.z_loss)
        if config.checkpoint_activations:
            model.checkpoint_activations(config.checkpoint_mode)
        loss = StepLoss(model, distillation)
        kind = Shards if config.parallel == "fsdp" and self.world.size > 1 else Replicas
        self.replicas: Replicas | Shards = kind(loss, self.world, dtype)
        self.optimizer: AdamW = pretraining_optimizer(model, config, config.lr, masters=masters)
        self.optimizer.reduce_sums = self.replicas.reduce_sums
        self.optimizer.share(self.world.rank, self.world.size, self.replicas.sum)
        self.averaging: Averaging = Averaging(config, model, self.optimizer, folder / "checkpoints")
        reason: str | None = "several processes sum gradients in buckets of DDP's"
        if self.world.size == 1:
            reason = self.optimizer.flatten_if_faster(model, device, dtype)
        if reason is not None and device.type == "cuda":
            self.reporter.on_message(f"no bf16 copies of weights, ordinary gradients: {reason}")
        if device.type == "cpu":
            self.reporter.on_message(described_kernels(device))
        on_message = self.reporter.on_message
        self.computer: StepComputer = StepComputer(
            loss, self.replicas, self.optimizer, config, device=device, dtype=dtype, on_message=on_message
        )
        most = config.batch_size if config.batch_schedule is None else PAPER_BATCH
        usual = min(most if device.type == "cuda" else 32, config.batch_size)
        self.micro_batch: int = config.micro_batch or usual
        self.position: Position = Position(data.start)
        self.loader: StepLoader = StepLoader(data, self.world, self.micro_batch, self.computer.prepare)
        self.schedule: StepSchedule = StepSchedule(data, config, budget, config.lr, self.position)
        self.validator: Validator = Validator(
            model,
            data,
            self.world,
            device=device,
            dtype=dtype,
            micro_batch=self.micro_batch,
            gathers=self.replicas.gathers,
        )
        self.last_learning_rate: float = config.lr
        self.meters: RunMeters = RunMeters(device)
        self.monitors: Monitors = Monitors(config, folder, device, model.num_parameters(), self.reporter.on_message)
        self.reports: StepReports = StepReports(
            self.reporter,
            self.meters,
            self.monitors,
            self.computer.refuse,
            self.computer.require_finite_weights,
            skips=config.on_nan == "skip",
            scales=self.computer.scaler.is_enabled(),
        )
        self.omitted: set[int] = set()
        """Steps that change no weight, since their loss was a spike from which the run was rolled back."""
        self.stop: StopRequest = StopRequest(self.reporter.on_message)

    @property
    def step(self) -> int:
        """Return the number of steps taken."""
        return self.position.step

    @property
    def progress(self) -> float:
        """Return the finished fraction of the run."""
        return self.budget.progress(self.position.step, self.position.seconds)

    def report_to(self, reporter: Reporter) -> None:
        """Report to other hooks from now on."""
        self.reporter = self.reports.reporter = reporter

    def measure_with(self, meters: RunMeters) -> None:
        """Count costs with other meters, which know the model's operations."""
        self.meters = self.reports.meters = meters

    def save(self, *, behind: bool = False) -> Path:
        """Save a checkpoint of the current step, in the first process, `behind` the next steps if --async-save says so;
        return its folder."""
        tensors = self.replicas.snapshot(self.optimizer) if self.world.is_main or self.replicas.gathers else None
        if tensors is None or not self.world.is_main:
            return self.checkpoints.folder(self.step)
        self.monitors.before_save()
        flush = [*self.reports.flush, *([] if self.schedule.log is None else [self.schedule.log.sync])]
        window = self.reports.window
        state: dict[str, Any] = {
            "step": self.step,
            "samples": list(self.position.cursor),
            "meters": self.meters.to_state(),
            "skipped": self.reports.skipped.total,
            "spikes": self.monitors.to_state(),
            "omitted": sorted(self.omitted),
            "tokens": self.position.tokens,
            "seconds": self.position.seconds,
            "window": {**window.totals.to_state(), "tokens": window.tokens, "seconds": window.seconds},
            "vocabulary": self.fingerprint,
            "data": self.data_fingerprint,
            "configuration": self.configuration,
            "scaler": self.computer.scaler.state_dict(),
            "torch": torch.__version__,
            "processes": self.world.size,
        }
        with self.meters.timed("checkpoint"):
            if behind:
                return self.checkpoints.save_async(tensors, state, flush, owned=self.replicas.gathers)
            return self.checkpoints.save(tensors, state, flush)

    def resume(self, at_most: int | None = None) -> int:
        """Continue from the newest whole checkpoint, of step `at_most` or before, whatever the number of processes that
        wrote it; return its step, 0 if there is none."""
        loaded = self.checkpoints.load_last(TrainerState.of, at_most)
        step = 0 if loaded is None else loaded[1].step
        self.world.require_equal(
            self.world.unique("checkpoint"),
            {"checkpoint of step": step},
            "--out must be on a file system that all machines share",
        )
        if loaded is None:
            return 0
        last, state = loaded
        state.check(
            last.folder,
            self.folder,
            vocabulary=self.fingerprint,
            data=self.data_fingerprint,
            phases=len(self.loader.data.start),
        )
        check_configuration(self.folder, self.configuration, last.folder, last.state, PretrainConfig.CHANGEABLE)
        checkpoint.restore_scaler(self.computer.scaler, state.scaler, last.folder)
        checkpoint.restore(last, self.model, self.optimizer, self.replicas.shard)
        self.computer.restored()
        # With another length, the clock decides over the steps behind the checkpoint too.
        before = self.configuration.get("run", {}), last.state["configuration"].get("run", {})
        self.schedule.repeats = all(before[0].get(name) == before[1].get(name) for name in ("hours", "steps", "epochs"))
        position = self.position
        position.step, position.tokens, position.seconds = state.step, state.tokens, state.seconds
        self.reports.window = state.window
        position.cursor = state.samples or (state.step * (self.config.batch_size or 1),)
        self.omitted |= set(state.omitted)
        self.meters.restore(state.meters)
        self.reports.skipped.total = state.skipped
        if state.spikes:
            self.monitors.restore(state.spikes)
        return self.step

    def run(self) -> Metrics:
        """Train until the budget is spent; return the last validation.

        Raises `Stopped` after SIGINT or SIGTERM, with the state saved, and `TrainingError` for a non-finite gradient.
        """
        self.monitors.begin()
        # Signals are still handled while the reason of another process's end is awaited: torchrun sends one then.
        with self.schedule, self.checkpoints, self.stop.listening(), self.world.watched(CONTINUE):
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
            reports.open(self.folder, self.step, self.position.seconds)
        self.schedule.open(self.folder, self.world, self.world.unique("schedule"))
        finished = self.progress
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
        with self.loader.prefetcher(self.config.loader_workers) as ahead, profiler:
            launched = self.computer.launched is not None  # on a CPU a step ends before the next begins
            specs = self.schedule.following()
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
                    losses, norm = self._computed(loaded)
                    self.averaging.update(spec.number)
                    self._wait(started)  # for the previous step, while the device computes this one
                self.position.seconds, stopping = agree(self.world, losses, self.position.seconds, self.stop.number)
                self.position.take(loaded)
                before, finished = finished, self.progress
                reports.pending.append(self._started(loaded, losses, norm, finished))
                evaluate = due(self.step, self.config.eval_every, EVALUATIONS, None, before, finished)
                save = self.checkpoints.keeps(self.step) or due(
                    self.step, self.config.checkpoint_every, CHECKPOINTS, CHECKPOINT_STEPS, before, finished
                )
                all_now = evaluate or save or stopping is not None
                if all_now and launched:
                    self._wait(time.perf_counter())
                    self.position.seconds = agreed_seconds(self.world, self.position.seconds)
                self._read(keep=1 if launched and not all_now else 0)
                if evaluate:
                    validation = self.validate()
                if self.world.size == 1:
                    stopping = self.stop.number  # also received since the step
                if stopping is not None:
                    self._read(keep=0)
                    saved = self.save()
                    ahead.close()
                    self.world.part("stopped")  # a process that ends makes torchrun end the one that saves
                    raise Stopped(stopping, saved)
                if save:
                    self.save(behind=finished < 1.0)
        return validation

    def _started(self, loaded: LoadedStep, losses: Totals | StepStats, norm: float, finished: float) -> Step:
        """Return the record of a step that was launched."""
        log = self.step == 1 or self.step % self.config.log_every == 0 or finished >= 1.0
        return Step(
            self.step,
            loaded.counts,
            self.position.tokens,
            self.position.seconds,
            loaded.spec.learning_rate,
            finished,
            losses,
            real_batches(loaded),
            log,
            loaded.spec.phase,
            norm,
            self._weights_sum() if log and isinstance(losses, Totals) else None,
            self.step in self.omitted,
        )

    def _read(self, keep: int) -> None:
        """Report steps as `StepReports.read` does; a spike is raised only if there is a checkpoint to return to."""
        try:
            self.reports.read(keep)
        except SpikeError as spike:
            self.checkpoints.wait()
            self.world.wait(self.world.unique("spike"))
            if checkpoint.has_checkpoints(self.folder, spike.step - 1):
                raise
            self._go_on(spike)
            self._read(keep)

    def _go_on(self, spike: SpikeError) -> None:
        self.monitors.spikes.reset()
        self.reporter.on_message(f"{spike}; there is no checkpoint before it to return to: the run goes on")

    def _roll_back(self, spike: SpikeError) -> None:
        """Return to the last checkpoint before a spike, and leave the step out; without a whole one, go on."""
        omitted = {*self.omitted, spike.step}
        step = self.resume(spike.step - 1)
        if not step:
            self._go_on(spike)
            self.reports.read(keep=0)
            return
        self.monitors.spikes.reset()
        self.reports.pending.clear()
        self.omitted |= omitted
        self.reporter.on_rollback(step)
        self.reporter.on_message(f"{spike}: back to step {step:,}; step {spike.step:,} will be left out")

    def _computed(self, loaded: LoadedStep) -> tuple[Totals | StepStats, float]:
        """Take a step, or leave out one that is omitted; return its losses and the norm of its gradient, as
        `StepComputer.step` does."""
        if loaded.spec.number in self.omitted:
            return self.computer.forward(loaded), math.nan
        return self.computer.step(loaded)

    def replayed(self, last: int) -> Iterator[ExactStep]:
        """Take the steps up to `last` again, from the current one on; yield each as steps.jsonl has it. Nothing is
        written."""
        specs = self.schedule.following()
        while self.step < last:
            loaded = self.loader.load(next(specs))
            losses, norm = self._computed(loaded)
            self.averaging.update(loaded.spec.number)
            agree(self.world, losses, self.position.seconds, None)
            if isinstance(losses, StepStats):
                output, norm = losses.read()
                losses = Totals()
                losses.add(output)
            self.position.take(loaded)
            yield ExactStep.of(self.step, losses.read()["loss"], norm, self._weights_sum())

    def _weights_sum(self) -> int | None:
        """Return `weights_sum` of the model, in the first process; None where each process has a part of it."""
        return weights_sum(self.model) if self.world.is_main and not self.replicas.gathers else None

    def _validated(self) -> Metrics | None:
        """Return the validation of the current step if an earlier start of the run has written it."""
        last = last_of(read_metrics(self.folder / "metrics.jsonl"), "validation")
        return last if last is not None and last.step == self.step else None

    def _wait(self, started: float) -> None:
        """Wait until the device has computed the steps so far; count the time since `started` as training time."""
        self.reports.wait()
        self.position.seconds += time.perf_counter() - started
        if self.reports.pending:
            self.reports.pending[-1].seconds = self.position.seconds

    def validate(self) -> Metrics:
        """Compute losses and accuracies on the held-out sequences, without dropout."""
        started, position = time.perf_counter(), self.position
        samples, progress = validation_samples(self.config, self.budget, position), self.progress
        with self.meters.timed("validation"), torch.no_grad(), self.averaging.applied(), self.optimizer.copies():
            totals, tokens = self.validator.totals(samples, progress)
        rate = tokens / max(time.perf_counter() - started, 1e-9)
        rates = self.last_learning_rate, progress
        last = Step(self.step, StepCounts(), position.tokens, position.seconds, *rates, totals, [], False)
        return self.reports.validated(last, totals, rate)
