"""The model that a trial begins with: pre-trained weights, and a head of the task's own drawn from the trial's seed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastbert.checkpoints.key_mapping import match
from fastbert.checkpoints.source import Weights, config_folder, find_weights
from fastbert.config import BertConfig
from fastbert.distillation.finetuning import DistillationLoss
from fastbert.distillation.models import student_from
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.fit import Objective
from fastbert.finetuning.recipe import start_anew, top_layers
from fastbert.models import loading
from fastbert.models.base import PreTrainedModel
from fastbert.models.seq2seq.config import SequenceConfig
from fastbert.tasks.base import Task
from fastbert.training.starting_weights import require_finite

DISTILLATION = "distillation"  # in the student, so that the projection is trained and stored in checkpoints


def model_config(task: Task[Any], place: Path, config: FinetuneConfig) -> BertConfig:
    """The pre-trained config with what the task and the flags change. Raises UserError for what does not fit."""
    bert = _pretrained(task, place)
    if task.settings.max_length > bert.max_position_embeddings:
        raise UserError(
            f"--max-length {task.settings.max_length} is more than the {bert.max_position_embeddings} positions of"
            f" {place}; lower it"
        )
    if config.reinit_layers > bert.num_hidden_layers:
        raise UserError(f"--reinit-layers {config.reinit_layers}: {place} has {bert.num_hidden_layers} layers")
    if config.student_layers is not None and (config.student_layers > bert.num_hidden_layers or task.name == "seq2seq"):
        why = "seq2seq has no students" if task.name == "seq2seq" else f"{place} has {bert.num_hidden_layers} layers"
        raise UserError(f"--student-layers {config.student_layers}: {why}")
    if config.dropout is not None:
        drop = config.dropout
        bert = replace(bert, hidden_dropout_prob=drop, attention_probs_dropout_prob=drop, classifier_dropout=drop)
    return task.head_config(bert)


def _pretrained(task: Task[Any], place: Path) -> BertConfig:
    """The config of the model's folder: BERT's, or that of a model that already writes, to go on training it."""
    if task.name != "seq2seq":
        return BertConfig.from_pretrained(config_folder(place))
    return SequenceConfig.of_writer(config_folder(place)) or BertConfig.from_pretrained(config_folder(place))


def begin(task: Task[Any], place: Path, config: FinetuneConfig, seed: int) -> PreTrainedModel:
    """The task's model in fp32: the encoder of `place`, and the head of `place` if it has the same labels (or writes
    text, which has none); else a new one, drawn from `seed` alone; with `student_layers` it has so many of the
    encoder's layers."""
    bert = model_config(task, place, config)
    model = loading.outline(task.head, bert)
    weights = find_weights(place)
    if task.name != "seq2seq":
        _leave_other_heads(model, weights, bert, place)
    loading.load(model, weights, torch.float32, warn=False)
    start_anew(model, model.new_weights, bert.initializer_range, seed)
    require_finite(model, place)
    if config.reinit_layers:
        start_anew(model, top_layers(model, config.reinit_layers), bert.initializer_range, seed)
    return model if config.student_layers is None else student_from(model, config.student_layers)


def _leave_other_heads(model: PreTrainedModel, weights: Weights, bert: BertConfig, place: Path) -> None:
    """Take the head for other classes out of the weights: it is of no use, whatever its shape."""
    other = BertConfig.from_pretrained(config_folder(place)).label_names
    own = loading.model_shapes(model)
    for name, stored in match(weights.tensors, own, model.base_model_prefix, weights.path).items():
        is_head = name in own and not name.startswith(f"{model.base_model_prefix}.")
        if is_head and (weights.tensors[stored].shape != own[name] or other != bert.label_names):
            del weights.tensors[stored]


@dataclass(frozen=True)
class Beginning:
    """A model, its loss, and how it is written to a folder as it is; `loaded` returns the model that such a folder
    would give with weights in a dtype, to score that one."""

    model: PreTrainedModel
    objective: Objective
    save: Callable[[Path], None]
    loaded: Callable[[torch.dtype], PreTrainedModel]


def begin_trial(
    task: Task[Any], place: Path, config: FinetuneConfig, seed: int, teacher: PreTrainedModel | None
) -> Beginning:
    """What a trial trains: all of the model, or adapters on it; on labels alone, or with a teacher."""
    model = begin(task, place, config, seed)
    if config.lora is not None:
        from fastbert.finetuning.adapters import add_lora, merge, save_adapter

        torch.manual_seed(seed)  # peft draws from the global generator
        adapted = add_lora(model, rank=config.lora, alpha=2 * config.lora)

        def save_adapters(folder: Path) -> None:
            save_adapter(adapted, folder, base=config.model)

        def merged(dtype: torch.dtype) -> PreTrainedModel:
            # On the CPU, where `finished` merges.
            return merge(copy.deepcopy(adapted).to("cpu")).to(device=model.device, dtype=dtype)

        return Beginning(model, task.loss, save_adapters, merged)
    if teacher is None:
        return Beginning(model, task.loss, model.save_pretrained, lambda dtype: in_dtype(model, dtype))
    distillation = DistillationLoss(task, model, teacher, config)
    model.add_module(DISTILLATION, distillation)

    @contextlib.contextmanager
    def without_distillation() -> Iterator[None]:
        del model._modules[DISTILLATION]
        try:
            yield
        finally:
            model.add_module(DISTILLATION, distillation)

    def save(folder: Path) -> None:
        with without_distillation():
            model.save_pretrained(folder)

    def student(dtype: torch.dtype) -> PreTrainedModel:
        with without_distillation():
            return in_dtype(model, dtype)

    return Beginning(model, distillation, save, student)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of a model with weights in `dtype`, or the model itself where it has that one."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.dtype == dtype for tensor in tensors if tensor.is_floating_point()):
        return model
    memo: dict[int, Any] = {
        id(one): nn.Parameter(one.detach().to(dtype), requires_grad=False) for one in model.parameters()
    }
    return copy.deepcopy(model, memo).to(dtype)


def finished(task: Task[Any], place: Path, config: FinetuneConfig, seed: int, folder: Path) -> PreTrainedModel:
    """The model that `Beginning.save` wrote, adapters merged into its weights."""
    if config.lora is None:
        return task.head.from_pretrained(folder)
    from fastbert.finetuning.adapters import load_adapter, merge

    return merge(load_adapter(begin(task, place, config, seed), folder))
