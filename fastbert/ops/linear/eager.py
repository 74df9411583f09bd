"""The linear layer composed of PyTorch operations."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import is_autocast_enabled
from fastbert.ops.linear.arguments import APPROXIMATIONS, LinearArguments
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[LinearArguments]):
    """`torch.nn.functional.linear` and `gelu`, which decide on dtypes under autocast."""

    def forward(self, arguments: LinearArguments) -> Tensor:
        """Return activation(x weight^T + bias)."""
        x, weight, bias, activation = arguments
        if bias is not None and activation is not None and not is_autocast_enabled(x.device):
            bias = bias.to(x.dtype)
        u = F.linear(x, weight, bias)
        return u if activation is None else F.gelu(u, approximate=APPROXIMATIONS[activation])
