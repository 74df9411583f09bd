"""The projections of self-attention of all architectures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from fastbert.models.joined_projections import join_projections
from fastbert.models.similarity import PerceptronSimilarity, perceptron_similarity
from fastbert.ops.encoder_layer.spec import AttentionSpec


class SelfAttention(nn.Module):
    """The three projections of self-attention, those of relative positions if it has any, and the perceptron of its
    similarity if that is not the dot product. On a GPU the weights of the three lie in one storage."""

    def __init__(self, hidden_size: int, spec: AttentionSpec | None = None) -> None:
        super().__init__()
        if spec is None:
            spec = AttentionSpec(1, hidden_size)
        inner, bias = spec.heads * spec.head_dim, spec.projection_bias
        groups = spec.heads if spec.key_value_heads is None else spec.key_value_heads
        self.query: nn.Linear = nn.Linear(hidden_size, inner, bias=bias)
        self.key: nn.Linear = nn.Linear(hidden_size, groups * spec.head_dim, bias=bias)
        self.value: nn.Linear = nn.Linear(hidden_size, groups * spec.head_dim, bias=bias)
        projects = spec.position == "disentangled" and not spec.shares_position_projections
        self.position_key: nn.Linear | None = nn.Linear(hidden_size, inner) if projects and spec.position_keys else None
        self.position_query: nn.Linear | None = (
            nn.Linear(hidden_size, inner) if projects and spec.position_queries else None
        )
        self.similarity: PerceptronSimilarity | None = perceptron_similarity(spec)

    def named_projections(self) -> dict[str, nn.Linear]:
        """Return the linear layers by the names of `LayerParameters`."""
        modules = {"query": self.query, "key": self.key, "value": self.value}
        if self.position_key is not None:
            modules["position_key"] = self.position_key
        if self.position_query is not None:
            modules["position_query"] = self.position_query
        return modules

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
