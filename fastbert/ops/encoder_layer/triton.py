"""A whole encoder layer by the Triton kernels: matmuls by torch's library or ours, and between them one pass each.

    qkv = x Wqkv + b          one matmul                       saved
    context, lse = attention(qkv)                              saved
    z1 = x + dropout(context Wo + bo);  y1 = LayerNorm(z1)     z1 and statistics saved, y1 unless it is recomputed
    u = y1 W1 + b1;  h = GELU(u)                               u saved, h never: backward computes it beside dGELU
    z2 = y1 + dropout(h W2 + b2);  y2 = LayerNorm(z2)          z2 and statistics saved

The backward pass of a residual connection is an addition, and the matmuls that end in it add: dy1 = dz2 + du W1 and
dx = dz1 + dqkv Wqkv are one call each, and no pass over the tokens only adds.

Weights are cast to the dtype of matmuls, and those of the projections joined, unless a training loop has such copies of
them; it then also takes the gradients, which the matmuls add to those of earlier micro-batches (`flat_layer.py`).

With `LayerBatch.token_indices`, everything behind attention is computed of these tokens alone.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.attention.triton import HEAD_DIMS, kernel_inputs
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.dropout.triton import kernel_inputs as dropout_inputs
from fastbert.ops.encoder_layer.arguments import SAVE_ALL, SAVE_NOTHING, EncoderLayerArguments, GradMask
from fastbert.ops.encoder_layer.flat_layer import FlatLayer
from fastbert.ops.encoder_layer.gradients import Accumulated, Returned, Sink
from fastbert.ops.encoder_layer.operands import Operands, cast
from fastbert.ops.linear.mixed_matmul import add_matmul
from fastbert.ops.operation import Reason
from fastbert.ops.triton_backend import DTYPES, TritonBackend

MAX_WIDTH = 8192  # of a row that the LayerNorm kernels keep in registers


class Triton(TritonBackend[EncoderLayerArguments]):
    """BERT's post-LN layers in bf16, fp16 and fp32; a layer that it does not support is composed without a log."""

    logs_fallback = False

    def supports(self, arguments: EncoderLayerArguments) -> Reason | None:
        """Support the specs of the fused kernels, in widths and dtypes that they have."""
        x, parameters, spec, batch, _, dtype, *_ = arguments
        self.require_device(x.device, "x")
        if spec.unfused is not None:
            return Reason(f"the layer has {spec.unfused}")
        if x.dim() != 2 or dtype not in DTYPES or x.shape[1] > MAX_WIDTH:
            return Reason(f"x has shape {tuple(x.shape)} and matmuls {dtype}: it must be (tokens, up to {MAX_WIDTH})")
        if spec.self_attention.head_dim not in HEAD_DIMS:
            return Reason(f"head_dim={spec.self_attention.head_dim} is not 32, 64, 96 or 128")
        if batch.attention_output_p != batch.output_p:
            return Reason("both halves of the layer drop with different probabilities")
        if all(tensor.dtype in (dtype, torch.float32) and tensor.device == x.device for tensor in parameters):
            return None
        return Reason(f"a parameter is neither {dtype} nor float32, or not on {x.device}")

    def forward(self, arguments: EncoderLayerArguments, save: int, operands: Operands | None = None) -> list[Tensor]:
        """Return [y2] and, unless nothing is saved: qkv, context, lse, what rounding removed from context, z1, mean1,
        rstd1, u, z2, mean2, rstd2, and y1 if everything is. `operands` are the weights in the dtype of matmuls; None:
        they are cast here."""
        from fastbert.kernels.attention import launchers
        from fastbert.kernels.linear.feed_forward import up_projection
        from fastbert.kernels.norm import layer_norm

        x, w, _, batch, index, dtype, *_ = arguments
        keep, eps = save != SAVE_NOTHING, arguments.eps
        operands = cast(w, dtype, bias=True) if operands is None else operands
        qkv = F.linear(x.to(dtype), operands.projections, operands.projection_bias)
        attention = arguments.attention(qkv)
        attention.check_offsets()
        context, lse, context_rest = launchers.forward(kernel_inputs(attention), keep)
        context = context.flatten(1)
        y1, z1, mean1, rstd1 = layer_norm.forward(
            batch.gather(context) @ operands.attention_output.t(), w.attention_output_bias, batch.gather(x),
            w.attention_norm, w.attention_norm_bias, eps,
            dropout_inputs(batch.row_dropout(Site.ATTENTION_OUTPUT, index)), keep,
        )  # fmt: skip
        h, u = up_projection(y1, operands.intermediate, w.intermediate_bias, arguments.tanh, keep)
        y2, z2, mean2, rstd2 = layer_norm.forward(
            h @ operands.output.t(), w.output_bias, y1, w.output_norm, w.output_norm_bias, eps,
            dropout_inputs(batch.row_dropout(Site.FEED_FORWARD_OUTPUT, index)), keep,
        )  # fmt: skip
        if not keep:
            return [y2]
        saved = [qkv, context, lse, context_rest, z1, mean1, rstd1, u, z2, mean2, rstd2]
        return [y2, *saved, *([y1] if save == SAVE_ALL else [])]

    def backward(
        self, arguments: EncoderLayerArguments, grad: Tensor, saved: list[Tensor], mask: GradMask
    ) -> list[Tensor]:
        """Return the gradients in the order of `GradMask`; matrices that are not computed are empty."""
        sink = Returned(arguments.parameters, mask)
        operands = cast(arguments.parameters, arguments.dtype, bias=False)
        dx = _backward(arguments, operands, grad, saved, sink, needs_x=mask.x)
        return [arguments.x.new_empty(0) if dx is None else dx, *sink.results()]

    def accumulate(
        self, arguments: EncoderLayerArguments, layer: FlatLayer, grad: Tensor, saved: list[Tensor], needs_x: bool
    ) -> Tensor | None:
        """Add the gradients of the parameters to those of `layer`; return that of x, None unless it is needed."""
        sink = Accumulated(layer.gradients)
        dx = _backward(arguments, layer.operands, grad, saved, sink, needs_x=needs_x)
        sink.add_vectors()
        return dx


