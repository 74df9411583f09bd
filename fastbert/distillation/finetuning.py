"""What a small model learns from a large one: its soft targets, its hidden states, its attention.

DistilBERT (Sanh et al. 2019) takes the soft targets and the direction of the last hidden states, and begins as every
second layer of its teacher. TinyBERT (Jiao et al. 2020) takes hidden states through a learned projection, and attention
scores before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.bert.model import BertModel, Layer
from fastbert.models.fusibility import project
from fastbert.packing import PackedBatch

Model = TypeVar("Model", bound=PreTrainedModel)


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float = 2.0, rows: int | None = None) -> Tensor:
    """T^2 KL(softmax(teacher / T) || softmax(student / T)), fp32: the mean over rows, or their sum divided by `rows`.

    Logits (rows, classes) of any dtype; the teacher's get no gradient. T^2 keeps gradients as large as those of hard
    labels whatever the temperature (Hinton et al. 2015). Raises `UserError` for other shapes and for T <= 0.
    """
    _check_alike(student, teacher, "logits")
    if not temperature > 0:
        raise UserError(f"temperature={temperature!r} must be above 0")
    given = F.log_softmax(teacher.detach().float() / temperature, dim=-1)
    own = F.log_softmax(student.float() / temperature, dim=-1)
    total = F.kl_div(own, given, reduction="sum", log_target=True) * temperature**2
    return total / max(student[..., 0].numel() if rows is None else rows, 1)


def soft_regression_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared difference of outputs that are no classes: what takes the place of soft targets in regression."""
    _check_alike(student, teacher, "outputs")
    return F.mse_loss(student.float(), teacher.detach().float())


def hidden_state_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - cosine of each token's hidden states, their mean, fp32: DistilBERT's, for (tokens, width) of one width."""
    _check_alike(student, teacher, "hidden states")
    if not student.shape[0]:
        return student.float().sum()
    return (1 - F.cosine_similarity(student.float(), teacher.detach().float(), dim=-1)).mean()


class HiddenProjection(nn.Module):
    """TinyBERT's loss of hidden states: mean squared difference of the teacher's and the student's, which a learned
    matrix, one for all layers, brings to the teacher's width."""

    def __init__(self, student_width: int, teacher_width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(student_width, teacher_width, bias=False)

    def forward(self, student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        """Layers (tokens, student_width) beside layers (tokens, teacher_width) -> the sum of their losses, fp32."""
        if len(student) != len(teacher) or not student:
            raise UserError(f"{len(student)} layers of the student stand beside {len(teacher)} of the teacher")
        losses = []
        for own, given in zip(student, teacher, strict=True):
            projected = self.dense(own.to(self.dense.weight.dtype)).float()
            _check_alike(projected, given, "hidden states")
            losses.append(F.mse_loss(projected, given.detach().float()))
        return torch.stack(losses).sum()


def attention_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """TinyBERT's loss of attention: mean squared difference of scores, fp32, summed over layers.

    Each is (heads, pairs), the scores q k / sqrt(d) of all pairs of tokens of the same sequence, as `attention_scores`
    gives them. TinyBERT sets padding to 0 in both; packed sequences have none, so here nothing is counted for it.
    """
    if len(student) != len(teacher) or not student:
        raise UserError(f"{len(student)} layers of the student stand beside {len(teacher)} of the teacher")
    losses = []
    for own, given in zip(student, teacher, strict=True):
        _check_alike(own, given, "attention scores (heads, pairs)")
        losses.append(F.mse_loss(own.float(), given.detach().float()))
    return torch.stack(losses).sum()


def attention_scores(layer: Layer, x: Tensor, batch: PackedBatch) -> Tensor:
    """q k / sqrt(d) of an encoder layer whose input is x (tokens, hidden_size): fp32 (heads, pairs), sequence by
    sequence, each (length, length) laid flat. Differentiable.

    Scores are computed a second time for this: the kernels never hold them.
    """
    own = layer.attention.self
    q, k = (project(part, x).unflatten(-1, (layer.heads, -1)).float() for part in (own.query, own.key))
    ends = batch.cu_seqlens.tolist()
    found = []
    for first, end in pairwise(ends):
        one = torch.einsum("qhd,khd->hqk", q[first:end], k[first:end]) / q.shape[-1] ** 0.5
        found.append(one.flatten(1))
    return torch.cat(found, dim=1) if found else q.new_empty(layer.heads, 0)


def layers_of_student(teacher_layers: int, student_layers: int) -> list[int]:
    """Which of the teacher's layers, from 0, each of the student's begins as or stands beside: evenly spread, the first
    among them. Every second one where there are half as many, as in DistilBERT."""
    if not 1 <= student_layers <= teacher_layers:
        raise UserError(f"layers={student_layers} must be from 1 to the teacher's {teacher_layers}")
    return [index * teacher_layers // student_layers for index in range(student_layers)]


def taught_layers(teacher_layers: int, student_layers: int) -> list[int]:
    """The hidden state of the teacher, 0 being the embeddings, that each of the student's is compared with, embeddings
    included: TinyBERT's uniform map, whose last is the last."""
    layers_of_student(teacher_layers, student_layers)
    return [index * teacher_layers // student_layers for index in range(student_layers + 1)]


def student_from(teacher: Model, layers: int = 3) -> Model:
    """A model of the same class with `layers` of the teacher's layers, evenly spread, and copies of its embeddings,
    pooler and head: DistilBERT's beginning. The teacher stays as it is."""
    encoder = teacher if isinstance(teacher, BertModel) else getattr(teacher, "bert", None)
    if not isinstance(encoder, BertModel):
        raise UserError(f"{type(teacher).__name__} has no BERT encoder to take layers from")
    kept = layers_of_student(len(encoder.encoder.layer), layers)
    student = deepcopy(teacher)
    own = student if isinstance(student, BertModel) else student.bert
    assert isinstance(own, BertModel)
    own.encoder.layer = nn.ModuleList(own.encoder.layer[index] for index in kept)
    for index, layer in enumerate(own.encoder.layer):
        layer.index = index  # type: ignore[assignment]  # counts the layer's dropout
    for module in student.modules():
        if isinstance(module, PreTrainedModel):
            module.config = replace(module.config, num_hidden_layers=layers)
    student.tie_weights()
    return student


def _check_alike(student: Tensor, teacher: Tensor, what: str) -> None:
    if student.shape != teacher.shape:
        raise UserError(
            f"{what} of student and teacher must have one shape, not {tuple(student.shape)} and {tuple(teacher.shape)}"
        )
