"""What a student learns of its teacher's layers: DistilBERT's and TinyBERT's recipes, for tasks and pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.distillation.finetuning import (
    HiddenProjection,
    attention_loss,
    attention_scores,
    hidden_state_loss,
    taught_layers,
)
from fastbert.errors import UserError
from fastbert.packing import PackedBatch

Recipe = Literal["distilbert", "tinybert"]


class LayerLessons(nn.Module):
    """DistilBERT's: the direction of the last hidden states, where both models are equally wide, else nothing.
    TinyBERT's: every layer's hidden states through a learned projection, and attention scores; means over layers.

    A module, since the projection learns with the student. Raises `UserError` for attention that cannot be compared.
    """

    def __init__(self, student: BertConfig, teacher: BertConfig, recipe: Recipe) -> None:
        super().__init__()
        self.widths_agree = student.hidden_size == teacher.hidden_size
        self.layers = taught_layers(teacher.num_hidden_layers, student.num_hidden_layers)
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
        self, student: Any, teacher: Any, own: Sequence[Tensor], given: Sequence[Tensor], batch: PackedBatch
    ) -> tuple[Tensor, Tensor]:
        """The losses, fp32 scalars, of hidden states `own` and `given`, (tokens, width) before and behind each layer of
        the encoders (`BertModel`), a mean over tokens; and of their attention, a mean over pairs of tokens."""
        nothing = own[-1].new_zeros((), dtype=torch.float32)
        if self.projection is None:
            return (hidden_state_loss(own[-1], given[-1]) if self.widths_agree else nothing), nothing
        hidden = self.projection(own, [given[i] for i in self.layers])
        pairs = [(i, self.layers[i + 1] - 1) for i in range(len(self.layers) - 1)]
        scores = [attention_scores(student.encoder.layer[i], own[i], batch) for i, _ in pairs]
        with torch.no_grad():
            taught = [attention_scores(teacher.encoder.layer[j], given[j], batch) for _, j in pairs]
        return hidden / (len(pairs) + 1), attention_loss(scores, taught) / len(pairs)
