"""`gated_activation` composed of PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import without_autocast
from fastbert.ops.gated.arguments import GatedArguments
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[GatedArguments]):
    """The activation and the product of sums that are rounded to the dtype of x."""

    def forward(self, arguments: GatedArguments) -> Tensor:
        """Return the product, (..., width) in the dtype of x."""
        x, bias, activation = arguments
        with without_autocast(x.device):
            gate, value = (x if bias is None else x + bias.to(x.dtype)).chunk(2, dim=-1)
            if activation == "relu":
                return torch.relu(gate) * value
            if activation == "silu":
                return F.silu(gate) * value
            return F.gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * value
