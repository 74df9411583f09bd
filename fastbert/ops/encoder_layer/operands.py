"""The operands of a layer's matmuls: its weights in the dtype of matmuls, those of the three projections joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fastbert.ops.encoder_layer.arguments import LayerParameters


class Operands(NamedTuple):
    """Weights (out, in) in the dtype of matmuls; `projections` (3 x width, width) and its bias, which backward does not
    read, are those of queries, keys and values."""

    projections: Tensor
    projection_bias: Tensor | None
    attention_output: Tensor
    intermediate: Tensor
    output: Tensor


def cast(parameters: LayerParameters, dtype: torch.dtype, *, bias: bool) -> Operands:
    """Return the operands of parameters, with `bias` that of the projections: the parameters themselves where they are
    joined and have the dtype already."""
    w = parameters
    return Operands(
        joined((w.query, w.key, w.value)).to(dtype),
        joined((w.query_bias, w.key_bias, w.value_bias)).to(dtype) if bias else None,
        w.attention_output.to(dtype),
        w.intermediate.to(dtype),
        w.output.to(dtype),
    )


def are_adjacent(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors lie one behind the other in one storage, so that their concatenation is a view."""
    first = tensors[0]
    storage, offset = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        if (
            tensor.storage_offset() != offset
            or tensor.untyped_storage().data_ptr() != storage
            or not tensor.is_contiguous()
            or tensor.dtype != first.dtype
            or tensor.shape[1:] != first.shape[1:]
        ):
            return False
        offset += tensor.numel()
    return storage != 0


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Return the concatenation of tensors along their first axis: a view where they are adjacent, else a copy."""
    if not are_adjacent(tensors):
        return torch.cat(tuple(tensors))
    first = tensors[0].detach()
    shape = (sum(len(tensor) for tensor in tensors), *first.shape[1:])
    return first.as_strided(shape, first.stride(), first.storage_offset())
