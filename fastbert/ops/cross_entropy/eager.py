"""`linear_cross_entropy` composed of PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.autocast import without_autocast
from fastbert.ops.cross_entropy.arguments import CrossEntropyArguments
from fastbert.ops.operation import EagerBackend


class Eager(EagerBackend[CrossEntropyArguments]):
    """The logits of all rows at once, with an fp32 loss."""

    def forward(self, arguments: CrossEntropyArguments) -> tuple[Tensor, Tensor, Tensor]:
        """Return the summed loss, the number of labelled rows, and the number of correct predictions."""
        x, weight, bias, labels, (ignore_index, label_smoothing, z_loss) = arguments
        logits = F.linear(x, weight, bias)
        labelled = labels != ignore_index
        with without_autocast(x.device):
            wide = logits.float()
            loss_sum = F.cross_entropy(
                wide, labels, ignore_index=ignore_index, label_smoothing=label_smoothing, reduction="sum"
            )
            if z_loss:
                loss_sum = loss_sum + z_loss * wide.logsumexp(-1).square().masked_fill(~labelled, 0.0).sum()
        with torch.no_grad():
            correct = ((logits.argmax(-1) == labels) & labelled).sum()
        return loss_sum, labelled.sum(), correct
