"""Initial models of trials: pre-trained weights, and a task head initialised from the trial's seed."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastbert.checkpoints.source import config_folder
from fastbert.checkpoints.weights import Weights
from fastbert.config import BertConfig
from fastbert.distillation.finetuning import DistillationLoss
from fastbert.distillation.models import DISTILLATION, student_from
from fastbert.errors import UserError
from fastbert.finetuning import adapters, language_model
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.losses import Objective
from fastbert.finetuning.recipe import reinitialise, top_layers
from fastbert.models import loading, registry
from fastbert.models.base import PreTrainedModel
from fastbert.tasks.base import Task
from fastbert.tasks.coupled import CoupledTask
from fastbert.tasks.rows import Rows
from fastbert.training.checkpoint import require_finite

Source = Path | BertConfig
"""The origin of a model: the folder of a pre-trained one, or the config of one with new weights."""


def model_config(task: Task[Any], source: Source, config: FinetuneConfig) -> BertConfig:
    """Return the source's config with the changes of task and flags. Raises `UserError` where they do not fit."""
    if isinstance(source, BertConfig):
        bert, source = source, Path(str(config.model))
    else:
        bert = task.base_config(source)
    if task.settings.max_length > bert.max_sequence_length:
        raise UserError(
            f"--max-length {task.settings.max_length} is more than the {bert.max_sequence_length} positions of"
            f" {source}; lower it"
        )
    if config.reinit_layers > bert.num_hidden_layers:
        raise UserError(f"--reinit-layers {config.reinit_layers}: {source} has {bert.num_hidden_layers} layers")
    too_many = config.student_layers is not None and config.student_layers > bert.num_hidden_layers
    if config.student_layers is not None and (too_many or not task.can_distill):
        why = f"{source} has {bert.num_hidden_layers} layers" if task.can_distill else f"{task.name} has no students"
        raise UserError(f"--student-layers {config.student_layers}: {why}")
    if config.lora is not None and bert.model_type == "elmo":
        raise UserError("--lora adapts attention, which ELMo does not have, and its encoder stays frozen; leave it out")
    for name, is_set in (("gradual-unfreezing", config.gradual_unfreezing), ("layer-decay", config.layer_decay != 1.0)):
        if is_set and bert.model_type == "elmo":
            raise UserError(f"--{name} is about the encoder's layers, and those of ELMo stay frozen; leave it out")
    if config.bilstm is not None:
        bert = replace(bert, bilstm_size=config.bilstm or bert.hidden_size)
    if config.dropout is not None:
        drop = config.dropout
        names = ["hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"]
        names += [item.name for item in fields(bert) if item.name == "embedding_dropout_prob"]  # GPT's own
        probabilities: dict[str, Any] = dict.fromkeys(names, drop)
        bert = replace(bert, **probabilities)
    return task.head_config(bert)


def begin(task: Task[Any], source: Source, config: FinetuneConfig, seed: int) -> PreTrainedModel:
    """Return the task's model in fp32: the encoder of `source` with its head if labels agree, else with a new head
    initialised from `seed` alone; all of a new model is. With `student_layers` it has that many of the encoder's
    layers."""
    bert = model_config(task, source, config)
    if isinstance(source, BertConfig):
        new = task.head(bert)(bert)
        new.init_weights(seed)
        return new
    model = loading.outline(task.head(bert), bert)
    encoder = task.encoder_folder(source)
    weights = model.architecture.from_file(loading.find_weights(encoder))
    if task.head_has_labels:
        _leave_other_heads(model, weights, bert, encoder)
    loading.load(model, weights, torch.float32, warn=False)
    reinitialise(model, model.new_weights, bert.initializer_range, seed)
    require_finite(model, source)
    if config.reinit_layers:
        reinitialise(model, top_layers(model, config.reinit_layers), bert.initializer_range, seed)
    return model if config.student_layers is None else student_from(model, config.student_layers)


