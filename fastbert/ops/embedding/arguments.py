"""The arguments of `embedding_layer_norm`, as every backend receives them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout


class EmbeddingArguments(NamedTuple):
    """Ids (tokens,) and table (rows, width) of each embedding, vectors (width,), the dtype of the result, dropout."""

    ids: tuple[Tensor, ...]
    tables: tuple[Tensor, ...]
    weight: Tensor
    bias: Tensor
    eps: float
    dtype: torch.dtype
    dropout: TokenDropout | None

    def check(self) -> None:
        """Raise UserError for shapes, dtypes, devices and numbers that no backend supports."""
        ids, tables, device = self.ids, self.tables, self.tables[0].device
        width = tables[0].shape[-1] if tables[0].dim() else 0
        for i, (index, table) in enumerate(zip(ids, tables)):
            if index.dim() != 1 or index.shape != ids[0].shape or index.dtype not in (torch.int64, torch.int32):
                raise UserError(
                    f"ids[{i}] must be int64 or int32 of shape ({ids[0].shape[0] if ids[0].dim() else 'tokens'},),"
                    f" not {index.dtype} {tuple(index.shape)}"
                )
            if table.dim() != 2 or table.shape[1] != width or not table.dtype.is_floating_point:
                raise UserError(
                    f"tables[{i}] must be floating of shape (rows, {width}), not {table.dtype} {tuple(table.shape)}"
                )
        for name, vector in (("weight", self.weight), ("bias", self.bias)):
            if vector.shape != (width,) or not vector.dtype.is_floating_point:
                raise UserError(
                    f"{name} must be floating of shape ({width},), as wide as the tables' rows, not"
                    f" {vector.dtype} {tuple(vector.shape)}"
                )
        if not 0.0 <= self.eps < math.inf:
            raise UserError(f"eps={self.eps} must be a finite number, at least 0")
        tensors = {f"ids[{i}]": index for i, index in enumerate(ids)}
        tensors |= {f"tables[{i}]": table for i, table in enumerate(tables)}
        for name, tensor in (tensors | {"weight": self.weight, "bias": self.bias}).items():
            if tensor.device != device:
                raise UserError(f"{name} is on {tensor.device}, tables[0] on {device}: move them to one device")
        if self.dropout is not None:
            self.dropout.check(ids[0])


def check_counts(ids: tuple[Tensor, ...], tables: tuple[Tensor, ...]) -> None:
    """Raise UserError unless there are tables, and ids for each of them."""
    if not tables or len(ids) != len(tables):
        raise UserError(f"{len(ids)} ids for {len(tables)} tables: there must be one for each table, and one table")
