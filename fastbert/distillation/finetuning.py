"""The loss of a student on a task: labels, the teacher's soft targets, and its layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastbert.distillation import losses, models
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.models.base import PreTrainedModel
from fastbert.tasks.base import Task
from fastbert.tasks.rows import TaskBatch
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fastbert.distillation.losses import LayerLoss


def load_teacher(task: Task[Any], folder: Path, tokenizer: Tokenizer) -> PreTrainedModel:
    """Load a teacher for a task. Raises `UserError` where its task, labels, vocabulary or length do not fit."""
    if not task.can_distill:
        raise UserError(f"--teacher {folder}: supports tasks with classes, spans or numbers, not --task {task.name}")
    teacher = task.load_head(folder)
    if teacher.new_weights:
        raise UserError(f"--teacher {folder}: is not trained for {task.name}: it lacks {teacher.new_weights[0]}")
    names = teacher.config.label_names
    if task.labels is not None and names != task.labels:
        known = "no names" if names is None else ", ".join(names[:8])
        raise UserError(
            f"--teacher {folder}: has the labels {known}; the training set has {', '.join(task.labels[:8])}"
        )
    if load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
        raise UserError(f"--teacher {folder}: has a different vocabulary than --model; they must share one")
    if teacher.config.max_sequence_length < task.settings.max_length:
        raise UserError(
            f"--max-length {task.settings.max_length} is more than the teacher's"
            f" {teacher.config.max_sequence_length} positions; lower it"
        )
    return models.frozen_teacher(teacher, folder)


class DistillationLoss(nn.Module):
    """The loss that a student is trained on: labels, soft targets and layers."""

    def __init__(self, task: Task[Any], student: Any, teacher: Any, config: FinetuneConfig) -> None:
        super().__init__()
        self._teacher = (teacher,)  # in a tuple: neither trained nor saved with the student
        self.task = task
        self.config = config
        self.layer_loss: LayerLoss = losses.LayerLoss(student.config, teacher.config, config.distill)

    def forward(self, student: Any, batch: TaskBatch, items: float) -> Tensor:
        """Return a batch's share of the mean loss over `items` labels, an fp32 scalar."""
        (teacher,) = self._teacher
        with torch.no_grad():
            target = self.task.forward(teacher, batch, items, output_hidden_states=True)
        output = self.task.forward(student, batch, items, output_hidden_states=True)
        if student.config.problem_type == "multi_label_classification":
            soft = losses.soft_binary_loss(output.logits, target.logits, self.config.temperature)
        elif output.logits.shape[-1] == 1:
            soft = losses.soft_regression_loss(output.logits, target.logits)
        else:
            soft = losses.soft_target_loss(output.logits, target.logits, self.config.temperature)
        states, attention = self.layer_loss(
            student.base_model, teacher.base_model, output.hidden_states, target.hidden_states, batch.inputs
        )
        weight = self.config.soft_weight
        labels = output.loss * (1 - weight) + soft * (weight * self.task.items(batch) / items)
        loss: Tensor = labels + states * batch.token_share + attention * batch.pair_share
        return loss
