"""An encoder layer by the C++ kernels: one call in inference, operations that save for backward in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fastbert.ops.attention.native import MAX_HEAD_DIM
from fastbert.ops.encoder_layer import native_inference, native_training
from fastbert.ops.encoder_layer.arguments import EncoderLayerArguments, LayerParameters
from fastbert.ops.encoder_layer.spec import LayerSpec
from fastbert.ops.native import buffers, matmul_table
from fastbert.ops.operation import NativeBackend, Reason


class Native(NativeBackend[EncoderLayerArguments]):
    """BERT's post-LN layers in bf16, fp32 and, in inference, int8, where the matmul table prefers our matmuls."""

    summary = "inference and training in fp32 and bf16, where the matmul table prefers it"

    def supports(self, arguments: EncoderLayerArguments) -> Reason | None:
        """Support the specs of the fused kernels on CPUs."""
        x, parameters, spec, batch, _, dtype, _, int8, _ = arguments
        if x.dim() != 2 or x.dtype not in buffers.DTYPES or buffers.is_transformed():
            return Reason("x must be (tokens, width) in bfloat16 or float32, outside of torch.func's transforms")
        if batch.attention_output_p != batch.output_p:
            return Reason("both halves of the layer drop with different probabilities")
        int8 = int8 and not batch.drops and not arguments.needs_backward
        return unsupported_layer(parameters, spec, x.shape[0], dtype, int8=int8)

    infer: Callable[..., Tensor] = staticmethod(native_inference.infer)
    forward: Callable[..., Any] = staticmethod(native_training.forward)
    backward: Callable[..., list[Tensor]] = staticmethod(native_training.backward)


def unsupported_layer(
    parameters: LayerParameters, spec: LayerSpec, tokens: int, dtype: torch.dtype, *, int8: bool
) -> Reason | None:
    """Return why the kernels do not compute a layer of so many tokens in matmuls of `dtype`, None if they do."""
    if spec.unfused is not None:
        return Reason(f"the layer has {spec.unfused}")
    width = spec.hidden_size
    if any(weight.shape != (width, width) for weight in parameters.matrices[:4]):
        return Reason(f"the projections are not {width} x {width}")
    if dtype not in buffers.DTYPES or spec.self_attention.head_dim > MAX_HEAD_DIM:
        return Reason(f"matmuls are {dtype}, heads {spec.self_attention.head_dim} wide (at most {MAX_HEAD_DIM})")
    reason = buffers.unsupported(*parameters)
    element, inner = buffers.DTYPES[dtype], len(parameters.intermediate)
    if reason is None and not (int8 or matmul_table.prefers_native_layer(element, tokens, width, inner)):
        return Reason("the matmul table prefers torch's library for a layer of this size")
    return reason
