"""The layers of a left-to-right model for new tokens as one call into C++ per token.

A new token's matmuls take as long as reading the weights; for small models, calls from Python between them would take
as long again. Weights do not change while a text is generated, so they are checked once, when generation begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from fastbert import _C, cpu_capability
from fastbert.errors import UserError
from fastbert.models.fusibility import has_hooks, is_plain_table, is_plain_without_bias, runs_as_written
from fastbert.models.heads.prediction import TiedHead
from fastbert.models.modules import Embeddings
from fastbert.models.norm import Norm, is_plain_norm
from fastbert.models.plain_layers import PlainLayer, native_layer, plain_layer, vector
from fastbert.models.seq2seq.decoding_cache import WrittenKeys
from fastbert.models.seq2seq.fused_decoding import fused_element
from fastbert.ops.attention.native import MAX_HEAD_DIM
from fastbert.ops.encoder_layer.spec import LayerSpec
from fastbert.ops.native import buffers, matmul, prepacked_weights
from fastbert.ops.native.matmul_table import prefers_native

Embed = Callable[[Tensor, Tensor], Tensor]


class DecoderStack:
    """Layers of plain modules with the norm behind the last, if there is one, for one new token per row at a time."""

    def __init__(self, layers: list[PlainLayer], spec: LayerSpec, norm: Norm | None, element: str) -> None:
        """`spec` is that of every layer, but for the feed-forward network's width and the norms' epsilons; `element`
        that of the prepacked weights, "fp32", "bf16" or "int8"."""
        cpu_capability.apply()
        self.width: int = spec.hidden_size
        self.native: _C.DecoderStack = _C.DecoderStack(
            layers=[native_layer(layer, element) for layer in layers],
            heads=spec.self_attention.heads,
            pre_norm=spec.is_pre_norm,
            tanh=spec.feed_forward.activation == "gelu_tanh",
            final_norm=None if norm is None else (vector(norm.weight), vector(norm.bias), norm.eps),
        )

    def step(self, x: Tensor, written: WrittenKeys) -> Tensor:
        """Return the outputs of the newest tokens x (rows, width), and cache their keys and values, for which
        `written.advance()` has made room.

        x is bf16 or fp32, of the caches' dtype, as the result. Sums, norms and softmax are fp32; a row's bits do not
        depend on the other rows. Raises `UserError` for caches of another shape, and for freed storage.
        """
        rows, keys, values = len(written.starts), written.keys, written.values
        slots, slot = written.before + written.room, written.before + written.written - 1
        if keys[0].shape[:2] != (rows, slots) or keys[0].shape[2] * keys[0].shape[3] != self.width:
            raise UserError(f"a cache has shape {tuple(keys[0].shape)}: {rows} x {slots} tokens are {self.width} wide")
        if x.shape != (rows, self.width) or x.dtype != keys[0].dtype:
            raise UserError(f"x is {x.dtype} {tuple(x.shape)}: it must be {keys[0].dtype} {(rows, self.width)}")
        x = x if x.stride(1) == 1 else x.contiguous()
        y = torch.empty((rows, self.width), dtype=x.dtype)
        try:
            self.native.step(
                (buffers.address("x", x), buffers.DTYPES[x.dtype], x.stride(0)),
                rows,
                keys=[cache.data_ptr() for cache in keys],
                values=[cache.data_ptr() for cache in values],
                slots=slots,
                slot=slot,
                starts=written.starts.data_ptr(),
                y=y.data_ptr(),
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        return y


def decoder_stack(layers: Iterable[Any], norm: nn.Module | None, like: Tensor) -> DecoderStack | None:
    """Return the stack that computes `layers`, and the `norm` behind them, for new tokens of the dtype and device of
    `like`; None if the CPU's kernels do not support all of them, as they are: with hooks, adapters, autocast."""
    layers = list(layers)
    plain = [parameters for layer in layers if (parameters := plain_layer(layer)) is not None]
    if not layers or len(plain) < len(layers) or not (norm is None or is_plain_norm(norm)):
        return None
    element = fused_element(layers[0], like)
    kinds = {_kind(layer) for layer in layers}
    if element is None or len(kinds) > 1 or layers[0].spec.self_attention.head_dim > MAX_HEAD_DIM:
        return None
    if any(fused_element(layer, like) != element for layer in layers):
        return None
    vectors = [tensor for layer in plain for tensor in layer.parameters]
    vectors += [] if norm is None else [norm.weight, norm.bias]
    if buffers.unsupported(*vectors) is not None or not buffers.direct(*vectors):
        return None
    return DecoderStack(plain, layers[0].spec, norm, element)


def embeddings_step(embeddings: nn.Module) -> Embed | None:
    """Return the function of token ids and positions, int64 (rows,), that computes plain `embeddings` (rows,
    hidden_size) without a norm and segments, as GPT's; None for others, whose forward runs."""
    if not (isinstance(embeddings, Embeddings) and runs_as_written(embeddings, Embeddings)):
        return None
    tokens, positions, offset = embeddings.word_embeddings, embeddings.position_embeddings, embeddings.position_offset
    if embeddings.LayerNorm is not None or embeddings.token_type_embeddings is not None or offset or positions is None:
        return None
    if not (is_plain_table(tokens) and is_plain_table(positions) and tokens.weight.dtype == positions.weight.dtype):
        return None
    token_table, position_table = tokens.weight.detach(), positions.weight.detach()
    return lambda ids, places: token_table.index_select(0, ids).add_(position_table.index_select(0, places))


def head_step(head: nn.Module, like: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the function that computes the logits (rows, vocab_size) of hidden states (rows, hidden_size) with the
    dtype and device of `like` by a plain tied `head`, whose weight is checked once; None for others."""
    if not (isinstance(head, TiedHead) and runs_as_written(head, TiedHead) and is_plain_without_bias(head.decoder)):
        return None
    weight = head.decoder.weight
    if type(head.transform) is not nn.Identity or has_hooks(head.transform) or weight.dtype != like.dtype:
        return None
    element = buffers.DTYPES[weight.dtype]
    if buffers.unsupported(weight) is not None or not prefers_native(element, 1, *weight.shape):
        return None
    packed = prepacked_weights.prepacked(weight, element)
    return lambda x: matmul.matmul_unchecked(x, packed, torch.empty((len(x), packed.columns), dtype=x.dtype))


def _kind(layer: Any) -> tuple[Any, ...]:
    """Return what all layers of a stack have in common."""
    spec = layer.spec
    return spec.is_pre_norm, spec.hidden_size, spec.self_attention.heads, spec.feed_forward.activation
