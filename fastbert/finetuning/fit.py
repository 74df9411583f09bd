"""The training of one trial: batches in the order of its seed, schedule, evaluations, best model, and signals."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastbert.distributed.world import World
from fastbert.finetuning import order, recipe
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.coupled_step import CoupledStep
from fastbert.finetuning.losses import Objective
from fastbert.finetuning.shared_checkpoint import shared_checkpoint
from fastbert.finetuning.trial_loss import StepShare, TrialLoss
from fastbert.finetuning.trial_state import BEST, Progress, Scores, State, best_folder, best_step, hashes
from fastbert.io.atomic_write import sync_tree
from fastbert.io.log import logger
from fastbert.ops import gpu
from fastbert.ops.kernel_failures import until_compiled
from fastbert.tasks.base import Task
from fastbert.tasks.coupled import CoupledTask
from fastbert.tasks.predicting import autocast
from fastbert.tasks.rows import Rows, TaskBatch
from fastbert.training import checkpoint
from fastbert.training.device_step import HostCopy
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import MetricsLog
from fastbert.training.optimizer import AdamW, GradientError, clip_gradients
from fastbert.training.profiling import StepProfiler
from fastbert.training.reporter import Record, Reporter
from fastbert.training.saving import Checkpoints
from fastbert.training.skipped_steps import SkippedSteps, TrainingError
from fastbert.training.snapshot import snapshot
from fastbert.training.stopping import Stopped, StopRequest


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The objects that all trials of a run share."""

    config: FinetuneConfig
    task: Task[Any]
    rows: Rows
    objective: Objective
    items: Callable[[TaskBatch], float]
    """Counts the labels of a batch, or sums their weights."""
    save: Callable[[Path], object]
    """Writes the current model to a folder."""
    evaluate: Callable[[Any], Scores] | None
    """Returns a model's scores by file, the same in all processes; None without evaluation files."""
    choose: Callable[[Scores], float]
    """Returns the score that selects the best model; higher is better."""
    folder: Path
    device: torch.device
    dtype: torch.dtype
    log: MetricsLog | None
    """The run's metrics.jsonl; None in all processes but the first."""
    reporter: Reporter
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The content of config.json, which checkpoints store too."""
    parts: tuple[str, ...] = ()
    """Names in metrics.jsonl of the parts of the objective's `Losses`."""
    world: World = field(default_factory=World)
    """The processes of the run; the first one writes its folder."""


KEEP = 2
"""Checkpoints of a trial: the previous one is used if the newest is damaged."""


