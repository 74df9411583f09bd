"""The projections of self-attention of all architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fastbert.models.joined_projections import join_projections
from fastbert.models.similarity import perceptron_similarity
from fastbert.ops.encoder_layer.spec import AttentionSpec


class SelfAttention(nn.Module):
    """The three projections of self-attention, and the perceptron of its similarity if that is not the dot product. On
    a GPU their weights lie in one storage."""

    def __init__(self, hidden_size: int, spec: AttentionSpec | None = None) -> None:
        super().__init__()
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.similarity = None if spec is None else perceptron_similarity(spec)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply a function to all tensors, as `to` and `cuda` do, and join those of a GPU (so do the RNNs of torch)."""
        super()._apply(fn, recurse)
        weight = self.query._parameters.get("weight")
        if weight is not None and self._joins(weight.device):
            join_projections(self.query, self.key, self.value)
        return self

    @staticmethod
    def _joins(device: torch.device) -> bool:
        """Return whether matmuls on a device read the projections as one weight; a CPU prepacks them."""
        return device.type == "cuda"
