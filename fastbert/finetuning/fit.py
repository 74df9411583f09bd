"""The training of one trial: batches in the order of its seed, schedule, evaluations, best model, and signals.

One file: a trial's state, what it writes to checkpoints, and its loop belong together.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastbert.errors import CheckpointError, UserError
from fastbert.finetuning import order, recipe
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.losses import Losses, Objective
from fastbert.io.atomic_write import sync_tree
from fastbert.io.checksums import sha256
from fastbert.io.log import logger
from fastbert.io.untrusted_input import read_json_file
from fastbert.ops import gpu
from fastbert.ops.kernel_failures import until_compiled
from fastbert.tasks.predicting import autocast
from fastbert.tasks.rows import Rows, TaskBatch, share_out
from fastbert.training import checkpoint
from fastbert.training.device_step import HostCopy
from fastbert.training.meters import RunMeters
from fastbert.training.metrics import MetricsLog
from fastbert.training.optimizer import GradientError, clip_gradients
from fastbert.training.profiling import StepProfiler
from fastbert.training.reporter import Record, Reporter
from fastbert.training.saving import Checkpoints
from fastbert.training.snapshot import snapshot
from fastbert.training.stopping import Stopped, StopRequest

Scores = dict[str, dict[str, float]]


@dataclass
class Progress:
    """The progress of a trial, which checkpoints store beside the tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    best_scores: Scores | None = None
    since_best: int = 0
    """Consecutive evaluations without a better score."""
    unlogged: list[float] = field(default_factory=list)
    """Losses since the last line of metrics.jsonl."""
    unlogged_parts: list[list[float]] = field(default_factory=list)
    """Their parts, in the order of `Setting.parts`, per step."""

    @classmethod
    def of(cls, state: dict[str, Any]) -> Progress:
        """Read the progress from a checkpoint's state. Raises `CheckpointError`."""
        none = type(None)
        values = {
            "step": checkpoint.require(state, "step", int),
            "tokens": checkpoint.require(state, "tokens", int),
            "seconds": checkpoint.require(state, "seconds", float),
            "best": checkpoint.require(state, "best", (float, none)),
            "best_step": checkpoint.require(state, "best_step", int),
            "best_scores": checkpoint.require(state, "best_scores", (dict, none)),
            "since_best": checkpoint.require(state, "since_best", int),
            "unlogged": checkpoint.require(state, "unlogged", list),
            "unlogged_parts": checkpoint.require({"unlogged_parts": [], **state}, "unlogged_parts", list),
        }
        parts = values["unlogged_parts"]
        numbers = [values["unlogged"], *parts]
        if not all(isinstance(row, list) and all(isinstance(loss, float | int) for loss in row) for row in numbers):
            raise CheckpointError("the losses since the last line of metrics.jsonl are not numbers")
        return cls(**values)


@dataclass(frozen=True)
class State:
    """A trial's state in state.json of a checkpoint, with its types checked."""

    trial: Trial
    progress: Progress
    best: dict[str, str]
    """SHA-256 of the files of the best model so far, by their paths in its folder."""
    scaler: dict[str, Any]
    meters: dict[str, Any]

    @classmethod
    def reader(cls, folder: Path) -> Callable[[dict[str, Any]], State]:
        """Return a function that reads a state of the checkpoints in `folder`, and compares the best model that it
        names with its SHA-256. The function raises `CheckpointError`."""

        def read(state: dict[str, Any]) -> State:
            trial = checkpoint.require(state, "trial", dict)
            kinds = {"lr": float, "batch_size": int, "epochs": float, "seed": int}
            trial_state = cls(
                Trial(**{name: checkpoint.require(trial, name, kind) for name, kind in kinds.items()}),
                Progress.of(checkpoint.require(state, "progress", dict)),
                checkpoint.require(state, "best", dict),
                checkpoint.require(state, "scaler", dict),
                checkpoint.require({"meters": {}, **state}, "meters", dict),
            )
            if trial_state.best != _hashes(best_folder(folder, trial_state.progress.best_step)):
                raise CheckpointError(
                    f"the best model that it names, of step {trial_state.progress.best_step:,}, is missing or damaged"
                )
            return trial_state

        return read


def _hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder; nothing for a missing folder."""
    if not folder.is_dir():
        return {}
    return {
        str(path.relative_to(folder)): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The objects that all trials of a run share."""

    config: FinetuneConfig
    rows: Rows
    objective: Objective
    items: Callable[[TaskBatch], float]
    """Counts the labels of a batch, or sums their weights."""
    save: Callable[[Path], object]
    """Writes the current model to a folder."""
    evaluate: Callable[[Any], Scores] | None
    """Returns a model's scores by file; None without evaluation files."""
    choose: Callable[[Scores], float]
    """Returns the score that selects the best model; higher is better."""
    folder: Path
    device: torch.device
    dtype: torch.dtype
    log: MetricsLog
    reporter: Reporter
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The content of config.json, which checkpoints store too."""
    parts: tuple[str, ...] = ()
    """Names in metrics.jsonl of the parts of the objective's `Losses`."""