class Fit:
    """A trial in memory: model, optimiser and progress.

    `best_folder` holds the best model so far. The best model that a checkpoint names is kept as long as the checkpoint,
    since a run that is resumed there may select a different one. All processes of a run make the same trial; the first
    one writes."""

    def __init__(self, model: Any, trial: Trial, setting: Setting, stop: StopRequest) -> None:
        self.model: Any = model.to(setting.device)
        self.trial = trial
        self.setting = setting
        self.stop = stop
        config = setting.config
        self.per_epoch: int
        self.total: int
        self.per_epoch, self.total = order.steps_of(setting.rows.units, trial.batch_size, trial.epochs, config.steps)
        if config.frozen:
            recipe.freeze(model, [model.config.num_hidden_layers + 1])
        self.optimizer: AdamW = recipe.optimizer(model, config, trial.lr)
        if setting.world.size == 1:  # else gradients are summed in buckets of DDP's
            self.optimizer.flatten_if_faster(model, setting.device, setting.dtype)
        coupled = None
        if isinstance(setting.task, CoupledTask):
            coupled = CoupledStep(
                *(model, setting.task, setting.rows, setting.world, setting.dtype),
                pass_tokens=config.pass_tokens,
                micro_batch=config.micro_batch,
            )
        self.loss: TrialLoss = TrialLoss(model, setting.objective, setting.items, setting.world, setting.dtype, coupled)
        self.scaler: torch.amp.GradScaler = torch.amp.GradScaler(
            setting.device.type, enabled=setting.dtype == torch.float16
        )
        # True on a GPU: a step is launched and reported after the next one; False on a CPU, which computes it at once.
        self.launches: bool = setting.device.type != "cpu"
        self._skip = torch.zeros((), dtype=torch.float32, device=setting.device)
        self.progress: Progress = Progress()
        self.meters: RunMeters = RunMeters(setting.device)
        self.skipped: SkippedSteps = SkippedSteps()
        self.checkpoints: Checkpoints = Checkpoints(setting.folder, KEEP, background=config.async_save)
        self.named: dict[str, int] = {}  # checkpoint -> its best step
        self.hashes: tuple[int, dict[str, str]] = (0, {})  # the best step, and the SHA-256 of its files
        if config.checkpoint_activations:
            model.checkpoint_activations("layer")

    def _keep_best(self) -> None:
        """Remove best models that neither the trial nor one of its checkpoints names."""
        present = self.checkpoints.names()
        self.named = {name: step for name, step in self.named.items() if name in present}
        steps = {self.progress.best_step, *self.named.values()}
        keep = {best_folder(self.setting.folder, step) for step in steps}
        for other in self.setting.folder.glob(f"{BEST}*"):
            if other not in keep:
                try:
                    shutil.rmtree(other)
                except OSError as error:
                    logger.warning("%s: an old model could not be removed (%s); the run continues", other, error)

    def _save_best(self) -> None:
        """Write the model as the best of this trial."""
        setting, step = self.setting, self.progress.step
        self.progress.best_step, self.hashes = step, (0, {})
        if not setting.world.is_main:
            return
        setting.save(best_folder(setting.folder, step))
        self._keep_best()

    def resume(self) -> None:
        """Continue from the trial's newest whole checkpoint, if there is one."""
        world = self.setting.world
        loaded = self.checkpoints.load_last(State.reader(self.setting.folder)) if world.is_main else None
        loaded = shared_checkpoint(world, loaded)
        if loaded is None:
            return
        last, state = loaded
        checkpoint.restore_scaler(self.scaler, state.scaler, last.folder)
        self.meters.restore(state.meters)
        checkpoint.restore(last, self.model, self.optimizer)
        self.progress, self.hashes = state.progress, (state.progress.best_step, state.best)
        self.skipped.total = state.progress.skipped
        if not world.is_main:
            return
        self.named = {
            folder.name: step
            for folder in checkpoint.find(self.setting.folder)
            if (step := best_step(folder)) is not None
        }
        self._keep_best()

    def save(self, *, behind: bool = False) -> Path:
        """Save a checkpoint of the current step, in the first process, `behind` the next ones if --async-save says so;
        return its folder."""
        if not self.setting.world.is_main:
            return self.checkpoints.folder(self.progress.step)
        with self.meters.timed("checkpoint"):
            return self._save(behind)

    def _save(self, behind: bool) -> Path:
        setting, step = self.setting, self.progress.best_step
        if step and self.hashes[0] != step:
            best = best_folder(setting.folder, step)
            sync_tree(best)
            self.hashes = (step, hashes(best))
        state = {
            "step": self.progress.step,
            "progress": vars(self.progress),
            "trial": vars(self.trial),
            "best": self.hashes[1],
            "configuration": dict(setting.configuration),
            "scaler": self.scaler.state_dict(),
            "meters": self.meters.to_state(),
            "torch": torch.__version__,
            "processes": setting.world.size,
        }
        save = self.checkpoints.save_async if behind else self.checkpoints.save
        flush = [] if setting.log is None else [setting.log.sync]
        saved = save(snapshot(self.model, self.optimizer), state, flush)
        self.named[saved.name] = step
        self._keep_best()
        return saved

    def run(self) -> Progress:
        """Train to the end, or until early stopping.

        Raises `Stopped` after a signal, with the state saved, and `TrainingError` for a non-finite gradient.
        """
        setting, left = self.setting, self.total - self.progress.step
        say = setting.reporter.on_message
        with StepProfiler.of(
            setting.config, setting.config.out, setting.device, say, steps_left=left, writes=setting.world.is_main
        ) as profiler:
            return self._run(profiler)

    def _run(self, profiler: StepProfiler) -> Progress:
        config, now, setting = self.setting.config, self.progress, self.setting
        every = config.eval_every or self.per_epoch
        pending: tuple[Record, HostCopy] | None = None
        last_stage, layers = -1, self.model.config.num_hidden_layers
        self.loss.wrap()
        batches = order.batches(setting.rows.units, self.trial.batch_size, self.trial.seed, now.step, self.total)
        for epoch, units in batches:
            stage = recipe.stage(now.step, self.per_epoch, self.total, layers)
            if config.gradual_unfreezing and stage != last_stage:
                recipe.freeze(self.model, recipe.unfrozen(stage, layers))
                self.loss.wrap()
            last_stage = stage
            started = time.perf_counter()
            rate = self.trial.lr * recipe.factor_of(config, now.step, self.total)
            with profiler.step():
                numbers, step = self._step(epoch, units, rate)
                if pending is not None and self.launches:
                    self._report(*pending)  # the previous step, while the device computes this one
                    pending = None
            seconds = time.perf_counter() - started
            now.step, now.tokens, now.seconds = now.step + 1, now.tokens + step.tokens, now.seconds + seconds
            record = self._record("train", epoch=now.step / self.per_epoch, learning_rate=rate)
            record["tokens_per_second"] = round(step.tokens / max(seconds, 1e-9), 1)
            pending = (record, numbers)
            last = now.step == self.total
            due = setting.evaluate is not None and (now.step % every == 0 or last)
            saving = config.checkpoint_every is not None and now.step % config.checkpoint_every == 0 and not last
            if not self.launches or due or saving or self._stopping(step) is not None or last:
                self._report(*pending)
                pending = None
            if due and not self._evaluate():
                break
            stopping = self.loss.agreed(self.stop.number) if due else self._stopping(step)
            if stopping is not None:
                saved = self.save()
                setting.world.part(setting.world.unique("stopped"))  # or torchrun would end the one that saves
                raise Stopped(stopping, saved)
            if saving:
                self.save(behind=True)
        if setting.evaluate is None:
            self._save_best()
        return now

    def _stopping(self, step: StepShare) -> int | None:
        """Return the signal after which the run stops: that of any process before the step, or of the only one."""
        return self.stop.number if self.setting.world.size == 1 else step.signal

    def _step(self, epoch: int, units: Any, rate: float) -> tuple[HostCopy, StepShare]:
        """Take an optimiser step; return its loss, the parts of that and the norm of its gradient, and the share of it
        that this process has computed."""
        self.model.train()
        setting = self.setting
        keys = order.dropout_keys(units, self.trial.seed, epoch)
        with self.meters.timed("data"):
            step = self.loss.share(setting.rows, units, keys, setting.config.micro_batch, self.stop.number)
        with gpu.out_of_memory(self._cures(step.micro_batch)), self.optimizer.copies():
            losses = until_compiled(lambda: self._backward(step), self.optimizer.zero_grad)
        losses = self.loss.sum(losses)
        recipe.set_rates(self.optimizer, rate)
        norm = self._clip(losses[0])
        if self.optimizer.flat is None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.optimizer.step(clear=True)
        return HostCopy(torch.cat((losses.double(), norm.double()[None]))), step

    def _backward(self, step: StepShare) -> Tensor:
        """Add the gradients of this process's micro-batches of a step, and those of all processes; return the loss of
        the former and the parts of it, fp32 (1 + parts,)."""
        setting = self.setting
        if step.coupled is not None:
            assert self.loss.coupled is not None
            return self.loss.coupled.backward(step.coupled, self.scaler, self.progress.step / self.total)
        total = torch.zeros(1 + len(setting.parts), device=setting.device)
        for number, batch in enumerate(step.batches, start=1):
            batch = batch.pin_memory() if setting.device.type == "cuda" else batch
            with self.loss.accumulating(last=number == len(step.batches)):
                with autocast(setting.device, setting.dtype):
                    losses = self.loss(batch.to(setting.device, non_blocking=True), step)
                self.scaler.scale(losses.total).backward()
            total = total + torch.stack((losses.total, *losses.parts)).detach()
        return total

    def _cures(self, micro_batch: int) -> list[str]:
        """Return the flags with which a step that does not fit into a GPU's memory may fit."""
        saves = [] if self.setting.config.checkpoint_activations else ["--checkpoint-activations"]
        if self.loss.coupled is not None:
            return ["a smaller --pass-tokens", *saves]
        return [*gpu.smaller("--micro-batch", micro_batch), *saves]

    def _clip(self, loss: Tensor) -> Tensor:
        """Clip the gradient's norm; return it as it was. A GPU skips a step whose norm is not finite."""
        max_norm = self.setting.config.max_grad_norm
        if not self.launches:
            try:
                return self.optimizer.clip_gradients(max_norm)
            except GradientError as error:
                self._refuse(self.progress.step + 1, float(loss), f"; {error.where}")
        if self.optimizer.flat is not None:
            return self.optimizer.clip_gradients(max_norm)
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients([p for p in self.model.parameters() if p.grad is not None], max_norm)
        if not self.scaler.is_enabled():  # a scaler sets its own
            self._skip.copy_(norm.isfinite().logical_not())
            self.optimizer.found_inf = self._skip  # type: ignore[attr-defined]
        return norm

    def _refuse(self, step: int, loss: float, where: str = "") -> NoReturn:
        raise TrainingError(
            f"{self.trial}, step {step}: the gradient is not a finite number (loss {loss:g}{where}); {self._lower_rate}"
        )

    @property
    def _lower_rate(self) -> str:
        return f"use an --lr below {self.trial.lr:g} or a longer --warmup"

    def _report(self, record: Record, numbers: HostCopy) -> None:
        """Report a step; when a line of metrics.jsonl is due, write the mean loss since the last one."""
        record["loss"], *parts, norm = map(float, numbers.numbers())
        record.update(zip(self.setting.parts, parts, strict=True))
        every, step = self.setting.config.log_every, record["step"]
        window, part_windows = self.progress.unlogged, self.progress.unlogged_parts
        finite = math.isfinite(record["loss"]) and math.isfinite(norm)
        if not finite and not self.scaler.is_enabled():
            self._refuse(step, record["loss"])
        if math.isfinite(norm):
            self.skipped.updated()
        else:  # the scaler has skipped the step, and lowered the scale
            self.skipped.add(f"{self.trial}, step {step}", self._lower_rate)
            self.progress.skipped = self.skipped.total
        if finite:
            window.append(record["loss"])
            part_windows.append(parts)
        self.setting.reporter.on_step(record, step / self.total)
        if window and (step == 1 or step % every == 0 or step == self.total):
            means = [sum(column) / len(window) for column in zip(*part_windows, strict=True)]
            known = norm if math.isfinite(norm) else None
            costs = self.meters.fields(gradient_norm=known, skipped=self.skipped.total)
            self._log({**record, "loss": sum(window) / len(window), **dict(zip(self.setting.parts, means)), **costs})
            window.clear()
            part_windows.clear()

    def _evaluate(self) -> bool:
        """Score the model, and save it if it is the best so far; return False to stop early."""
        now, setting = self.progress, self.setting
        assert setting.evaluate is not None
        with self.optimizer.copies(), self.meters.timed("validation"):
            scores = setting.evaluate(self.model)
        record = self._record("validation", epoch=now.step / self.per_epoch, scores=scores)
        self._log(record)
        setting.reporter.on_validation(record)
        value = setting.choose(scores)
        if now.best is None or value > now.best:
            now.best, now.best_scores, now.since_best = value, scores, 0
            self._save_best()
            return True
        now.since_best += 1
        patience = setting.config.early_stopping
        return patience is None or now.since_best < patience

    def _log(self, record: Record) -> None:
        """Append a line to metrics.jsonl, in the first process."""
        if self.setting.log is not None:
            self.setting.log.append(record)

    def _record(self, split: str, **values: Any) -> Record:
        now = self.progress
        return {
            "step": now.step,
            "split": split,
            "tokens": now.tokens,
            "seconds": round(now.seconds, 3),
            **vars(self.trial),
            **values,
        }
