"""Distillation losses: soft targets, hidden states and attention scores.

DistilBERT (Sanh et al. 2019) uses soft targets and the direction of the last hidden states. TinyBERT (Jiao et al. 2020)
uses hidden states through a learned projection, and attention scores before the softmax. `LayerLoss` is either recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.distillation.models import target_states
from fastbert.errors import UserError
from fastbert.models.fusibility import project
from fastbert.models.modules import Layer
from fastbert.models.pre_norm import PreNormLayer
from fastbert.packing import PackedBatch

Recipe = Literal["distilbert", "tinybert"]


def soft_target_loss(student: Tensor, teacher: Tensor, temperature: float = 2.0, rows: int | None = None) -> Tensor:
    """Compute T^2 KL(softmax(teacher / T) || softmax(student / T)): the mean over rows, or their sum divided by `rows`.

    Logits are (rows, classes) of any dtype, the loss is an fp32 scalar. The teacher gets no gradient. T^2 keeps
    gradients as large as those of hard labels at any temperature (Hinton et al. 2015). Raises `UserError` for unequal
    shapes and for T <= 0.
    """
    _check_shapes(student, teacher, "logits")
    if not temperature > 0:
        raise UserError(f"temperature={temperature!r} must be above 0")
    target = F.log_softmax(teacher.detach().float() / temperature, dim=-1)
    prediction = F.log_softmax(student.float() / temperature, dim=-1)
    total = F.kl_div(prediction, target, reduction="sum", log_target=True) * temperature**2
    return total / max(student[..., 0].numel() if rows is None else rows, 1)


def soft_binary_loss(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Compute the `soft_target_loss` of the two outcomes of each logit, by a sigmoid: the mean over logits, fp32.

    Logits are those of several classes at once, (rows, classes) of any dtype.
    """
    _check_shapes(student, teacher, "logits")
    return soft_target_loss(_two_classes(student), _two_classes(teacher), temperature)


def _two_classes(logits: Tensor) -> Tensor:
    """Return logits whose softmax over two classes has the sigmoid of each logit first: (logits, 2)."""
    x = logits.flatten()
    return torch.stack((x, torch.zeros_like(x)), dim=-1)


def soft_regression_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute the mean squared error of regression outputs, fp32: the counterpart of soft targets."""
    return _squared_error(student, teacher, "outputs")


def hidden_state_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Compute DistilBERT's hidden-state loss, fp32: the mean over tokens of 1 - cosine, for two (tokens, width)."""
    _check_shapes(student, teacher, "hidden states")
    if not student.shape[0]:
        return student.float().sum()
    return (1 - F.cosine_similarity(student.float(), teacher.detach().float(), dim=-1)).mean()


