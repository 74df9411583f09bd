"""The LayerNorm module of all architectures."""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, nn

from fastbert.models.fusibility import owns_weight_and_bias, runs_as_written
from fastbert.ops.norm.op import layer_norm


class Norm(nn.Module):
    """A LayerNorm that is fused with the operation before it; its own forward runs only where fusion is impossible, for
    hooks, adapters or replaced modules."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (rows, width), with statistics in fp32; the same shape and dtype."""
        return layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Return the width and epsilon for `repr`."""
        return f"{self.weight.numel()}, eps={self.eps}"


def is_plain_norm(module: nn.Module) -> TypeGuard[Norm]:
    """Return whether a LayerNorm is nothing but its weight, bias and epsilon."""
    return runs_as_written(module, Norm) and owns_weight_and_bias(module)