def _leave_other_heads(model: PreTrainedModel, weights: Weights, bert: BertConfig, source: Path) -> None:
    """Remove a head for different labels from the weights; what it shares with the head of masked LM stays."""
    other = registry.read_config(config_folder(source)).label_names
    shapes = loading.model_shapes(model)
    for name, stored in model.match(weights).items():
        is_head = name in shapes and not name.startswith(f"{model.base_model_prefix}.")
        if model.architecture.transforms_tokens and name.split(".")[-2] in ("dense", "LayerNorm"):
            is_head = weights.tensors[stored].shape != shapes.get(name)
        if is_head and (weights.tensors[stored].shape != shapes[name] or other != bert.label_names):
            del weights.tensors[stored]


@dataclass(frozen=True)
class Beginning:
    """A model, its loss with the names of the parts that it reports, and `save`, which writes the model to a folder;
    `loaded` returns the model that such a folder would give with weights in a dtype, for scoring."""

    model: PreTrainedModel
    objective: Objective
    save: Callable[[Path], object]
    loaded: Callable[[torch.dtype], PreTrainedModel]
    parts: tuple[str, ...] = ()


def begin_trial(
    task: Task[Any], source: Source, config: FinetuneConfig, seed: int, teacher: PreTrainedModel | None, rows: Rows
) -> Beginning:
    """Return what a trial trains on `rows`: the whole model or adapters, on labels alone, with a teacher or as a
    language model too."""
    model = begin(task, source, config, seed)
    task.prepare(model, source if isinstance(source, Path) else None, seed)
    task.start_head(model, rows)
    if config.lora is not None:
        torch.manual_seed(seed)  # peft draws from the global generator
        adapted = adapters.add_lora(model, rank=config.lora, alpha=2 * config.lora)

        def merged(dtype: torch.dtype) -> PreTrainedModel:
            # On the CPU, where `finished` merges.
            return adapters.merge(copy.deepcopy(adapted).to("cpu")).to(device=model.device, dtype=dtype)

        adapter_parts = task.parts if isinstance(task, CoupledTask) else ()
        save_adapter = partial(adapters.save_adapter, adapted, base=config.model)
        return Beginning(model, task.loss, save_adapter, merged, adapter_parts)
    objective: nn.Module
    parts: tuple[str, ...] = ()
    if teacher is not None:
        name, objective = DISTILLATION, DistillationLoss(task, model, teacher, config)
    elif config.lm_weight and isinstance(source, Path):
        name, parts = language_model.PART, (language_model.LOGGED,)
        objective = language_model.LanguageModelLoss(task, model, source, config.lm_weight)
    else:
        save_model = partial(task.save_model, model)
        parts = task.parts if isinstance(task, CoupledTask) else ()
        return Beginning(model, task.loss, save_model, lambda dtype: in_dtype(model, dtype), parts)
    model.add_module(name, objective)

    @contextlib.contextmanager
    def without_objective() -> Iterator[None]:
        del model._modules[name]
        try:
            yield
        finally:
            model.add_module(name, objective)

    def save(folder: Path) -> None:
        with without_objective():
            model.save_pretrained(folder)

    def trained(dtype: torch.dtype) -> PreTrainedModel:
        with without_objective():
            return in_dtype(model, dtype)

    return Beginning(model, objective, save, trained, parts)


def in_dtype(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of a model with weights in `dtype`, or the model itself where it has that one."""
    tensors = [*model.parameters(), *model.buffers()]
    if all(tensor.dtype == dtype for tensor in tensors if tensor.is_floating_point()):
        return model
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach().to(dtype), requires_grad=False) for weight in model.parameters()
    }
    return copy.deepcopy(model, memo).to(dtype)


def finished(task: Task[Any], source: Source, config: FinetuneConfig, seed: int, folder: Path) -> PreTrainedModel:
    """Return the model that `Beginning.save` wrote, with adapters merged into its weights."""
    if config.lora is None:
        return task.load_head(folder)
    model = begin(task, source, config, seed)
    task.prepare(model, source if isinstance(source, Path) else None, seed)
    return adapters.merge(adapters.load_adapter(model, folder))