class HiddenProjection(nn.Module):
    """TinyBERT's hidden-state loss: mean squared error after a learned projection to the teacher's width, which all
    layers share."""

    def __init__(self, student_width: int, teacher_width: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(student_width, teacher_width, bias=False)

    def forward(self, student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
        """Return the sum of the losses of all layers, fp32: (tokens, student_width) against (tokens, teacher_width)."""
        _check_layers(student, teacher)
        projected = [self.dense(state.to(self.dense.weight.dtype)) for state in student]
        return torch.stack([_squared_error(x, y, "hidden states") for x, y in zip(projected, teacher)]).sum()


def attention_loss(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> Tensor:
    """Compute TinyBERT's attention loss: the mean squared error of scores, fp32, summed over layers.

    Each tensor is (heads, pairs), as `attention_scores` returns it: the scores of all pairs of tokens of the same
    sequence. TinyBERT sets padding to 0 in both; packed sequences have no padding.
    """
    _check_layers(student, teacher)
    what = "attention scores (heads, pairs)"
    return torch.stack([_squared_error(x, y, what) for x, y in zip(student, teacher)]).sum()


def attention_scores(layer: Layer | PreNormLayer, x: Tensor, batch: PackedBatch) -> Tensor:
    """Compute q k / sqrt(d) of an encoder layer with the input x (tokens, hidden_size): fp32 (heads, pairs), the
    flattened (length, length) scores of each sequence in turn. Differentiable.

    The scores are computed a second time here: the attention kernels never store them. Raises `UserError` for layers
    whose scores depend on positions.
    """
    attention, heads = layer.attention.self, layer.spec.self_attention.heads
    spec = layer.spec.self_attention
    if spec.position != "none" or spec.window is not None or spec.scale is not None or spec.key_value_heads is not None:
        raise UserError("attention of layers with windows, positions of their own or grouped heads is not distilled")
    if isinstance(layer, PreNormLayer) and layer.attention.LayerNorm is not None:
        x = layer.attention.LayerNorm(x)
    q, k = (project(linear, x).unflatten(-1, (heads, -1)).float() for linear in (attention.query, attention.key))
    scores = [
        (torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]) / q.shape[-1] ** 0.5).flatten(1)
        for start, end in pairwise(batch.cu_seqlens.tolist())
    ]
    return torch.cat(scores, dim=1) if scores else q.new_empty(heads, 0)


def _squared_error(student: Tensor, teacher: Tensor, what: str) -> Tensor:
    """Return the mean squared error, fp32, without a gradient for the teacher."""
    _check_shapes(student, teacher, what)
    return F.mse_loss(student.float(), teacher.detach().float())


def _check_layers(student: Sequence[Tensor], teacher: Sequence[Tensor]) -> None:
    if len(student) != len(teacher) or not student:
        raise UserError(f"{len(student)} layers of the student are compared with {len(teacher)} of the teacher")


def _check_shapes(student: Tensor, teacher: Tensor, what: str) -> None:
    if student.shape != teacher.shape:
        raise UserError(
            f"{what} of student and teacher must have one shape, not {tuple(student.shape)} and {tuple(teacher.shape)}"
        )


class LayerLoss(nn.Module):
    """DistilBERT: the cosine loss of the last hidden states where both models have the same width, else nothing.
    TinyBERT: all hidden states through a learned projection, and attention scores; means over layers.

    A module, since the projection is trained with the student. Raises `UserError` for unequal numbers of heads.
    """

    def __init__(self, student: BertConfig, teacher: BertConfig, recipe: Recipe) -> None:
        super().__init__()
        self.same_width: bool = student.hidden_size == teacher.hidden_size
        self.target_states: list[int] = target_states(teacher.num_hidden_layers, student.num_hidden_layers)
        self.projection: HiddenProjection | None = None
        if recipe == "tinybert":
            if student.num_attention_heads != teacher.num_attention_heads:
                raise UserError(
                    f"--distill tinybert: the student has {student.num_attention_heads} attention heads and the teacher"
                    f" {teacher.num_attention_heads}; their attention cannot be compared, use --distill distilbert"
                )
            self.projection = HiddenProjection(student.hidden_size, teacher.hidden_size)
            with torch.no_grad():
                nn.init.eye_(self.projection.dense.weight)

    def forward(
        self, student: Any, teacher: Any, states: Sequence[Tensor], targets: Sequence[Tensor], batch: PackedBatch
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of hidden states (a mean over tokens) and of attention (a mean over pairs of tokens), fp32
        scalars.

        `student` and `teacher` are encoders (`BertModel`); `states` and `targets` are their hidden states, (tokens,
        width), from the embeddings to the last layer.
        """
        zero = states[-1].new_zeros((), dtype=torch.float32)
        if self.projection is None:
            return (hidden_state_loss(states[-1], targets[-1]) if self.same_width else zero), zero
        hidden = self.projection(states, [targets[index] for index in self.target_states])
        teacher_layers = [index - 1 for index in self.target_states[1:]]
        scores = [
            attention_scores(layer, x, batch) for layer, x in zip(student.encoder.layer, states[:-1], strict=True)
        ]
        with torch.no_grad():
            target_scores = [
                attention_scores(teacher.encoder.layer[index], targets[index], batch) for index in teacher_layers
            ]
        return hidden / (len(scores) + 1), attention_loss(scores, target_scores) / len(scores)
