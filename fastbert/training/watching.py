"""The plateau doctor at work: what it knows about a pre-training run, and the hooks through which it watches one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fastbert.config import BertConfig
from fastbert.training import defaults
from fastbert.training.config import UNMASKED, Budget, PretrainConfig
from fastbert.training.initialisation import can_be_structured
from fastbert.training.metrics import Metrics
from fastbert.training.recipes import RECIPES
from fastbert.training.reporter import Record, Reporter
from fastbert.training.watchdogs.plateau import PlateauDoctor, RunFacts

LIKE_ADAM = ("adamw", "stableadamw")
"""The optimisers for which the default learning rate is made."""


def facts_of(
    config: PretrainConfig,
    model: BertConfig,
    budget: Budget,
    *,
    unigram: float,
    usual_lr: float,
    samples_per_epoch: int,
    text: NDArray[np.int64],
    masked: NDArray[np.int64],
    unknown_id: int | None,
) -> RunFacts:
    """Return what can explain a plateau of a run.

    Args:
        config: the run's flags, with what they left open resolved.
        model: the config of the model.
        budget: the length of the run.
        unigram: the cross-entropy of word frequencies on the validation text, in nats.
        usual_lr: the default learning rate.
        samples_per_epoch: training sequences.
        text: int64 (outputs,), how often each output of the model occurs in the training text.
        masked: int64 (outputs,), how often each output is predicted in a validation.
        unknown_id: of the tokenizer's unknown token, None for a model of words, which has rare words there.
    """
    batch = config.batch_size or defaults.LEAST_BATCH
    masks = config.scheduled("mask_schedule")
    mask_prob = config.mask_rate if masks is None else masks.mean
    total, predicted = int(text.sum()), int(masked.sum())
    return RunFacts(
        unigram=unigram,
        batch_size=batch if config.batches.is_constant else None,
        lr=config.lr or usual_lr,
        usual_lr=usual_lr if config.optimizer in LIKE_ADAM else None,
        recipe_lr=_lr_of_recipe(config),
        max_length=config.lengths[0][1],
        steps=budget.steps,
        warmup=config.warmup,
        structured=config.init != "normal",
        can_be_structured=can_be_structured(model),
        mask_prob=None if config.objective in UNMASKED else mask_prob,
        epochs=None if budget.steps is None else budget.steps * batch / max(samples_per_epoch, 1),
        unknown_share=None if unknown_id is None or not total else float(text[unknown_id] / total),
        most_frequent_share=float(text.max() / total) if total else None,
        validation_predictions=predicted or None,
    )


def _lr_of_recipe(config: PretrainConfig) -> float | None:
    """Return the learning rate of the run's recipe, None without one and with another optimiser than the recipe's."""
    values = {} if config.recipe is None else RECIPES[config.recipe].values
    return values["lr"] if values.get("optimizer") == config.optimizer else None


def watched(
    reporter: Reporter,
    facts: RunFacts,
    history: Iterable[Metrics] = (),
    phase: Callable[[int], int] = lambda step: 0,
) -> Reporter:
    """Return hooks that also tell a run that is stuck near word frequencies so, as a message.

    Args:
        reporter: the hooks of the run.
        facts: settings and data of the run.
        history: the lines of metrics.jsonl of an earlier start.
        phase: step -> number of the phase that it belongs to.
    """
    doctor, progress = PlateauDoctor(facts, history), 0.0

    def on_step(record: Record, finished: float) -> None:
        nonlocal progress
        progress = finished
        reporter.on_step(record, finished)

    def on_line(record: Record) -> None:
        reporter.on_line(record)
        line = Metrics(**record)
        diagnosis = doctor.add(line, progress, phase(line.step))
        if diagnosis is not None:
            reporter.on_message(diagnosis.text)

    return replace(reporter, on_step=on_step, on_line=on_line)
