"""A whole encoder layer as one call into C++, for inference on CPUs: products with weights that were laid out once,
with what follows each of them in their epilogues.

A Python operation costs some ten microseconds, so at batch 1 the calls between the kernels would cost more than they
do. The model's output is the same as from the single operations, within rounding; a text's bits do not depend on the
batch it is in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.ops.attention import native as native_attention
from fastbert.ops.native import buffers, matmul_table, prepacked_weights
from fastbert.ops.native.buffers import DTYPES

if TYPE_CHECKING:
    from fastbert.ops.encoder_layer.op import LayerSettings, LayerWeights


def element_of(tokens: int, dtype: torch.dtype, weights: LayerWeights, heads: int, int8: bool) -> str | None:
    """What a layer's products multiply, or None where the layer is to be put together from single operations.

    `dtype` is that of the products, autocast's or that of the tokens.
    """
    width = weights.query.shape[1]
    if not weights.query.shape == weights.key.shape == weights.value.shape == weights.attention_output.shape:
        return None
    if dtype not in DTYPES or width % heads or not 1 <= width // heads <= native_attention.MAX_HEAD_DIM:
        return None
    if any(w.dtype not in DTYPES or w.device.type != "cpu" or w.layout != torch.strided for w in weights):
        return None
    if int8:
        return "int8"
    inner = len(weights.intermediate)
    return DTYPES[dtype] if matmul_table.prefers_native_layer(DTYPES[dtype], tokens, width, inner) else None


def encoder_layer(
    x: Tensor, weights: LayerWeights, settings: LayerSettings, dtype: torch.dtype, element: str
) -> Tensor:
    """The layer's output (tokens, width), or (rows, width) of `settings.rows`, in `dtype`, fp32 or bf16, which
    activations inside have too.

    `element`: what products multiply, "bf16", "fp32" or "int8" (weights with a scale an output, tokens with one each).
    """
    # For what does not trace or transform, the dispatcher would only add its microseconds.
    run = _run if buffers.direct(x, *weights) else _traced
    numbers = (settings.heads, settings.eps, settings.tanh, settings.causal)
    return run(x, list(weights), settings.cu_seqlens, *numbers, settings.rows, dtype, element)


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
    from fastbert.ops.encoder_layer.op import LayerWeights

    cpu_capability.apply()
    weights = LayerWeights(*parameters)
    if x.stride(-1) != 1:
        x = x.contiguous()
    matrices = (
        weights.query, weights.key, weights.value, weights.attention_output, weights.intermediate, weights.output,
    )  # fmt: skip
    products = prepacked_weights.prepacked_group(matrices, (3, 1, 1, 1), element, rows=x.shape[0])
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
            x_dtype=DTYPES[x.dtype],
            x_stride=x.stride(0),
            tokens=x.shape[0],
            width=x.shape[1],
            products=products,
            vectors=[
                (0 if buffers.was_freed(vector) else vector.data_ptr(), vector.numel(), DTYPES[vector.dtype])
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
            y_dtype=DTYPES[dtype],
        )
    except ValueError as error:
        raise UserError(str(error)) from None
    return y


_traced = torch.library.custom_op("fastbert::encoder_layer_native", _run, mutates_args=())


@_traced.register_fake
def _(x: Tensor, *others: Any) -> Tensor:
    rows, dtype, _ = others[-3:]
    return x.new_empty((x.shape[0] if rows is None else rows.shape[0], x.shape[1]), dtype=dtype)
