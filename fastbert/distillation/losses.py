"""The loss of a student on a task: the training set's labels, its teacher's, and what lies between the layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.distillation.finetuning import soft_regression_loss, soft_target_loss
from fastbert.distillation.layers import LayerLessons
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.models.base import PreTrainedModel
from fastbert.tasks.base import Task
from fastbert.tasks.rows import TaskBatch
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.starting_weights import require_finite


def load_teacher(task: Task[Any], folder: Path, tokenizer: WordPieceTokenizer) -> PreTrainedModel:
    """A model of the same task, labels and vocabulary, in eval mode. Raises UserError for another one."""
    if not task.can_distill:
        raise UserError(f"--teacher {folder}: serves tasks with classes, spans or numbers, not --task {task.name}")
    teacher = task.head.from_pretrained(folder)
    if teacher.new_weights:
        raise UserError(f"--teacher {folder}: is not trained for {task.name}: it lacks {teacher.new_weights[0]}")
    names = teacher.config.label_names
    if task.labels is not None and names != task.labels:
        known = "no names" if names is None else ", ".join(names[:8])
        raise UserError(
            f"--teacher {folder}: has the labels {known}; the training set has {', '.join(task.labels[:8])}"
        )
    if WordPieceTokenizer.from_pretrained(folder).fingerprint != tokenizer.fingerprint:
        raise UserError(f"--teacher {folder}: has another vocabulary than --model; they must share one")
    if teacher.config.max_position_embeddings < task.settings.max_length:
        raise UserError(
            f"--max-length {task.settings.max_length} is more than the teacher's"
            f" {teacher.config.max_position_embeddings} positions; lower it"
        )
    require_finite(teacher, f"--teacher {folder}")
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    return teacher.float().eval()


class Lesson(nn.Module):
    """What a student is trained on: the labels, the teacher's softer ones, and its layers."""

    def __init__(self, task: Task[Any], student: Any, teacher: Any, config: FinetuneConfig) -> None:
        super().__init__()
        self._teacher = (teacher,)  # no part of what is trained or saved
        self.task, self.config = task, config
        self.layers = LayerLessons(student.config, teacher.config, config.distill)

    def forward(self, student: Any, batch: TaskBatch, items: int) -> Tensor:
        """The loss of a batch: its part of the mean over `items` labels."""
        (teacher,) = self._teacher
        with torch.no_grad():
            given = self.task.forward(teacher, batch, items, output_hidden_states=True)
        own = self.task.forward(student, batch, items, output_hidden_states=True)
        if own.logits.shape[-1] == 1:
            soft = soft_regression_loss(own.logits, given.logits)
        else:
            soft = soft_target_loss(own.logits, given.logits, self.config.temperature)
        states, attention = self.layers(
            student.bert, teacher.bert, own.hidden_states, given.hidden_states, batch.inputs
        )
        weight = self.config.soft_weight
        labels = own.loss * (1 - weight) + soft * (weight * self.task.items(batch) / items)
        loss: Tensor = labels + states * batch.token_share + attention * batch.pair_share
        return loss
