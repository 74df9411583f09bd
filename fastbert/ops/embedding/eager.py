"""`embedding_layer_norm` composed of PyTorch operations and of `layer_norm` and `dropout`."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import is_autocast_enabled
from fastbert.ops.dropout.op import dropout
from fastbert.ops.embedding.arguments import EmbeddingArguments
from fastbert.ops.norm.op import layer_norm
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[EmbeddingArguments]):
    """LayerNorm of a sum that is rounded to the dtype of the tables at each step."""

    def forward(self, arguments: EmbeddingArguments) -> Tensor:
        """Return (tokens, width) in the tables' dtype, or in autocast's where it is enabled."""
        ids, tables, weight, bias, eps, dtype, token_dropout = arguments
        total = F.embedding(ids[0], tables[0])
        for index, table in zip(ids[1:], tables[1:]):
            total = total + F.embedding(index, table)
        normed = layer_norm(total, weight, bias, eps)
        if is_autocast_enabled(normed.device):
            normed = normed.to(dtype)
        return dropout(normed, token_dropout)
