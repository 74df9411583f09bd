"""The arguments of `embedding_layer_norm`, as every backend receives them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.checks import check_devices, check_eps, check_tensor
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
        tables, vectors = self.tables, {"weight": self.weight, "bias": self.bias}
        ids = {f"ids[{i}]": index for i, index in enumerate(self.ids)}
        tokens = self.ids[0].shape[0] if self.ids[0].dim() else "tokens"
        width = tables[0].shape[-1] if tables[0].dim() else 0
        for i, (name, index) in enumerate(ids.items()):
            check_tensor(name, index, "int64 or int32", (tokens,))
            check_tensor(f"tables[{i}]", tables[i], "floating", ("rows", width))
        for name, vector in vectors.items():
            check_tensor(name, vector, "floating", (width,), ", as wide as the tables' rows")
        check_eps(self.eps)
        others = {f"tables[{i}]": table for i, table in enumerate(tables)}
        check_devices(ids | others | vectors, "tables[0]", tables[0].device)
        if self.dropout is not None:
            self.dropout.check(self.ids[0])


def check_counts(ids: tuple[Tensor, ...], tables: tuple[Tensor, ...]) -> None:
    """Raise UserError unless there are tables, and ids for each of them."""
    if not tables or len(ids) != len(tables):
        raise UserError(f"{len(ids)} ids for {len(tables)} tables: there must be one for each table, and one table")
