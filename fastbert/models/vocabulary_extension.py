"""Extend a model for new entries of its tokenizer: new rows start as the mean of the pieces of the word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fastbert.checkpoints.manifest import update_manifest
from fastbert.io.atomic_write import write_json_atomic
from fastbert.models.base import PreTrainedModel
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.prediction import PredictionHead
from fastbert.models.heads.pretraining import MaskedLanguageModel
from fastbert.tokenizers.extension import Extension
from fastbert.tokenizers.fit import check_tokenizer


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
    """Return the tensors with one row per entry: the token embedding, and the bias of a head that predicts tokens."""
    tables = [model.get_input_embeddings().weight.detach()]
    if isinstance(model, MaskedLanguageModel):
        head: Any = model.cls.predictions
    elif isinstance(model, ForCausalLM) and isinstance(model.head, PredictionHead):
        head = model.head
    else:
        return tables
    if not head.tied:
        tables.append(head.decoder.weight.detach())
    return tables if head.bias is None else [*tables, head.bias.detach()]


def check_sizes(rows: int, entries: int, model: str) -> None:
    """Raise UserError if the sizes show that a model was not trained with the tokenizer."""
    check_tokenizer(range(entries), rows, model)


def save_like(model: PreTrainedModel, source: Path, out: Path) -> None:
    """Save a model that was loaded from `source` and extended.

    Other fields of its config.json, such as the names of labels and the class, are copied.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config = {"architectures": [type(model).__name__], **config, "vocab_size": model.config.vocab_size}
    model.save_pretrained(out)
    write_json_atomic(out / "config.json", config)
    update_manifest(out, ["config.json"])
