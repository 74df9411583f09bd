"""Query, key and value weights in one storage, so that one matmul multiplies by all three without a copy of them."""

from __future__ import annotations

import torch
from torch import nn

from fastbert.models.fusibility import PLAIN_TENSORS
from fastbert.ops.encoder_layer.operands import are_adjacent


@torch.no_grad()
def join_projections(*linears: nn.Module) -> None:
    """Lay the weights of linear layers out one behind the other, and their biases too.

    The parameters remain the same objects with the same values; their memory becomes views of a new tensor. Layers
    whose parameters are not plain tensors of one dtype, device and width stay as they are: then each call of an encoder
    layer concatenates the weights.
    """
    for name in ("weight", "bias"):
        parameters = [linear._parameters.get(name) for linear in linears]
        tensors = [tensor for tensor in parameters if tensor is not None and type(tensor) in PLAIN_TENSORS]
        if len(tensors) < len(linears) or any(tensor.is_meta or tensor.is_inference() for tensor in tensors):
            continue
        kinds = {(tensor.dtype, tensor.device, tensor.shape[1:]) for tensor in tensors}
        if len(kinds) > 1 or len({id(tensor) for tensor in tensors}) < len(tensors) or are_adjacent(tensors):
            continue
        joined = torch.cat([tensor.detach() for tensor in tensors])
        for tensor, view in zip(tensors, joined.split([len(tensor) for tensor in tensors]), strict=True):
            tensor.data = view
