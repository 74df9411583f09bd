"""A layer in flat buffers as a node of autograd: it has the gradient of its input alone.

The gradients of its parameters are added where the optimiser reads them, so autograd receives none. That is a side
effect on tensors that an operator of torch.library would not be given: compilers, tracers and transforms get the
ordinary operator instead (`op.py`).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from fastbert.ops.autocast import without_autocast
from fastbert.ops.encoder_layer.arguments import SAVE_ALL, SAVE_CHEAPLY, SAVE_NOTHING, EncoderLayerArguments
from fastbert.ops.encoder_layer.flat_layer import FlatLayer, FlatWeights
from fastbert.ops.encoder_layer.triton import Triton

_BACKEND = Triton()


def run(arguments: EncoderLayerArguments, weights: FlatWeights, layer: FlatLayer) -> Tensor:
    """Compute a layer of which `weights` hold the parameters."""
    arguments.check_shapes()
    if not arguments.needs_backward:
        with without_autocast(arguments.x.device):
            return _BACKEND.forward(arguments, SAVE_NOTHING, layer.operands)[0]
    output: Tensor = _Layer.apply(arguments.x, arguments.parameters.output_norm_bias, arguments, weights, layer)
    return output


class _Layer(Function):
    """The layer of x. A parameter is its second input, for a node even where x has no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _: Tensor, arguments: EncoderLayerArguments, weights: FlatWeights, layer: FlatLayer
    ) -> Tensor:
        with without_autocast(x.device):
            y, *saved = _BACKEND.forward(arguments, SAVE_CHEAPLY if arguments.recompute else SAVE_ALL, layer.operands)
        ctx.save_for_backward(x, *saved)
        # The input is autograd's to keep.
        ctx.arguments, ctx.weights, ctx.layer = arguments[1:], weights, layer
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        arguments = EncoderLayerArguments(x, *ctx.arguments)
        for parameter in arguments.parameters:
            ctx.weights.claim(parameter)
        with without_autocast(grad.device):
            dx = _BACKEND.accumulate(arguments, ctx.layer, grad.contiguous(), saved, ctx.needs_input_grad[0])
        return dx, None, None, None, None
