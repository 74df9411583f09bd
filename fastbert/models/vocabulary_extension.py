"""Extend a model for new entries of its tokenizer: new rows start as the mean of the pieces of the word."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from torch import Tensor

from fastbert.checkpoints.manifest import update_manifest
from fastbert.checkpoints.source import find_weights
from fastbert.config import BertConfig
from fastbert.io.atomic_write import write_json_atomic
from fastbert.io.untrusted_input import read_json_file
from fastbert.models.base import PreTrainedModel, match_weights
from fastbert.models.bert.model import BertModel
from fastbert.models.heads.pretraining import BertForMaskedLM, BertForPreTraining
from fastbert.models.heads.sequence import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
)
from fastbert.models.heads.tokens import BertForQuestionAnswering, BertForTokenClassification
from fastbert.tokenizers.extension import Extension
from fastbert.tokenizers.fit import check_tokenizer

logger = logging.getLogger("fastbert")

# Of classes that fit a checkpoint equally well, and are not named in its config.json, the first is used.
CLASSES: tuple[type[PreTrainedModel], ...] = (
    BertModel,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForTokenClassification,
    BertForSequenceClassification,
    BertForQuestionAnswering,
    BertForMultipleChoice,
)


def extend_embeddings(model: PreTrainedModel, extension: Extension) -> None:
    """Resize a model's token embedding for the entries of `extend_vocabulary`, and initialise the new rows.

    A new entry's embedding, and its bias where the model predicts tokens, is the mean (in fp32) of those of the pieces
    that the word split into before; also if it replaces an `[unusedN]`. All other rows keep their values.
    Rows that pad the table are used up before it grows.

    Raises:
        UserError: the model's vocabulary is of another size than the tokenizer that was extended.
    """
    check_sizes(model.config.vocab_size, extension.base_size, "the model")
    if not extension.entries:
        return
    means = [
        torch.stack([table[list(entry.pieces)].float().mean(0) for entry in extension.entries])
        for table in _tables(model)
    ]
    model.resize_token_embeddings(max(model.config.vocab_size, len(extension.tokenizer)))
    ids = [entry.id for entry in extension.entries]
    for table, rows in zip(_tables(model), means, strict=True):
        table[ids] = rows.to(table.dtype)


def _tables(model: PreTrainedModel) -> list[Tensor]:
    """Return the tensors with one row per entry: the token embedding, and the bias of a masked-LM decoder."""
    tables = [model.get_input_embeddings().weight.detach()]
    if isinstance(model, BertForPreTraining | BertForMaskedLM):
        tables.append(model.cls.predictions.bias.detach())
    return tables


def check_sizes(rows: int, entries: int, model: str) -> None:
    """Raise UserError if the sizes show that a model was not trained with the tokenizer."""
    check_tokenizer(range(entries), rows, model)


def load_whole(folder: Path) -> PreTrainedModel:
    """Load a model folder as the class that uses most of its weights and needs no others."""
    config = BertConfig.from_pretrained(folder)
    named = read_json_file(folder / "config.json").get("architectures") or ()
    missing, unused = match_weights(find_weights(folder), config, CLASSES)
    whole = [kind for kind in CLASSES if not missing[kind]]
    if not whole:
        return BertModel.from_pretrained(folder)
    kind = min(whole, key=lambda kind: (len(unused[kind]), kind.__name__ not in named))
    if unused[kind]:
        logger.warning("%s: not used by %s: %s", folder, kind.__name__, ", ".join(unused[kind]))
    return kind.from_pretrained(folder)


def save_like(model: PreTrainedModel, source: Path, out: Path) -> None:
    """Save a model that was loaded from `source` and extended.

    Other fields of its config.json, such as the names of labels and the class, are copied.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config = {"architectures": [type(model).__name__], **config, "vocab_size": model.config.vocab_size}
    model.save_pretrained(out)
    write_json_atomic(out / "config.json", config)
    update_manifest(out, ["config.json"])
