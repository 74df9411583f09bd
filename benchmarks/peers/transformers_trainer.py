"""transformers' Trainer on exported micro-batches: the loss of every step, in one process or several.

    python -m fastbert.benchmarks.peers.transformers_trainer settings.json

Optimiser, parameter groups, clipping and loop are the Trainer's. With one process and whole batches the loss is
transformers' own too. Otherwise its BERT takes means per micro-batch and process, whatever their number of predictions;
the loss is then the sum over these divided by the number of predictions of the step, which the Trainer counts.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from torch.nn import functional

from fastbert.benchmarks.training.exported_batches import read_batches
from fastbert.io.atomic_write import write_json_atomic


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run of the Trainer, as JSON stores it."""

    folder: str
    """The model's initial weights."""
    head: str
    """The model's class in transformers."""
    batches: str
    """The file of micro-batches: those of process 0, 1, ..., then the next ones of process 0, and so on."""
    losses: str
    """The file to write: the losses of all steps, and seconds per step of the second half."""
    scratch: str
    steps: int
    accumulation: int
    """Micro-batches of a process per step."""
    sequences: int
    """Per step, over all processes."""
    lr: float
    warmup: float
    """As a fraction of the steps."""
    midpoints: bool
    """Take the learning rate from the middle of a step, as pre-training does, not from its beginning."""
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    max_grad_norm: float
    threads: int

    def write(self, path: Path) -> Path:
        """Write the settings as JSON; return the path."""
        write_json_atomic(path, asdict(self))
        return path


class ExactTrainer(transformers.Trainer):
    """transformers' Trainer, which reads micro-batches in their order and keeps the losses before they are rounded."""

    settings: Settings
    kept: list[Tensor]
    """The loss of each micro-batch, as a part of its step's."""

    def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Return a linear warm-up and decay; at the middles of steps by a formula of our own."""
        if not self.settings.midpoints:
            return super().create_scheduler(num_training_steps, optimizer)
        warmup = self.settings.warmup

        def factor(step: int) -> float:
            progress = (step + 0.5) / num_training_steps
            return min(progress / warmup, (1 - progress) / (1 - warmup))

        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler: torch.optim.lr_scheduler.LambdaLR = torch.optim.lr_scheduler.LambdaLR(chosen, factor)
        return self.lr_scheduler

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None, **options: Any
    ) -> Any:
        """Return the loss of a micro-batch: the model's own if it is the whole step."""
        if self.args.world_size == 1 and self.settings.accumulation == 1:
            loss: Any = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch, **options)
            self.kept.append(loss.detach())
            return loss
        labels = inputs.pop("labels")
        pairs = inputs.pop("next_sentence_label", None)
        outputs = model(**inputs)
        logits = outputs.logits if pairs is None else outputs.prediction_logits
        loss = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum") / num_items_in_batch
        if pairs is not None:
            sums = functional.cross_entropy(outputs.seq_relationship_logits, pairs, reduction="sum")
            loss = loss + sums / self.settings.sequences
        self.kept.append(loss.detach())
        return loss * self.args.world_size  # DDP averages gradients over processes

    def losses(self) -> list[float]:
        """Return the loss of each step, over all processes."""
        losses = torch.stack(self.kept).double().view(-1, self.settings.accumulation).sum(1)
        if self.args.world_size > 1:
            dist.all_reduce(losses)
        return list(map(float, losses))


class Clock(transformers.TrainerCallback):
    """Notes the time of each step's end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.times.append(time.perf_counter())


def train(settings: Settings) -> list[float]:
    """Train; write and return the loss of each step."""
    torch.set_num_threads(settings.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    undropped = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), 0.0)
    model, loading = getattr(transformers, settings.head).from_pretrained(
        settings.folder, dtype=torch.float32, output_loading_info=True, **undropped
    )
    if loading["missing_keys"]:
        raise ValueError(f"{settings.folder}: has no {', '.join(sorted(loading['missing_keys']))}")
    arguments = transformers.TrainingArguments(
        output_dir=settings.scratch,
        per_device_train_batch_size=1,  # one exported micro-batch
        gradient_accumulation_steps=settings.accumulation,
        max_steps=settings.steps,
        learning_rate=settings.lr,
        warmup_steps=math.ceil(settings.steps * settings.warmup),
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=settings.eps,
        max_grad_norm=settings.max_grad_norm,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if "WORLD_SIZE" in os.environ else None,
        remove_unused_columns=False,
    )
    clock = Clock()
    batches = read_batches(Path(settings.batches))
    trainer = ExactTrainer(
        model, arguments, data_collator=lambda items: items[0], train_dataset=batches, callbacks=[clock]
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.settings, trainer.kept = settings, []
    trainer.train()
    losses = trainer.losses()
    half = len(clock.times) // 2
    seconds = (clock.times[-1] - clock.times[half - 1]) / (len(clock.times) - half)
    if trainer.is_world_process_zero():
        write_json_atomic(Path(settings.losses), {"losses": losses, "seconds_per_step": seconds})
    return losses


if __name__ == "__main__":
    train(Settings(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
