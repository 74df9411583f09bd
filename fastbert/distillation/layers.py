"""Layer-wise distillation for fine-tuning and pre-training: the recipes of DistilBERT and TinyBERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.distillation.losses import HiddenProjection, attention_loss, attention_scores, hidden_state_loss
from fastbert.distillation.models import target_states
from fastbert.errors import UserError
from fastbert.packing import PackedBatch

Recipe = Literal["distilbert", "tinybert"]


class LayerLoss(nn.Module):
    """DistilBERT: the cosine loss of the last hidden states where both models have the same width, else nothing.
    TinyBERT: all hidden states through a learned projection, and attention scores; means over layers.

    A module, since the projection is trained with the student. Raises `UserError` for unequal numbers of heads.
    """

    def __init__(self, student: BertConfig, teacher: BertConfig, recipe: Recipe) -> None:
        super().__init__()
        self.same_width = student.hidden_size == teacher.hidden_size
        self.target_states = target_states(teacher.num_hidden_layers, student.num_hidden_layers)
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
