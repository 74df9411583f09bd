"""Embeddings of an encoder of transformers, of packed tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fastbert import ops
from fastbert.integrations.module_checks import dropped, has_hooks, is_own, is_plain_norm, is_touched
from fastbert.models.fusibility import PLAIN_TENSORS
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.packing import PackedBatch


def are_plain(embeddings: nn.Module, tables: list[nn.Module], home: str) -> bool:
    """Whether embeddings are nothing but the sum of their tables, LayerNorm and dropout."""
    parts: Any = embeddings
    if not is_own(embeddings, home) or is_touched(embeddings) or dropped(parts.dropout) is None:
        return False
    return is_plain_norm(parts.LayerNorm) and all(_is_plain_table(table) for table in tables)


def embedded(batch: PackedBatch, embeddings: Any, tables: list[Any], dropout: TokenDropout | None) -> Tensor:
    """Sum of the tables' rows, LayerNorm and dropout: (tokens, width)."""
    ids = (batch.input_ids, batch.position_ids, batch.token_type_ids)[: len(tables)]
    weights = [_without_padding(table) for table in tables]
    norm = embeddings.LayerNorm
    return ops.embedding_layer_norm(ids, weights, norm.weight, norm.bias, norm.eps, dropout)


def columns_of(embeddings: Any, columns: int) -> Tensor | None:
    """The position ids (1, columns) that the embeddings keep for inputs without any."""
    positions = getattr(embeddings, "position_ids", None)
    return positions[:, :columns] if isinstance(positions, Tensor) and positions.shape[-1] >= columns else None


def segments_of(embeddings: Any, positions: Tensor) -> Tensor | None:
    """The segment ids that the embeddings keep for tokens at these positions (rows, columns)."""
    segments = getattr(embeddings, "token_type_ids", None)
    if not isinstance(segments, Tensor):
        return None
    return segments.to(positions.device).expand(positions.shape[0], -1).gather(1, positions)


def _is_plain_table(table: Any) -> bool:
    kind = type(table) is nn.Embedding and "forward" not in table.__dict__ and not has_hooks(table)
    if not kind or type(table._parameters.get("weight")) not in PLAIN_TENSORS:
        return False
    return table.max_norm is None and not table.sparse and not table.scale_grad_by_freq


def _without_padding(table: nn.Embedding) -> Tensor:
    """A table whose padding row gets no gradient, as `nn.Embedding` has it."""
    weight = table.weight
    if table.padding_idx is None or not torch.is_grad_enabled() or not weight.requires_grad:
        return weight
    return _KeepRow.apply(weight, table.padding_idx)


class _KeepRow(torch.autograd.Function):
    """A table as it is, one of whose rows stays out of the gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, row: int) -> Tensor:
        ctx.row = row
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad = grads[0].clone()
        grad[ctx.row] = 0
        return grad, None
