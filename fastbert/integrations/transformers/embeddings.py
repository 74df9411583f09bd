"""Compute the embeddings of an encoder of transformers for packed tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert import ops
from fastbert.errors import UserError
from fastbert.integrations.module_checks import (
    CAPTURING,
    dropout_probability,
    has_hooks_inside,
    is_library_module,
    is_plain_norm,
    norm_eps,
)
from fastbert.integrations.transformers.spec_layer import plain_norm
from fastbert.models.architecture import TransformersLayout
from fastbert.models.fusibility import PLAIN_TENSORS, has_hooks, project
from fastbert.models.padded import is_readable
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.op import dropout
from fastbert.packing import PackedBatch


def are_fusible(embeddings: nn.Module | None, tables: Iterable[nn.Module], layout: TransformersLayout) -> bool:
    """Return whether embeddings are nothing but the sum of their tables, projected, norm and dropout, as far as the
    layout has them."""
    if embeddings is None:
        return all(_is_plain_table(table) for table in tables)
    if not is_library_module(embeddings, layout.module) or has_hooks_inside(embeddings):
        return False
    norm = getattr(embeddings, layout.embedding_norm)
    if dropout_probability(getattr(embeddings, layout.embedding_dropout)) is None:
        return False
    return norm_eps(norm, layout.module) is not None and all(_is_plain_table(table) for table in tables)


def embed_tokens(
    batch: PackedBatch,
    embeddings: Any,
    tables: Mapping[str, Any],
    layout: TransformersLayout,
    token_dropout: TokenDropout | None,
) -> Tensor:
    """Return dropout(norm(projection(sum of the tables' rows))) of packed tokens, (tokens, width)."""
    ids = [getattr(batch, name) for name in tables]
    _check_positions(batch.position_ids, tables)
    if embeddings is None:
        return _sum_of_rows(ids, tables)
    norm = getattr(embeddings, layout.embedding_norm)
    projection = None if layout.embedding_projection is None else getattr(embeddings, layout.embedding_projection)
    if projection is None and is_plain_norm(norm):
        weights = [_without_padding(table) for table in tables.values()]
        return ops.embedding_layer_norm(ids, weights, norm.weight, norm.bias, norm.eps, token_dropout)
    total = _sum_of_rows(ids, tables)
    total = total if projection is None else project(projection, total)
    return dropout(plain_norm(norm, total, layout.module), token_dropout)


def _check_positions(ids: Tensor, tables: Mapping[str, Any]) -> None:
    """Raise `UserError` for a text that is longer than a table of positions, where that needs no host-device sync."""
    if "position_ids" not in tables or not is_readable(ids) or not ids.numel():
        return
    rows, highest = len(tables["position_ids"].weight), int(ids.max())
    if highest >= rows:
        raise UserError(f"position_ids holds {highest}, outside the model's table of {rows} rows: truncate the text")


def _sum_of_rows(ids: list[Tensor], tables: Mapping[str, Any]) -> Tensor:
    """Return the sum of the rows of tables (tokens, width)."""
    rows = [
        F.embedding(index, table.weight, table.padding_idx) for index, table in zip(ids, tables.values(), strict=True)
    ]
    return sum(rows[1:], rows[0])


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
