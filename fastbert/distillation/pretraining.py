"""Pre-training with a teacher: its softened predictions at masked positions, and its layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fastbert.distillation import losses, models
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.models.heads.pretraining import ForPreTraining
from fastbert.models.outputs import MaskedLMOutput, PreTrainingOutput
from fastbert.packing import PackedBatch
from fastbert.tokenizers.loading import load_tokenizer
from fastbert.tokenizers.tokenizer import Tokenizer
from fastbert.training.batches import micro_batch_loss
from fastbert.training.config import PretrainConfig

if TYPE_CHECKING:
    from fastbert.distillation.losses import LayerLoss


def load_teacher(folder: Path, tokenizer: Tokenizer) -> ForPreTraining:
    """Load a pre-trained teacher. Raises `UserError` for a different vocabulary and for a model without an MLM head."""
    if load_tokenizer(folder).fingerprint != tokenizer.fingerprint:
        raise UserError(f"--teacher {folder}: has a different vocabulary than the run; give --tokenizer {folder}")
    teacher = BertForPreTraining.from_pretrained(folder)
    missing = [name for name in teacher.new_weights if name.startswith("cls.predictions")]
    if missing:
        raise UserError(f"--teacher {folder}: has no masked-LM head: it lacks {missing[0]}")
    return models.frozen_teacher(teacher, folder)


class PretrainingDistillationLoss(nn.Module):
    """The loss of a micro-batch with a teacher."""

    def __init__(self, student: ForPreTraining, teacher: ForPreTraining, config: PretrainConfig) -> None:
        super().__init__()
        self._teacher = (teacher,)  # in a tuple: neither trained nor saved with the student
        self.temperature: float = config.temperature
        self.soft_weight: float = config.soft_weight
        self.layer_loss: LayerLoss = losses.LayerLoss(student.config, teacher.config, config.distill)

    def forward(
        self,
        student: Any,
        batch: PackedBatch,
        per_prediction: float,
        per_sequence: float,
        shares: tuple[float, float] = (1.0, 1.0),
    ) -> tuple[Tensor, PreTrainingOutput]:
        """Return the micro-batch's part of its step's loss (`micro_batch_loss`), and the student's output.

        `shares` are the micro-batch's shares of the step's tokens, and of its pairs of tokens that attend to each
        other.
        """
        (teacher,) = self._teacher
        with torch.no_grad():
            target = teacher(batch, return_logits=True, output_hidden_states=True)
        output = student(batch, return_logits=True, output_hidden_states=True)
        logits: Any = output.logits if isinstance(output, MaskedLMOutput) else output.prediction_logits
        soft = losses.soft_target_loss(logits, target.prediction_logits, self.temperature, rows=1)
        states, attention = self.layer_loss(
            student.base_model, teacher.base_model, output.hidden_states, target.hidden_states, batch
        )
        hard = micro_batch_loss(output, per_prediction, per_sequence)
        predictions = hard * (1 - self.soft_weight) + soft * (self.soft_weight * per_prediction)
        return predictions + states * shares[0] + attention * shares[1], output
