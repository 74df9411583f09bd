"""Tensors with NaN on both sides, to see a kernel that reads or writes beyond the end, and other guards."""

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MARGIN = 4096  # elements before and behind, a multiple of any alignment that a kernel assumes


class Guarded:
    """A copy of a tensor in the middle of a larger one that is NaN elsewhere.

    A stray read shows as a NaN in the results, a stray write in `check`.
    """

    def __init__(self, values: torch.Tensor, device: torch.device) -> None:
        count = values.numel()
        self.memory = torch.full((count + 2 * MARGIN,), torch.nan, dtype=values.dtype, device=device)
        self.tensor = self.memory[MARGIN : MARGIN + count].view(values.shape)
        self.tensor.copy_(values)

    def check(self) -> None:
        """Fail if anything was written round the tensor."""
        count = self.tensor.numel()
        assert self.memory[:MARGIN].isnan().all(), "written before the first element"
        assert self.memory[MARGIN + count :].isnan().all(), "written behind the last element"


class GuardingTorch:
    """torch for a launcher: what it allocates is NaN, and lies in memory that is NaN all round."""

    def __init__(self) -> None:
        self.allocated: list[Guarded] = []

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, *shape, dtype, device):
        size = shape[0] if isinstance(shape[0], torch.Size) else shape
        self.allocated.append(Guarded(torch.full(size, math.nan, dtype=dtype, device=device), device))
        return self.allocated[-1].tensor

    def empty_like(self, x):
        return self.empty(x.shape, dtype=x.dtype, device=x.device)


class NoReading(TorchDispatchMode):
    """Fails where a value goes from a tensor to the host, for which the host would wait on a GPU."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "the host reads a value of a tensor"
        return function(*arguments, **(keywords or {}))
