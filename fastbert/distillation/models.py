"""Students initialised from some of a teacher's layers, and teachers prepared for inference."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import nn

from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.encoder import EncoderModel
from fastbert.training.checkpoint import require_finite

DISTILLATION = "distillation"  # the loss as a part of the student: its projection is trained and stored in checkpoints

Model = TypeVar("Model", bound=PreTrainedModel)


def frozen_teacher(teacher: Model, folder: Path) -> Model:
    """Return a teacher in fp32 and eval mode, without gradients. Raises `UserError` for non-finite weights."""
    require_finite(teacher, f"--teacher {folder}")
    teacher.requires_grad_(False)
    return teacher.float().eval()


def copied_layers(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's layers, counted from 0, that the student's layers are copied from: evenly spread, the first
    included. Every second layer for a student half as deep, as in DistilBERT."""
    if not 1 <= student_layers <= teacher_layers:
        raise UserError(f"layers={student_layers} must be from 1 to the teacher's {teacher_layers}")
    return [index * teacher_layers // student_layers for index in range(student_layers)]


def target_states(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's hidden state that each of the student's is compared with, 0 being the embeddings:
    TinyBERT's uniform map, which ends with the last."""
    return [*copied_layers(teacher_layers, student_layers), teacher_layers]


def student_from(teacher: Model, layers: int = 3) -> Model:
    """Return a model of the teacher's class with `layers` of its layers, evenly spread, and copies of its embeddings,
    pooler and head: DistilBERT's initialisation. The teacher is not changed."""
    encoder = teacher.base_model
    if not isinstance(encoder, EncoderModel):
        raise UserError(f"{type(teacher).__name__} has no encoder to take layers from")
    indices = copied_layers(len(encoder.encoder.layer), layers)
    student = deepcopy(teacher)
    stack = student.base_model.encoder
    stack.layer = nn.ModuleList(stack.layer[index] for index in indices)
    for index, layer in enumerate(stack.layer):
        layer.index = index  # counts the layer's dropout
    for module in student.modules():
        if isinstance(module, PreTrainedModel):
            module.config = replace(module.config, num_hidden_layers=layers)
    student.tie_weights()
    return student
