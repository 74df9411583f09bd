"""The loss of a student on a task: the training set's labels, its teacher's, and what lies between the layers.

DistilBERT's (Sanh et al. 2019): soft labels and the direction of the last hidden states. TinyBERT's (Jiao et al. 2020):
soft labels, every layer's hidden states through a learned projection, and its attention scores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.distillation import (
    HiddenProjection,
    attention_loss,
    attention_scores,
    hidden_state_loss,
    soft_regression_loss,
    soft_target_loss,
    taught_layers,
)
from fastbert.models.pretrained import PreTrainedModel
from fastbert.tasks.rows import TaskBatch
from fastbert.tasks.task import Answer, Task


def load_teacher(task: Task[Any], folder: Path, vocab_size: int) -> PreTrainedModel:
    """A model of the same task and labels, in eval mode. Raises UserError for another one."""
    if task.name == "seq2seq":
        raise UserError(f"--teacher {folder}: serves tasks with classes, spans or numbers, not --task seq2seq")
    teacher = task.head.from_pretrained(folder)
    if teacher.new_weights:
        raise UserError(f"--teacher {folder}: is not trained for {task.name}: it lacks {teacher.new_weights[0]}")
    names = teacher.config.label_names
    if task.labels is not None and names != task.labels:
        known = "no names" if names is None else ", ".join(names[:8])
        raise UserError(
            f"--teacher {folder}: has the labels {known}; the training set has {', '.join(task.labels[:8])}"
        )
    if teacher.config.vocab_size != vocab_size:
        raise UserError(
            f"--teacher {folder}: has a vocabulary of {teacher.config.vocab_size:,}, the student of {vocab_size:,};"
            " they must share one"
        )
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    return teacher.float().eval()


class Lesson(nn.Module):
    """What a student is trained on beside the labels. A module, since TinyBERT's projection learns with the student."""

    def __init__(self, task: Task[Any], student: Any, teacher: Any, config: FinetuneConfig) -> None:
        super().__init__()
        # The teacher is no part of what is trained or saved.
        self._teacher = (teacher,)
        self.task, self.config = task, config
        own, given = student.config, teacher.config
        self.widths_agree = own.hidden_size == given.hidden_size
        self.layers = taught_layers(given.num_hidden_layers, own.num_hidden_layers)
        self.projection: HiddenProjection | None = None
        if config.distill == "tinybert":
            if own.num_attention_heads != given.num_attention_heads:
                raise UserError(
                    f"--distill tinybert: the student has {own.num_attention_heads} attention heads and the teacher"
                    f" {given.num_attention_heads}; their attention cannot be compared, use --distill distilbert"
                )
            self.projection = HiddenProjection(own.hidden_size, given.hidden_size)
            with torch.no_grad():
                nn.init.eye_(self.projection.dense.weight)

    def forward(self, student: Any, batch: TaskBatch, items: int) -> Tensor:
        """The loss of a batch: its part of the mean over `items` labels."""
        (teacher,) = self._teacher
        with torch.no_grad():
            given = self.task.answer(teacher, batch, items, output_hidden_states=True)
        own = self.task.answer(student, batch, items, output_hidden_states=True)
        weight, share = self.config.soft_weight, self.task.items(batch) / items
        extra = self._soft(own, given) * weight + self._between(student, teacher, own, given, batch)
        loss: Tensor = own.loss * (1 - weight) + extra * share
        return loss

    def _soft(self, own: Answer, given: Answer) -> Tensor:
        if own.logits.shape[-1] == 1:
            return soft_regression_loss(own.logits, given.logits)
        return soft_target_loss(own.logits, given.logits, self.config.temperature)

    def _between(self, student: Any, teacher: Any, own: Answer, given: Answer, batch: TaskBatch) -> Tensor:
        """What is learnt of the layers."""
        if self.projection is None:
            if not self.widths_agree:
                return own.loss.new_zeros(())
            return hidden_state_loss(own.hidden_states[-1], given.hidden_states[-1])
        hidden = self.projection(own.hidden_states, [given.hidden_states[i] for i in self.layers])
        pairs = [(i, self.layers[i + 1] - 1) for i in range(len(self.layers) - 1)]
        scores = [attention_scores(student.bert.encoder.layer[i], own.hidden_states[i], batch.inputs) for i, _ in pairs]
        with torch.no_grad():
            taught = [
                attention_scores(teacher.bert.encoder.layer[j], given.hidden_states[j], batch.inputs) for _, j in pairs
            ]
        count = len(pairs)
        return hidden / (count + 1) + attention_loss(scores, taught) / count
