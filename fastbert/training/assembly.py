"""Assemble a prepared pre-training run in memory: its model with its first weights, its data, and the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastbert.config import BertConfig
from fastbert.data.mixing import split_unigrams
from fastbert.data.pretraining import fold_rare
from fastbert.distillation.models import DISTILLATION, student_from
from fastbert.distillation.pretraining import PretrainingDistillationLoss
from fastbert.distributed.world import World
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.elmo.config import ElmoConfig
from fastbert.training.batches import PretrainingBatches
from fastbert.training.checkpoint import has_checkpoints, weights_fingerprint
from fastbert.training.config import Budget
from fastbert.training.given_data import fingerprint
from fastbert.training.initial_model import load_initial
from fastbert.training.initialisation import initialise_structured
from fastbert.training.loop import Trainer
from fastbert.training.meters import RunMeters
from fastbert.training.objectives import (
    pretraining_model,
    with_dropout,
)
from fastbert.training.preparation import Inputs, batches_of, budget_of, model_of
from fastbert.training.reporter import Reporter
from fastbert.training.run_folder import Run


@dataclass
class Assembled:
    """A run in memory: its trainer, its data, and the frequencies of the words that it predicts."""

    trainer: Trainer
    model: Any
    bert: BertConfig
    batches: PretrainingBatches
    budget: Budget
    counts: NDArray[np.int64]
    """How often each output of the model occurs in the training text, int64 (outputs,)."""
    held_out: NDArray[np.int64]
    """How often in the validation text."""
    new_model: Callable[[], Any]
    """Makes a model like the trained one, with new weights."""

    def outputs(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how often each output of the model occurs, from how often each id does."""
        return _outputs(self.bert, ids)


def _outputs(bert: BertConfig, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    return fold_rare(ids, bert.output_size, bert.unk_token_id) if isinstance(bert, ElmoConfig) else ids


def assemble(
    run: Run,
    inputs: Inputs,
    world: World,
    device: torch.device,
    dtype: torch.dtype,
    reporter: Reporter,
    at_most: int | None = None,
) -> Assembled:
    """Return the trainer of a prepared run, at its first step; the weights of --init are read unless a checkpoint, of
    step `at_most` or earlier if given, will replace them."""
    config, shards, teacher = run.config, inputs.shards[0], inputs.teacher
    bert = model_of(run)
    assert config.objective is not None
    budget = budget_of(config, inputs.phases)
    frequencies = split_unigrams(inputs.phases[0].train, inputs.phases[0].validation)
    counts, held_out = (_outputs(bert, ids) for ids in frequencies)

    def new_model() -> Any:
        assert config.objective is not None
        return pretraining_model(with_dropout(bert, config.dropout), config.objective, config.generator_size)

    model = new_model()
    model.init_weights(seed=config.seed)
    if isinstance(bert, ElmoConfig):
        special = shards.special_ids
        model.set_vocabulary(shards.vocabulary, *(shards.vocabulary[special[mark]] for mark in ("cls", "sep")))
    if config.init == "structured":
        initialise_structured(model, counts, config.seed)
    if config.initial_folder is not None and not has_checkpoints(config.out, at_most):
        load_initial(model, config, inputs.tokenizer, reporter.on_message)
        _bind_initial(run, model, writes=world.is_main)
    distillation: PretrainingDistillationLoss | None = None
    if teacher is not None:
        if config.student_layers is not None:
            model = student_from(teacher, config.student_layers).train()
            model.requires_grad_(True)
        distillation = PretrainingDistillationLoss(model, teacher.to(device), config)
        model.add_module(DISTILLATION, distillation)
    batches = batches_of(config, inputs.phases)
    trainer = Trainer(
        model,
        batches,
        config,
        budget,
        device=device,
        dtype=dtype,
        folder=config.out,
        fingerprint=inputs.tokenizer.fingerprint,
        data_fingerprint=fingerprint(inputs.shards),
        configuration={"run": run.flags, "model": run.model, "teacher": run.teacher, "initial": run.initial},
        reporter=reporter,
        distillation=distillation,
        world=world,
    )
    meters = RunMeters.of_model(
        bert, config.objective, device, dtype, config.generator_size, devices=world.size, tf32=config.tf32
    )
    trainer.measure_with(meters)
    return Assembled(trainer, model, bert, batches, budget, counts, held_out, new_model)


def _bind_initial(run: Run, model: PreTrainedModel, *, writes: bool) -> None:
    """Record the fingerprint of the first weights of a continued model. Raises `UserError` if the run began with
    different ones."""
    fingerprint = weights_fingerprint(model)
    if run.initial not in (None, fingerprint):
        raise UserError(
            f"--init {run.config.init}: has different weights than when the run began; put those back, or start another"
            " run with another --out"
        )
    if run.initial is None:
        run.initial = fingerprint
        if writes:
            run.write()
