"""Tensors with NaN on both sides, to see a kernel that reads or writes beyond the end."""

import torch

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
