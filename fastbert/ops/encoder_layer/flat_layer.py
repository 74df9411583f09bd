"""Layers whose parameters lie in flat buffers, which a training loop activates for its own steps.

Such a layer reads a half-precision copy of its weights that the optimiser's step has written, and adds its gradients to
the buffer that the step will read: nothing is cast, concatenated or added in passes of their own. A copy can be stale,
so it is used only between `activate` and the end of that block, in which whoever owns the buffers answers for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fastbert.ops.encoder_layer.arguments import LayerParameters
from fastbert.ops.encoder_layer.operands import Operands


class LayerGradients(NamedTuple):
    """fp32 views of the buffer of gradients, by the names of `GradMask`. Those of a LayerNorm and the bias before it
    are (3, width): weight, bias, bias of the linear layer."""

    projections: Tensor
    projection_biases: Tensor
    attention_output: Tensor
    attention_vectors: Tensor
    intermediate: Tensor
    intermediate_bias: Tensor
    output: Tensor
    output_vectors: Tensor


class FlatLayer(NamedTuple):
    """A layer's weights in the dtype of matmuls, and the gradients that backward adds to."""

    operands: Operands
    gradients: LayerGradients


class FlatWeights(Protocol):
    """The owner of flat buffers."""

    def layer(self, parameters: LayerParameters, dtype: torch.dtype) -> FlatLayer | None:
        """Return the layer of these parameters, None if they are not in the buffers, or not with copies in `dtype`."""

    def shadow(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the copy of one weight, None if there is none in `dtype`."""

    def claim(self, parameter: Tensor) -> Tensor:
        """Make the gradient of a parameter a view of the buffer, for kernels that add to it; return the view."""


_active: list[FlatWeights] = []


@contextlib.contextmanager
def activate(weights: FlatWeights) -> Iterator[None]:
    """Use flat buffers for the layers whose parameters they hold, within the block and on all threads: backward passes
    of GPUs run on threads of their own."""
    _active.append(weights)
    try:
        yield
    finally:
        _active.remove(weights)


def owner(parameters: LayerParameters, dtype: torch.dtype) -> tuple[FlatWeights, FlatLayer] | None:
    """Return the active buffers that hold a layer, and the layer in them; None if there are none."""
    for weights in _active:
        layer = weights.layer(parameters, dtype)
        if layer is not None:
            return weights, layer
    return None


def owner_of(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> FlatWeights | None:
    """Return the active buffers that hold a linear layer with copies in `dtype`, if all of it is trained."""
    parameters = [weight] if bias is None else [weight, bias]
    for weights in _active:
        if all(p.requires_grad and weights.shadow(p, dtype) is not None for p in parameters):
            return weights
    return None


def in_dtype(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in `dtype`: its active copy where there is one, else cast."""
    for weights in _active:
        shadow = weights.shadow(weight, dtype)
        if shadow is not None:
            return shadow
    return weight.to(dtype)
