"""Compute the embeddings of an encoder of transformers for packed tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastbert import ops
from fastbert.integrations.module_checks import (
    CAPTURING,
    dropout_probability,
    has_hooks_inside,
    is_library_module,
    is_plain_norm,
)
from fastbert.models.fusibility import PLAIN_TENSORS, has_hooks
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.packing import PackedBatch


def are_fusible(embeddings: nn.Module, tables: list[nn.Module], home: str) -> bool:
    """Return whether embeddings are nothing but the sum of their tables, LayerNorm and dropout."""
    modules: Any = embeddings
    if (
        not is_library_module(embeddings, home)
        or has_hooks_inside(embeddings)
        or dropout_probability(modules.dropout) is None
    ):
        return False
    return is_plain_norm(modules.LayerNorm) and all(_is_plain_table(table) for table in tables)


def embed_tokens(batch: PackedBatch, embeddings: Any, tables: list[Any], dropout: TokenDropout | None) -> Tensor:
    """Return dropout(LayerNorm(sum of the tables' rows)) of packed tokens, (tokens, width)."""
    ids = (batch.input_ids, batch.position_ids, batch.token_type_ids)[: len(tables)]
    weights = [_without_padding(table) for table in tables]
    norm = embeddings.LayerNorm
    return ops.embedding_layer_norm(ids, weights, norm.weight, norm.bias, norm.eps, dropout)


def position_columns(embeddings: Any, columns: int) -> Tensor | None:
    """Return the embeddings' buffer of position ids, (1, columns); None without one that is long enough."""
    positions = getattr(embeddings, "position_ids", None)
    return positions[:, :columns] if isinstance(positions, Tensor) and positions.shape[-1] >= columns else None


def token_segments(embeddings: Any, positions: Tensor) -> Tensor | None:
    """Return the embeddings' buffer of segment ids at these positions (rows, columns); None without one."""
    segments = getattr(embeddings, "token_type_ids", None)
    if not isinstance(segments, Tensor):
        return None
    return segments.to(positions.device).expand(positions.shape[0], -1).gather(1, positions)


def _is_plain_table(table: Any) -> bool:
    """Return whether an embedding is nothing but the rows of its weight; a padding row is allowed."""
    written = type(table) is nn.Embedding and "forward" not in table.__dict__ and not has_hooks(table, CAPTURING)
    if not written or type(table._parameters.get("weight")) not in PLAIN_TENSORS:
        return False
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def _without_padding(table: nn.Embedding) -> Tensor:
    """Return a table's weight, whose padding row has no gradient, as in `nn.Embedding`."""
    weight = table.weight
    if table.padding_idx is None or not torch.is_grad_enabled() or not weight.requires_grad:
        return weight
    return _KeepRow.apply(weight, table.padding_idx)


class _KeepRow(torch.autograd.Function):
    """The identity of a table, without a gradient for one of its rows."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: int) -> Tensor:
        ctx.row = row
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].clone()
        grad[ctx.row] = 0
        return grad, None
