"""`bias_gelu` composed of PyTorch operations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import without_autocast
from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[BiasGeluArguments]):
    """GELU of a sum that is rounded to the dtype of x."""

    def forward(self, arguments: BiasGeluArguments) -> Tensor:
        """Return GELU(x + bias), shape and dtype of x."""
        x, bias, _ = arguments
        with without_autocast(x.device):
            return F.gelu(x if bias is None else x + bias.to(x.dtype), approximate=arguments.approximate)
