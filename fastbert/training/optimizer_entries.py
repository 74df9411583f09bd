"""The parameters of one optimiser step with their gradients, and the memory that the native step can access."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = frozenset((Tensor, nn.Parameter))


@dataclass(frozen=True)
class Clip:
    """A pending factor of all gradients, and their addresses and versions."""

    factor: float
    gradients: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Entry:
    """A parameter with a gradient, its group, and its index in the group.

    `weight` and `gradient` are the memory of this process: shards, if the parameter is a DTensor.
    """

    parameter: Tensor
    weight: Tensor
    gradient: Tensor
    group: int
    index: int


def local(x: Tensor) -> Tensor:
    """Return a tensor, or this process's shard of a DTensor, which shares its memory; call it without gradients."""
    to_local = getattr(x, "to_local", None)
    return x if to_local is None else to_local()


def used_entries(groups: Sequence[dict[str, Any]]) -> list[Entry]:
    """Return the parameters that have a gradient."""
    return [
        Entry(parameter, local(parameter), local(parameter.grad), group, index)
        for group, settings in enumerate(groups)
        for index, parameter in enumerate(settings["params"])
        if parameter.grad is not None
    ]


def is_plain(x: Tensor, *dtypes: torch.dtype) -> bool:
    """Return True if a tensor is contiguous memory on the CPU, fp32 or of one of `dtypes`, for the native step."""
    return (
        type(x) in _PLAIN
        and x.is_cpu
        and x.dtype in (dtypes or (torch.float32,))
        and x.layout == torch.strided
        and x.is_contiguous()
        and not x.is_neg()
        and (x.data_ptr() != 0 or x.numel() == 0)
    )


def versions(used: Sequence[Entry]) -> tuple[tuple[int, int], ...]:
    """Return the gradients' addresses and versions, which change when one is written or replaced."""
    return tuple(
        (entry.gradient.data_ptr(), -1 if entry.gradient.is_inference() else entry.gradient._version) for entry in used
    )
