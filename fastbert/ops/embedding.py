"""The input of the encoder: three embeddings, their sum, LayerNorm and dropout."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops import backend
from fastbert.ops.dropout import TokenDropout, dropout
from fastbert.ops.normalization import layer_norm


def embedding_layer_norm(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-12,
    token_dropout: TokenDropout | None = None,
) -> Tensor:
    """dropout(LayerNorm(token + position + segment embedding)) (Devlin et al. 2019, figure 2).

    ids: token, position and segment ids, int64 (tokens,); tables: their embeddings (rows, width). The sum and the
    statistics are fp32; the result has autocast's dtype where autocast is on, else that of the tables.
    """
    return backend.select("embedding_layer_norm", tables[0].device)(ids, tables, weight, bias, eps, token_dropout)


def _embedding_layer_norm(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    token_dropout: TokenDropout | None,
) -> Tensor:
    device = tables[0].device
    summed = F.embedding(ids[0], tables[0])
    for index, table in zip(ids[1:], tables[1:]):
        summed = summed + F.embedding(index, table)
    normed = layer_norm(summed, weight, bias, eps)
    if torch.is_autocast_enabled(device.type):
        normed = normed.to(torch.get_autocast_dtype(device.type))
    return dropout(normed, token_dropout)


backend.register("embedding_layer_norm", "eager", _embedding_layer_norm)