KEEP = 2
"""Checkpoints of a trial: the previous one is used if the newest is damaged."""
BEST = "best-"


def best_folder(folder: Path, step: int) -> Path:
    """Return the folder of a trial's best model, that of a step."""
    return folder / f"{BEST}{step:08d}"


def _best_step(folder: Path) -> int | None:
    """Return the best step that a checkpoint names; None if its state cannot be read."""
    try:
        return Progress.of(read_json_file(folder / checkpoint.STATE)["progress"]).best_step
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return None


class Fit:
    """A trial in memory: model, optimiser and progress.

    `best_folder` holds the best model so far. The best model that a checkpoint names is kept as long as the checkpoint,
    since a run that is resumed there may select a different one."""

    def __init__(self, model: Any, trial: Trial, setting: Setting, stop: StopRequest) -> None:
        self.model, self.trial, self.setting, self.stop = model.to(setting.device), trial, setting, stop
        config = setting.config
        self.per_epoch, self.total = order.steps_of(setting.rows.units, trial.batch_size, trial.epochs, config.steps)
        if config.frozen:
            recipe.freeze(model, [model.config.num_hidden_layers + 1])
        self.optimizer = recipe.optimizer(model, config, trial.lr)
        self.optimizer.flatten_if_faster(model, setting.device, setting.dtype)
        self.scaler = torch.amp.GradScaler(setting.device.type, enabled=setting.dtype == torch.float16)
        # True on a GPU: a step is launched and reported after the next one; False on a CPU, which computes it at once.
        self.launches = setting.device.type != "cpu"
        self._skip = torch.zeros((), dtype=torch.float32, device=setting.device)
        self.progress, self.meters = Progress(), RunMeters(setting.device)
        self.checkpoints = Checkpoints(setting.folder, KEEP, background=config.async_save)
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
        setting.save(best_folder(setting.folder, step))
        self._keep_best()

    def resume(self) -> None:
        """Continue from the trial's newest whole checkpoint, if there is one."""
        loaded = self.checkpoints.load_last(State.reader(self.setting.folder))
        if loaded is None:
            return
        last, state = loaded
        checkpoint.restore_scaler(self.scaler, state.scaler, last.folder)
        self.meters.restore(state.meters)
        checkpoint.restore(last, self.model, self.optimizer)
        self.progress, self.hashes = state.progress, (state.progress.best_step, state.best)
        self.named = {
            folder.name: step
            for folder in checkpoint.find(self.setting.folder)
            if (step := _best_step(folder)) is not None
        }
        self._keep_best()

    def save(self, *, behind: bool = False) -> Path:
        """Save a checkpoint of the current step, `behind` the next ones if --async-save says so; return its folder."""
        with self.meters.timed("checkpoint"):
            return self._save(behind)

    def _save(self, behind: bool) -> Path:
        setting, step = self.setting, self.progress.best_step
        if step and self.hashes[0] != step:
            best = best_folder(setting.folder, step)
            sync_tree(best)
            self.hashes = (step, _hashes(best))
        state = {
            "step": self.progress.step,
            "progress": vars(self.progress),
            "trial": vars(self.trial),
            "best": self.hashes[1],
            "configuration": dict(setting.configuration),
            "scaler": self.scaler.state_dict(),
            "meters": self.meters.to_state(),
            "torch": torch.__version__,
        }
        save = self.checkpoints.save_async if behind else self.checkpoints.save
        saved = save(snapshot(self.model, self.optimizer), state, [setting.log.sync])
        self.named[saved.name] = step
        self._keep_best()
        return saved

    def run(self) -> Progress:
        """Train to the end, or until early stopping.

        Raises `Stopped` after a signal, with the state saved, and `UserError` for a non-finite gradient.
        """
        setting, left = self.setting, self.total - self.progress.step
        say = setting.reporter.on_message
        with StepProfiler.of(setting.config, setting.config.out, setting.device, say, steps_left=left) as profiler:
            return self._run(profiler)

    def _run(self, profiler: StepProfiler) -> Progress:
        config, now, setting = self.setting.config, self.progress, self.setting
        every = config.eval_every or self.per_epoch
        pending: tuple[Record, HostCopy] | None = None
        last_stage, layers = -1, self.model.config.num_hidden_layers
        batches = order.batches(setting.rows.units, self.trial.batch_size, self.trial.seed, now.step, self.total)
        for epoch, units in batches:
            stage = recipe.stage(now.step, self.per_epoch, self.total, layers)
            if config.gradual_unfreezing and stage != last_stage:
                recipe.freeze(self.model, recipe.unfrozen(stage, layers))
            last_stage = stage
            started = time.perf_counter()
            rate = self.trial.lr * recipe.factor_of(config, now.step, self.total)
            with profiler.step():
                numbers, tokens = self._step(epoch, units, rate)
            if pending is not None and self.launches:
                self._report(*pending)  # the previous step, while the device computes this one
                pending = None
            seconds = time.perf_counter() - started
            now.step, now.tokens, now.seconds = now.step + 1, now.tokens + tokens, now.seconds + seconds
            record = self._record("train", epoch=now.step / self.per_epoch, learning_rate=rate)
            record["tokens_per_second"] = round(tokens / max(seconds, 1e-9), 1)
            pending = (record, numbers)
            last = now.step == self.total
            due = setting.evaluate is not None and (now.step % every == 0 or last)
            saving = config.checkpoint_every is not None and now.step % config.checkpoint_every == 0 and not last
            if not self.launches or due or saving or self.stop.number is not None or last:
                self._report(*pending)
                pending = None
            if due and not self._evaluate():
                break
            if self.stop.number is not None:
                raise Stopped(self.stop.number, self.save())
            if saving:
                self.save(behind=True)
        if setting.evaluate is None:
            self._save_best()
        return now

    def _step(self, epoch: int, units: Any, rate: float) -> tuple[HostCopy, int]:
        """Take an optimiser step; return its loss, the parts of that and the norm of its gradient, and its tokens."""
        self.model.train()
        setting, rows = self.setting, self.setting.rows
        size = setting.config.micro_batch or len(units)
        keys = order.dropout_keys(units, self.trial.seed, epoch)
        with self.meters.timed("data"):
            parts = [rows.batch(units[i : i + size], keys[i : i + size]) for i in range(0, len(units), size)]
            batches = share_out(parts)
        items = sum(setting.items(batch) for batch in batches)
        with gpu.out_of_memory(self._cures(min(size, len(units)))), self.optimizer.copies():
            losses = until_compiled(lambda: self._backward(batches, items), self.optimizer.zero_grad)
        recipe.set_rates(self.optimizer, rate)
        norm = self._clip(losses[0])
        if self.optimizer.flat is None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.optimizer.step(clear=True)
        return HostCopy(torch.cat((losses.double(), norm.double()[None]))), sum(b.inputs.num_tokens for b in batches)

    def _backward(self, batches: Sequence[TaskBatch], items: float) -> Tensor:
        """Add the gradients of a step's micro-batches; return its loss and the parts of it, fp32 (1 + parts,)."""
        setting = self.setting
        total = torch.zeros(1 + len(setting.parts), device=setting.device)
        for batch in batches:
            batch = batch.pin_memory() if setting.device.type == "cuda" else batch
            with autocast(setting.device, setting.dtype):
                result = setting.objective(self.model, batch.to(setting.device, non_blocking=True), items or 1)
            losses = result if isinstance(result, Losses) else Losses(result)
            self.scaler.scale(losses.total).backward()
            total = total + torch.stack((losses.total, *losses.parts)).detach()
        return total

    def _cures(self, micro_batch: int) -> list[str]:
        """Return the flags with which a step that does not fit into a GPU's memory may fit."""
        saves = [] if self.setting.config.checkpoint_activations else ["--checkpoint-activations"]
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
        raise UserError(
            f"{self.trial}, step {step}: the gradient is not a finite number (loss {loss:g}{where});"
            f" use an --lr below {self.trial.lr:g} or a longer --warmup"
        )

    def _report(self, record: Record, numbers: HostCopy) -> None:
        """Report a step; when a line of metrics.jsonl is due, write the mean loss since the last one."""
        record["loss"], *parts, norm = map(float, numbers.numbers())
        record.update(zip(self.setting.parts, parts, strict=True))
        if not (math.isfinite(record["loss"]) and math.isfinite(norm)) and not self.scaler.is_enabled():
            self._refuse(record["step"], record["loss"])
        window, part_windows = self.progress.unlogged, self.progress.unlogged_parts
        window.append(record["loss"])
        part_windows.append(parts)
        every, step = self.setting.config.log_every, record["step"]
        self.setting.reporter.on_step(record, step / self.total)
        if step == 1 or step % every == 0 or step == self.total:
            means = [sum(column) / len(window) for column in zip(*part_windows, strict=True)]
            costs = self.meters.fields(gradient_norm=norm)
            self.setting.log.append(
                {**record, "loss": sum(window) / len(window), **dict(zip(self.setting.parts, means)), **costs}
            )
            window.clear()
            part_windows.clear()

    def _evaluate(self) -> bool:
        """Score the model, and save it if it is the best so far; return False to stop early."""
        now, setting = self.progress, self.setting
        assert setting.evaluate is not None
        with self.optimizer.copies(), self.meters.timed("validation"):
            scores = setting.evaluate(self.model)
        record = self._record("validation", epoch=now.step / self.per_epoch, scores=scores)
        setting.log.append(record)
        setting.reporter.on_validation(record)
        value = setting.choose(scores)
        if now.best is None or value > now.best:
            now.best, now.best_scores, now.since_best = value, scores, 0
            self._save_best()
            return True
        now.since_best += 1
        patience = setting.config.early_stopping
        return patience is None or now.since_best < patience

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
