"""A whole encoder layer as one call into C++, for inference on CPUs: matmuls with prepacked weights, everything else in
their epilogues.

A Python operation costs about ten microseconds, so at batch size 1 the calls between the kernels would cost more than
the kernels. The output equals that of the single operations within rounding; the bits of a text do not depend on its
batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops.encoder_layer.arguments import EncoderLayerArguments, LayerParameters
from fastbert.ops.native import buffers, prepacked_weights


def infer(arguments: EncoderLayerArguments) -> Tensor:
    """Return the layer's output (tokens, width), or (rows, width) of `token_indices`, in the dtype of matmuls, fp32 or
    bf16, which activations inside have too.

    Operands are bf16 or fp32, or int8 (weights with a scale per output, tokens with one each).
    """
    x, parameters, spec, batch, _, dtype, _, int8, _ = arguments
    # For a call that is neither traced nor transformed, the dispatcher would only add its microseconds.
    run = _run if buffers.direct(x, *parameters) else _traced
    numbers = (spec.self_attention.heads, arguments.eps, arguments.tanh, spec.self_attention.causal)
    element = "int8" if int8 else buffers.DTYPES[dtype]
    return run(x, list(parameters), batch.cu_seqlens, *numbers, batch.token_indices, dtype, element)


def _run(
    x: Tensor,
    parameters: list[Tensor],
    cu_seqlens: Tensor,
    heads: int,
    eps: float,
    tanh: bool,
    causal: bool,
    rows: Tensor | None,
    dtype: torch.dtype,
    element: str,
) -> Tensor:
    cpu_capability.apply()
    weights = LayerParameters(*parameters)
    if x.stride(-1) != 1:
        x = x.contiguous()
    prepacked = prepacked_weights.prepacked_group(weights.matrices, (3, 1, 1, 1), element, rows=x.shape[0])
    vectors = [
        vector if vector.is_contiguous() else vector.contiguous()
        for vector in (
            weights.query_bias, weights.key_bias, weights.value_bias, weights.attention_output_bias,
            weights.attention_norm, weights.attention_norm_bias, weights.intermediate_bias, weights.output_bias,
            weights.output_norm, weights.output_norm_bias,
        )
    ]  # fmt: skip
    if rows is not None:
        rows = rows.contiguous()
    y = torch.empty((x.shape[0] if rows is None else rows.shape[0], x.shape[1]), dtype=dtype, device="cpu")
    try:
        _C.encoder_layer(
            x=buffers.address("x", x),
            x_dtype=buffers.DTYPES[x.dtype],
            x_stride=x.stride(0),
            tokens=x.shape[0],
            width=x.shape[1],
            weights=prepacked,
            vectors=[
                (0 if buffers.was_freed(vector) else vector.data_ptr(), vector.numel(), buffers.DTYPES[vector.dtype])
                for vector in vectors
            ],
            cu_seqlens=cu_seqlens.data_ptr(),
            sequences=len(cu_seqlens) - 1,
            heads=heads,
            eps=eps,
            tanh=tanh,
            causal=causal,
            rows=None if rows is None else (rows.data_ptr(), len(rows)),
            y=y.data_ptr(),
            y_dtype=buffers.DTYPES[dtype],
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    return y


_traced = torch.library.custom_op("fastbert::encoder_layer_native", _run, mutates_args=())


@_traced.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    rows, dtype, _ = others[-3:]
    return x.new_empty((x.shape[0] if rows is None else rows.shape[0], x.shape[1]), dtype=dtype)
