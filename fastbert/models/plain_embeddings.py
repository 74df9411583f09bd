"""Embeddings whose parameters alone decide what they compute, in one direct call of the CPU's kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert import _C
from fastbert.models.fusibility import is_plain_table, runs_as_written
from fastbert.models.layers import CPU
from fastbert.models.modules import Embeddings
from fastbert.models.norm import is_plain_norm
from fastbert.ops.dispatch import preferred_backend
from fastbert.ops.native import buffers
from fastbert.ops.native.caching_allocator import empty
from fastbert.packing import PackedBatch


def plain_embeddings(embeddings: Any) -> PlainEmbeddings | None:
    """Return the embeddings of a model in evaluation mode; None for others than a token's, its position's and its
    segment's, with a LayerNorm and no projection, and for those with hooks."""
    if not runs_as_written(embeddings, Embeddings) or embeddings.training or embeddings.projection is not None:
        return None
    positions, types, norm = embeddings.position_embeddings, embeddings.token_type_embeddings, embeddings.LayerNorm
    if positions is None or types is None or norm is None or not is_plain_norm(norm):
        return None
    tables = (embeddings.word_embeddings, positions, types)
    if not all(is_plain_table(table) for table in tables) or types.num_embeddings < 2:
        return None
    weights = [table.weight for table in tables]
    if buffers.unsupported(*weights, norm.weight, norm.bias) is not None or len({each.dtype for each in weights}) > 1:
        return None
    return PlainEmbeddings(weights, norm, embeddings.position_offset)


class PlainEmbeddings:
    """Tables of one dtype, and a LayerNorm."""

    def __init__(self, tables: list[Tensor], norm: Any, position_offset: int) -> None:
        self._tables, self._offset = tables, position_offset
        self._weight, self._bias, self._eps = norm.weight, norm.bias, norm.eps
        self._dtype = tables[0].dtype

    def rows(self, batch: PackedBatch) -> Tensor | None:
        """Return the embeddings of a batch (tokens, hidden_size) in the dtype of the tables; None for a call that
        `Embeddings` must compute: under autocast, without the CPU's kernels, for ids outside of the tables."""
        tables, tokens = self._tables, batch.num_tokens
        positions = batch.position_ids + self._offset if self._offset else batch.position_ids
        ids = (batch.input_ids, positions, batch.token_type_ids)
        if torch.is_autocast_enabled("cpu") or not buffers.direct(*ids, *tables, self._weight, self._bias):
            return None
        if any(each.dtype != torch.int64 or not each.is_cpu or each.dim() != 1 or len(each) != tokens for each in ids):
            return None
        vectors = (self._weight, self._bias)
        if vectors[0].dtype != vectors[1].dtype or not all(each.is_contiguous() for each in (*vectors, *tables)):
            return None
        if preferred_backend("embedding_layer_norm", CPU) != "native":
            return None
        element, width = buffers.DTYPES[self._dtype], tables[0].shape[1]
        y = empty((tokens, width), self._dtype)
        read = [
            (each.data_ptr(), each.stride(0), True, buffers.address("a table", table), width, table.shape[0])
            for each, table in zip(ids, tables, strict=True)
        ]
        invalid = _C.embedding_layer_norm(
            tokens, width, element, element, read, buffers.address("weight", vectors[0]),
            buffers.address("bias", vectors[1]), buffers.DTYPES[vectors[0].dtype], self._eps, None, y.data_ptr(), 0, 0,
        )  # fmt: skip
        return y if invalid is None else None
