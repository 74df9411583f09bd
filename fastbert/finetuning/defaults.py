"""Default hyper-parameters of fine-tuning, from the sizes of the model and of the training set. Imports no torch.

The paper's values (Devlin et al. 2019, appendix A.3: batches of 16 or 32, learning rates 2e-5 to 5e-5, 2 to 4 epochs)
are for encoders of width 768 and 1024, and for thousands of examples of a few classes. Narrower encoders need a higher
learning rate, and small training sets or many classes need more epochs: otherwise the new head has hardly moved when
training ends, and predicts one class for all.
"""

from __future__ import annotations

import math
from dataclasses import replace

from fastbert.finetuning.config import FinetuneConfig
from fastbert.tasks.base import Task
from fastbert.tasks.registry import task_class

WIDTH, LR = 768, 5e-5
HEAD_LR = 10.0  # of a head alone (--frozen), as a multiple of the whole model's
ADAPTER_LR = 4.0  # of LoRA's adapters, likewise
SMALL_SETS = {500: 8, 2_000: 16}  # examples below which batches are smaller
LEAST_EPOCHS, MOST_EPOCHS = 3, 20
NEW_STEPS, MOST_NEW_EPOCHS, NEW_BATCH = 5_000, 100, 64  # of models with new weights
NEW_WARMUP = 4_000  # steps of warm-up of which Vaswani et al. 2017 (section 5.3) derive the peak learning rate
LONG_EPOCH = 2_000  # optimiser steps of an epoch from which two are enough
STEPS_PER_CLASS = 10  # optimiser steps that a set is repeated for, beside those of its task


def learning_rate(hidden_size: int) -> float:
    """Return the peak learning rate for an encoder of this width: the paper's 5e-5 for 768, inversely proportional to
    the width."""
    return float(f"{LR * WIDTH / hidden_size:.1e}")


def batch_size(examples: int, usual: int) -> int:
    """Return the examples per step for a training set of this size: the task's `usual` number, fewer for a set of less
    than 2,000."""
    return min(next((size for limit, size in SMALL_SETS.items() if examples < limit), usual), usual)


def epochs(examples: int, batch: int, classes: int, steps: int) -> int:
    """Return the number of epochs: as many as make the task's `steps`, and 10 more per class; from 3 to 20, or 2 of a
    set with 2,000 steps per epoch."""
    per_epoch = math.ceil(examples / batch)
    least = LEAST_EPOCHS if per_epoch < LONG_EPOCH else LEAST_EPOCHS - 1
    return min(max(math.ceil((steps + STEPS_PER_CLASS * classes) / per_epoch), least), MOST_EPOCHS)


def new_learning_rate(hidden_size: int) -> float:
    """Return the peak learning rate for a model with new weights of this width (Vaswani et al. 2017, section 5.3)."""
    return float(f"{(hidden_size * NEW_WARMUP) ** -0.5:.1e}")


def new_epochs(examples: int, batch: int) -> int:
    """Return the number of epochs for a model with new weights: as many as make 5,000 steps, from 1 to 100."""
    return min(max(math.ceil(NEW_STEPS / math.ceil(examples / batch)), 1), MOST_NEW_EPOCHS)


def with_dropout(config: FinetuneConfig) -> FinetuneConfig:
    """Return the configuration with the task's dropout probability, if the task has one of its own and the flags leave
    it open; the paper's grid has the model's."""
    if config.dropout is not None or config.grid or config.task is None:
        return config
    return replace(config, dropout=task_class(config.task).default_dropout)


def resolved(config: FinetuneConfig, *, examples: int, classes: int, hidden_size: int) -> FinetuneConfig:
    """Return the configuration with the learning rate, its schedule, batch size and epochs that the flags leave
    open."""
    new = config.architecture is not None
    if new and config.schedule is None:
        config = replace(config, schedule="inverse-sqrt")
    if config.grid:
        return config
    task = Task if config.task is None else task_class(config.task)
    usual = min(NEW_BATCH, examples) if new else batch_size(examples, task.default_batch_size)
    lr, batches = config.lr, config.batch_size or (usual,)
    if not lr and new:
        lr = (new_learning_rate(hidden_size),)
    elif not lr:
        factor = HEAD_LR if config.frozen else ADAPTER_LR if config.lora is not None else 1.0
        lr = (float(f"{learning_rate(hidden_size) * factor:.1e}"),)
    lengths = config.epochs
    if not lengths and config.steps is None:
        count = new_epochs(examples, batches[0]) if new else epochs(examples, batches[0], classes, task.default_steps)
        lengths = (float(count),)
    elif not lengths and config.steps is not None:
        # So many that --steps ends the trials of each batch size.
        lengths = (round(config.steps / min(math.ceil(examples / batch) for batch in batches), 6),)
    return replace(config, lr=lr, batch_size=batches, epochs=lengths)
