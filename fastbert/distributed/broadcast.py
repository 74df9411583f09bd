"""Send named tensors of the first process to the others."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from fastbert.distributed.world import World


def broadcast(world: World, name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the first process's tensors, on the host, in every process; those of the others are ignored.

    `name` is unique within the run.
    """
    if world.size == 1:
        return dict(tensors)
    described = world.shared(
        name, lambda: {key: [str(tensor.dtype), list(tensor.shape)] for key, tensor in tensors.items()}
    )
    received = {}
    for key, (dtype, shape) in described.items():
        kind: torch.dtype = getattr(torch, dtype.removeprefix("torch."))
        tensor = tensors[key].cpu().contiguous() if world.is_main else torch.empty(shape, dtype=kind)
        if tensor.numel():
            dist.broadcast(tensor.reshape(-1).view(torch.uint8), 0, group=world.host_group)
        received[key] = tensor
    return received
