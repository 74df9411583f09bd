"""The auxiliary language-model loss of models that read left to right: L3 = L2 + weight * L1 (Radford et al. 2018,
section 3.2).

L2 is the task's loss, L1 the mean cross-entropy of the next token over all tokens of an optimiser step that follow
another one, special tokens included, as in the authors' code. Both are computed from one forward pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastbert.checkpoints.source import config_folder
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.finetuning.config import FinetuneConfig
from fastbert.finetuning.losses import Losses
from fastbert.models import loading, registry
from fastbert.models.base import PreTrainedModel, match_weights
from fastbert.models.heads.causal import ForCausalLM, shifted_labels
from fastbert.models.heads.prediction import VocabularyHead
from fastbert.models.key_map import is_encoder_weight
from fastbert.tasks.base import Task
from fastbert.tasks.rows import TaskBatch
from fastbert.training.checkpoint import require_finite

PART = "language_model"  # the loss as a part of the model: its head is trained and stored in checkpoints
LOGGED = "lm_loss"
"""The name of L1 in metrics.jsonl."""
DEFAULT_WEIGHT = 0.5
SEQUENCE_HEADS = ("ForSequenceClassification", "ForMultipleChoice")
_WITHOUT = ("frozen", "lora", "teacher")  # flags with which the loss has no weights to train, or no place


def resolved_weight(config: FinetuneConfig, task: Task[Any], source: Path | BertConfig, model: BertConfig) -> float:
    """Return the weight of the loss: that of --lm-weight, else 0.5 for a model that reads left to right and has its
    language model's head, in tasks over sequences, and 0 for all others.

    Raises `UserError` where --lm-weight does not fit the model.
    """
    usable = not any(getattr(config, name) for name in _WITHOUT) and isinstance(source, Path) and task.head_name != ""
    if config.lm_weight is None:
        default = usable and model.is_decoder and task.head_name in SEQUENCE_HEADS
        return DEFAULT_WEIGHT if default and _lacks(source, model) is None else 0.0
    if not config.lm_weight:
        return 0.0
    flag = f"--lm-weight {config.lm_weight:g}"
    if not model.is_decoder:
        raise UserError(
            f"{flag}: {config.model} reads in both directions, so it sees the token that it should predict; leave the"
            " flag out, or use a model that reads left to right (pretrain --objective ltr)"
        )
    missing = _lacks(source, model)
    if missing is not None:
        raise UserError(
            f"{flag}: {config.model} has no language-model head, it lacks {missing}; leave the flag out, or use the"
            " folder that pre-training wrote"
        )
    return config.lm_weight


def _lacks(source: Path | BertConfig, config: BertConfig) -> str | None:
    """Return a weight of the language model's head that the files of a model lack; None if they have all. A head that
    is the token embedding lacks none."""
    record = registry.architecture_of(config)
    if isinstance(source, BertConfig) or ForCausalLM not in record.heads:
        return "the head"
    kind = record.model_class(ForCausalLM)
    missing, _ = match_weights(record.from_file(loading.find_weights(source, verify=False)), config, [kind])
    return next((name for name in missing[kind] if not is_encoder_weight(name)), None)


class LanguageModelLoss(nn.Module):
    """The loss of a task and of a language model, as a part of the model that it trains."""

    def __init__(self, task: Task[Any], model: PreTrainedModel, source: Path, weight: float) -> None:
        """Read the language model's head from `source`; its decoder is the model's token embedding."""
        super().__init__()
        self.task = task
        self.weight = weight
        causal: Any = registry.load_with_head(config_folder(source), "ForCausalLM", dtype=torch.float32)
        require_finite(causal, source)
        self.head: VocabularyHead = causal.head
        self.head.tie(model.get_input_embeddings().weight)
        tied = [f"{PART}.head.decoder.{name}" for name, _ in self.head.decoder.named_parameters()]
        model.tied_keys = (*model.tied_keys, *tied)

    def forward(self, model: Any, batch: TaskBatch, items: float) -> Losses:
        """Return a batch's share of L3, an fp32 scalar, and of L1."""
        output = self.task.forward(model, batch, items, output_hidden_states=True)
        labels = shifted_labels(batch.inputs.input_ids, batch.inputs)
        loss = self.head.loss(output.hidden_states[-1], labels)
        mean = loss.loss_sum / loss.count.clamp(min=1) * batch.next_token_share
        return Losses(output.loss + self.weight * mean, (mean,))
