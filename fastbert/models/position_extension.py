"""Extend the position table of a pre-trained model, to train it further on longer sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel, resized

Method = Literal["repeat", "interpolate"]


def with_positions(config: BertConfig, positions: int, source: str = "the model") -> BertConfig:
    """Return a config with positions for sequences of `positions` tokens; the rows that RoBERTa's family reserves in
    front are kept.

    Raises `UserError` for an architecture without a position table.
    """
    if "max_position_embeddings" in config.constants:
        raise UserError(f"{source}: model_type={config.model_type!r} has no table of positions")
    return replace(
        config, max_position_embeddings=config.max_position_embeddings + positions - config.max_sequence_length
    )


def with_more_positions(config: BertConfig, positions: int, source: str = "the model") -> BertConfig:
    """Return what `with_positions` does; raises `UserError` for fewer positions than the config has, too."""
    if positions < config.max_sequence_length:
        raise UserError(
            f"{source} has positions for {config.max_sequence_length} tokens, more than {positions}; a table of"
            " positions can only be extended"
        )
    return with_positions(config, positions, source)


@torch.no_grad()
def extend_positions(model: PreTrainedModel, positions: int, method: Method = "repeat") -> None:
    """Extend a model's learned positions in place, for sequences of up to `positions` tokens.

    `"repeat"` continues the table with copies of itself, as Longformer does (Beltagy et al. 2020, section 5): the rows
    of neighbouring tokens differ as before, except where a copy begins. `"interpolate"` stretches the table linearly
    over all positions, in fp32: the first and the last row stay, and neighbours become more alike. Rows that RoBERTa's
    family reserves for padding are kept. The parameter is replaced, so make the optimizer afterwards.

    Raises `UserError` for fewer positions than the model has, and for a model without a position table.
    """
    config = with_more_positions(model.config, positions)
    embedding = model.base_model.embeddings.position_embeddings
    if embedding is None:  # positions that are computed go on by themselves
        _set_config(model, config)
        return
    reserved = model.config.max_position_embeddings - model.config.max_sequence_length
    table = embedding.weight.detach()[reserved:]
    rows = repeated(table, positions) if method == "repeat" else interpolated(table, positions)
    embedding.weight = resized(embedding.weight, reserved, rows)
    embedding.num_embeddings = reserved + positions
    _set_config(model, config)


def _set_config(model: PreTrainedModel, config: BertConfig) -> None:
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.config = config


def repeated(table: Tensor, rows: int) -> Tensor:
    """Return `rows` rows of a table (positions, width), which begins again after its last row."""
    return table[torch.arange(rows, device=table.device) % len(table)]


def interpolated(table: Tensor, rows: int) -> Tensor:
    """Return a table (positions, width) stretched linearly to `rows` rows; the first and the last row stay."""
    stretched = F.interpolate(table.float().T[None], size=rows, mode="linear", align_corners=True)
    return stretched[0].T.to(table.dtype)
