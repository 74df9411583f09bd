"""Pre-training with a teacher: its predictions at the masked places, softened, and what lies between the layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastbert.distillation.finetuning import soft_target_loss
from fastbert.distillation.layers import LayerLessons
from fastbert.errors import UserError
from fastbert.models.heads import BertForPreTraining
from fastbert.models.outputs import PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.tokenizers import WordPieceTokenizer
from fastbert.training.config import PretrainConfig
from fastbert.training.graphed import loss_of_step
from fastbert.training.starting_weights import require_finite

NAME = "lesson"  # in the student, so that its projection is trained and kept in checkpoints


def load_teacher(folder: Path, tokenizer: WordPieceTokenizer) -> BertForPreTraining:
    """A pre-trained model that knows the run's vocabulary, in eval mode. Raises `UserError` for another one."""
    own = WordPieceTokenizer.from_pretrained(folder)
    if own.fingerprint != tokenizer.fingerprint:
        raise UserError(f"--teacher {folder}: has another vocabulary than the run; give --tokenizer {folder}")
    teacher = BertForPreTraining.from_pretrained(folder)
    lacking = [name for name in teacher.new_weights if name.startswith("cls.predictions")]
    if lacking:
        raise UserError(f"--teacher {folder}: predicts no masked words: it lacks {lacking[0]}")
    require_finite(teacher, f"--teacher {folder}")
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    return teacher.float().eval()


class MaskedLesson(nn.Module):
    """The loss of a micro-batch with a teacher."""

    def __init__(self, student: BertForPreTraining, teacher: BertForPreTraining, config: PretrainConfig) -> None:
        super().__init__()
        self._teacher = (teacher,)  # no part of what is trained or saved
        self.temperature, self.weight = config.temperature, config.soft_weight
        self.layers = LayerLessons(student.config, teacher.config, config.distill)

    def forward(
        self,
        student: Any,
        batch: PackedBatch,
        per_prediction: float,
        per_sequence: float,
        shares: tuple[float, float] = (1.0, 1.0),
    ) -> tuple[Tensor, PreTrainingOutput]:
        """The micro-batch's part of its step's loss, as `loss_of_step` has it, and what the student said. `shares` are
        its shares of the step's tokens, and of the pairs of tokens that see each other."""
        (teacher,) = self._teacher
        with torch.no_grad():
            given = teacher(batch, return_logits=True, output_hidden_states=True)
        own = student(batch, return_logits=True, output_hidden_states=True)
        soft = soft_target_loss(own.prediction_logits, given.prediction_logits, self.temperature, rows=1)
        states, attention = self.layers(student.bert, teacher.bert, own.hidden_states, given.hidden_states, batch)
        hard = loss_of_step(own, per_prediction, per_sequence)
        predicted = hard * (1 - self.weight) + soft * (self.weight * per_prediction)
        return predicted + states * shares[0] + attention * shares[1], own


def shares_of(batches: Sequence[PackedBatch]) -> list[tuple[float, float]]:
    """Each micro-batch's shares of its step's tokens, and of the pairs of tokens that see each other."""
    tokens = [batch.num_tokens for batch in batches]
    pairs = [int(batch.cu_seqlens.diff().long().square().sum()) for batch in batches]
    return [(a / max(sum(tokens), 1), b / max(sum(pairs), 1)) for a, b in zip(tokens, pairs, strict=True)]