def _backward(
    arguments: EncoderLayerArguments,
    operands: Operands,
    grad: Tensor,
    saved: list[Tensor],
    sink: Sink,
    *,
    needs_x: bool,
) -> Tensor | None:
    """Return the gradient of x; give those of the parameters to `sink`."""
    from fastbert.kernels.attention import launchers
    from fastbert.kernels.columns import unreduced
    from fastbert.kernels.linear.feed_forward import down_projection_backward
    from fastbert.kernels.norm import layer_norm

    x, w, _, batch, index, dtype, *_ = arguments
    qkv, context, lse, context_rest, z1, mean1, rstd1, u, z2, mean2, rstd2, *rest = saved
    if rest:
        y1 = rest[0]
    else:
        norm = (w.attention_norm, w.attention_norm_bias, arguments.eps, None, False)
        y1 = layer_norm.forward(z1, None, None, *norm)[0]
    df, dy1, partial = layer_norm.backward(
        grad.to(dtype), None, z2, mean2, rstd2, w.output_norm,
        dropout_inputs(batch.row_dropout(Site.FEED_FORWARD_OUTPUT, index)), x_bias=True, residual=True,
        reduction=unreduced,
    )  # fmt: skip
    sink.partial_sums("output_vectors", partial)
    du, h, partial = down_projection_backward(df, operands.output, u, arguments.tanh, unreduced)
    sink.partial_sums("intermediate_bias", partial)
    sink.matrix("output", df.t(), h)
    sink.matrix("intermediate", du.t(), y1)
    del h
    # Without dropout that gradient is df itself, of which nothing else is read from here on.
    dy1 = add_matmul(df if dy1 is None else dy1, du, operands.intermediate)
    do, dx, partial = layer_norm.backward(
        dy1, None, z1, mean1, rstd1, w.attention_norm,
        dropout_inputs(batch.row_dropout(Site.ATTENTION_OUTPUT, index)), x_bias=True, residual=True,
        reduction=unreduced,
    )  # fmt: skip
    sink.partial_sums("attention_vectors", partial)
    sink.matrix("attention_output", do.t(), batch.gather(context))
    dcontext = batch.scatter(do @ operands.attention_output, len(x))
    attention = kernel_inputs(arguments.attention(qkv))
    shape = attention.q.shape
    dqkv = launchers.backward_joined(attention, context.view(shape), lse, context_rest, dcontext.view(shape)).flatten(1)
    sink.matrix("projections", dqkv.t(), x.to(dtype))
    sink.column_sums("projection_biases", dqkv)
    if not needs_x:
        return None
    residual = batch.scatter(do if dx is None else dx, len(x))
    return add_matmul(residual, dqkv, operands.projections).to(x.dtype)
