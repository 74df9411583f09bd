"""The training of one trial: batches in the order of its seed, schedule, evaluations, the best model, a clean stop."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.finetuning import order, recipe
from fastbert.finetuning.config import FinetuneConfig, Trial
from fastbert.finetuning.log import Log, Record, Reporter
from fastbert.tasks.predicting import autocast
from fastbert.tasks.rows import Rows, TaskBatch, share_out
from fastbert.training import checkpoint
from fastbert.training.optimizer import GradientError, clip_gradients
from fastbert.training.stopping import Stopped, StopRequest

Scores = dict[str, dict[str, float]]
Objective = Callable[[Any, TaskBatch, int], Tensor]
"""The loss of a batch, as `Task.loss` defines it; distillation has its own."""


@dataclass
class Progress:
    """Where a trial is; what a checkpoint holds beside the tensors."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    best_scores: Scores | None = None
    since_best: int = 0
    """Evaluations in a row that were not better."""
    unlogged: list[float] = field(default_factory=list)
    """Losses since the last line of metrics.jsonl."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all trials of a run share."""

    config: FinetuneConfig
    rows: Rows
    objective: Objective
    items: Callable[[TaskBatch], int]
    """The labels of a batch."""
    save: Callable[[Path], None]
    """Writes the model as it is to a folder."""
    evaluate: Callable[[Any], Scores] | None
    """Scores of a model by file; None where there is nothing to evaluate on."""
    choose: Callable[[Scores], float]
    """What of the scores decides; higher is better."""
    folder: Path
    device: torch.device
    dtype: torch.dtype
    log: Log
    reporter: Reporter


BEST = "best-"


def best_folder(folder: Path, step: int) -> Path:
    """Where a trial keeps its best model, that of a step."""
    return folder / f"{BEST}{step:08d}"


class Fit:
    """One trial in memory: model, optimiser, and how far it has come. The best model so far lies in `best_folder`; the
    one that a checkpoint names stays as long as the checkpoint, since a run that continues there may find another."""

    def __init__(self, model: Any, trial: Trial, setting: Setting, stop: StopRequest) -> None:
        self.model, self.trial, self.setting, self.stop = model.to(setting.device), trial, setting, stop
        config = setting.config
        self.per_epoch, self.total = order.steps_of(
            setting.rows.units, trial.batch_size, trial.epochs, config.max_steps
        )
        if config.frozen:
            recipe.freeze(model, [model.config.num_hidden_layers + 1])
        self.optimizer = recipe.optimizer(model, config, trial.lr)
        self.scaler = torch.amp.GradScaler(setting.device.type, enabled=setting.dtype == torch.float16)
        self.progress = Progress()
        self.named = 0  # the best step of the last checkpoint
        if config.checkpoint_activations:
            model.checkpoint_activations("layer")

    def _keep_best(self, *steps: int) -> None:
        """Remove the best models of other steps than these."""
        kept = {best_folder(self.setting.folder, step) for step in steps}
        for other in self.setting.folder.glob(f"{BEST}*"):
            if other not in kept:
                shutil.rmtree(other)

    def _save_best(self) -> None:
        """Write the model as the best of this trial."""
        setting, step = self.setting, self.progress.step
        self.progress.best_step = step
        setting.save(best_folder(setting.folder, step))
        self._keep_best(step, self.named)

    def resume(self) -> None:
        """Continue from the trial's checkpoint, if it has one."""
        last = checkpoint.load_last(self.setting.folder)
        if last is None:
            return
        checkpoint.restore(last, self.model, self.optimizer)
        self.progress = Progress(**last.state["progress"])
        self.named = self.progress.best_step
        self._keep_best(self.named)
        if self.scaler.is_enabled() and last.state["scaler"]:
            self.scaler.load_state_dict(last.state["scaler"])

    def save(self) -> Path:
        """Write a checkpoint of the present step."""
        state = {
            "step": self.progress.step,
            "progress": vars(self.progress),
            "trial": vars(self.trial),
            "scaler": self.scaler.state_dict(),
        }
        saved = checkpoint.save(self.setting.folder, self.model, self.optimizer, state, keep=1)
        self.named = self.progress.best_step
        self._keep_best(self.named)
        return saved

    def run(self) -> Progress:
        """Train to the end, or until early stopping. Raises `Stopped` after a signal, when the state is saved, and
        UserError when a gradient is not finite."""
        config, now, setting = self.setting.config, self.progress, self.setting
        every = config.eval_every or self.per_epoch
        pending: tuple[Record, Tensor] | None = None
        epoch_known = -1
        batches = order.batches(setting.rows.units, self.trial.batch_size, self.trial.seed, now.step, self.total)
        for epoch, units in batches:
            if config.gradual_unfreezing and epoch != epoch_known:
                layers = self.model.config.num_hidden_layers
                recipe.freeze(self.model, recipe.unfrozen(epoch, layers))
            epoch_known = epoch
            started = time.perf_counter()
            rate = self.trial.lr * recipe.factor(config.schedule, config.warmup, now.step, self.total)
            loss, tokens = self._step(epoch, units, rate)
            if pending is not None and setting.device.type != "cpu":
                self._report(*pending)  # of the step before: the device is busy with this one meanwhile
                pending = None
            seconds = time.perf_counter() - started
            now.step, now.tokens, now.seconds = now.step + 1, now.tokens + tokens, now.seconds + seconds
            record = self._record("train", epoch=now.step / self.per_epoch, learning_rate=rate)
            record["tokens_per_second"] = round(tokens / max(seconds, 1e-9), 1)
            pending = (record, loss)
            last = now.step == self.total
            due = setting.evaluate is not None and (now.step % every == 0 or last)
            saving = config.save_every is not None and now.step % config.save_every == 0 and not last
            if setting.device.type == "cpu" or due or saving or self.stop.number is not None or last:
                self._report(*pending)
                pending = None
            if due and not self._evaluate():
                break
            if self.stop.number is not None:
                raise Stopped(self.stop.number, self.save())
            if saving:
                self.save()
        if setting.evaluate is None:
            self._save_best()
        return now

    def _step(self, epoch: int, units: Any, rate: float) -> tuple[Tensor, int]:
        """One optimiser step; returns its loss, a scalar, and the tokens it saw."""
        self.model.train()
        setting, rows = self.setting, self.setting.rows
        size = setting.config.micro_batch or len(units)
        keys = order.dropout_keys(units, self.trial.seed, epoch)
        parts = [rows.batch(units[i : i + size], keys[i : i + size]) for i in range(0, len(units), size)]
        parts = share_out(parts)
        items = sum(setting.items(part) for part in parts)
        total: Any = 0.0
        for part in parts:
            with autocast(setting.device, setting.dtype):
                loss = setting.objective(self.model, part.to(setting.device), max(items, 1))
            self.scaler.scale(loss).backward()
            total = total + loss.detach()
        recipe.set_rates(self.optimizer, rate)
        self._clip(total)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return total, sum(part.inputs.num_tokens for part in parts)

    def _clip(self, loss: Tensor) -> None:
        """Keep the norm of the gradient in bounds."""
        most = self.setting.config.max_grad_norm
        if self.setting.device.type == "cpu":
            try:
                self.optimizer.clip_gradients(most)
            except GradientError as error:
                self._refuse(float(loss), f"; {error.where}")
            return
        self.scaler.unscale_(self.optimizer)
        clip_gradients([p for p in self.model.parameters() if p.grad is not None], most)

    def _refuse(self, loss: float, where: str = "") -> NoReturn:
        raise UserError(
            f"{self.trial}, step {self.progress.step + 1}: the gradient is not a finite number (loss {loss:g}{where});"
            f" use an --lr below {self.trial.lr:g} or a longer --warmup"
        )

    def _report(self, record: Record, loss: Tensor) -> None:
        """Tell the step's loss, and now and then write a line: the mean since the last one."""
        record["loss"] = float(loss)
        if not math.isfinite(record["loss"]) and not self.scaler.is_enabled():
            self._refuse(record["loss"])
        window = self.progress.unlogged
        window.append(record["loss"])
        every, step = self.setting.config.log_every, record["step"]
        self.setting.reporter.on_step(record, step / self.total)
        if step == 1 or step % every == 0 or step == self.total:
            self.setting.log.append({**record, "loss": sum(window) / len(window)})
            window.clear()

    def _evaluate(self) -> bool:
        """Score the model, keep it if it is the best yet; returns whether to go on."""
        now, setting = self.progress, self.setting
        assert setting.evaluate is not None
        scores = setting.evaluate(self.model)
        record = self._record("validation", epoch=now.step / self.per_epoch, scores=scores)
        setting.log.append(record)
        setting.reporter.on_evaluation(record)
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
