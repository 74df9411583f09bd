"""The arguments of an encoder layer, as every backend receives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.ops.checks import check_devices
from fastbert.ops.dispatch import needs_backward
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.encoder_layer.spec import AttentionSpec, LayerSpec, RotarySpec

# What the forward pass saves for backward.
SAVE_NOTHING, SAVE_CHEAPLY, SAVE_ALL = 0, 1, 2


class LayerParameters(NamedTuple):
    """The parameters of a layer with every bias: linear layers (out, in), biases and LayerNorms (width,)."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor
    key_bias: Tensor
    value_bias: Tensor
    attention_output: Tensor
    attention_output_bias: Tensor
    attention_norm: Tensor
    attention_norm_bias: Tensor
    intermediate: Tensor
    intermediate_bias: Tensor
    output: Tensor
    output_bias: Tensor
    output_norm: Tensor
    output_norm_bias: Tensor

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """The weights of the linear layers, those of the three projections first."""
        return self.query, self.key, self.value, self.attention_output, self.intermediate, self.output


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPositions:
    """What an encoder's attention reads of positions, the same for all layers; see `fastbert.ops.attention`."""

    position_ids: Tensor | None = None
    """int64 (tokens,), rows of the rotary tables; None: the index of a token in its sequence."""
    rotary: Mapping[RotarySpec, Tensor] = field(default_factory=dict)
    """Rotary tables fp32 (positions, rotary_dim) by their specs."""
    distance_bias: Tensor | None = None
    """(heads, 2 x length - 1)."""
    embeddings: Tensor | None = None
    """Embeddings of relative positions (rows, hidden_size), which layers project to keys and queries."""
    buckets: Tensor | None = None
    """int32 (2 x length - 1,), the rows of `embeddings` by distance."""
    sources: tuple[Tensor, ...] = ()
    """The parameters that `embeddings` were computed from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerBatch:
    """The tensors of a call, the same for all layers: where sequences begin, and what is dropped.

    `cu_seqlens` is int32 (sequences + 1,). Dropout keys are int64 (sequences,), `sequence_ids` and `offsets` int64
    (tokens,); all three are None where nothing is dropped.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    attention_p: float = 0.0
    """Dropout probability of attention's probabilities; rounded to a multiple of 1/256, an error of at most 1/512."""
    attention_output_p: float = 0.0
    """Dropout probability behind attention's output projection; it counts in steps of 1/65536, as the next."""
    output_p: float = 0.0
    """Dropout probability behind the feed-forward network."""
    inner_p: float = 0.0
    """Dropout probability behind the activation of the feed-forward network."""
    dropout_key: Tensor | None = None
    sequence_ids: Tensor | None = None
    offsets: Tensor | None = None
    token_indices: Tensor | None = None
    """int64 (rows,): the tokens whose output is computed, repetitions allowed; None: all, in their order. Attention
    reads every token; what follows it is computed of these alone, and in native inference the queries, too."""
    positions: LayerPositions | None = None
    """None where attention reads none."""
    shared: dict[object, Any] = field(default_factory=dict)
    """What layers compute of the batch alone and keep for the next one, by keys of their own."""

    @property
    def drops(self) -> bool:
        """Return whether anything is dropped."""
        return bool(self.attention_p or self.attention_output_p or self.output_p or self.inner_p)

    def token_dropout(self, site: Site, layer: int = 0, p: float | None = None) -> TokenDropout | None:
        """Return the dropout of all token vectors at a site, None if nothing is dropped; `p` defaults to the site's."""
        if p is None:
            p = self.attention_output_p if site == Site.ATTENTION_OUTPUT else self.output_p
        if self.dropout_key is None or not p:
            return None
        assert self.sequence_ids is not None
        assert self.offsets is not None
        return TokenDropout(p, self.dropout_key, self.sequence_ids, self.offsets, site.of_layer(layer))

    def row_dropout(self, site: Site, layer: int, p: float | None = None) -> TokenDropout | None:
        """Return the dropout of the output rows: of `token_indices`, or of all tokens; `p` defaults to the site's."""
        dropout = self.token_dropout(site, layer, p)
        return dropout if dropout is None or self.token_indices is None else dropout.select(self.token_indices)

    def rotary_arguments(self, attention: AttentionSpec) -> dict[str, Any]:
        """Return the arguments of `fastbert.ops.attention` for a layer's rotary embeddings, none if it has none."""
        if attention.rotary is None:
            return {}
        if self.positions is None or attention.rotary not in self.positions.rotary:
            raise UserError("the batch has no rotary table of this layer: give it in LayerBatch.positions")
        return {"rotary": self.positions.rotary[attention.rotary], "rotary_positions": self.positions.position_ids}

    def gather(self, tokens: Tensor) -> Tensor:
        """Return the output rows of (tokens, width)."""
        return tokens if self.token_indices is None else tokens.index_select(0, self.token_indices)

    def scatter(
        self, rows: Tensor, tokens: int, zeros: Callable[[tuple[int, int], torch.dtype], Tensor] | None = None
    ) -> Tensor:
        """Return the gradient of what `gather` read: (tokens, width), `zeros` where nothing was read. Without
        `token_indices` that is `rows` itself."""
        if self.token_indices is None:
            return rows
        shape = (tokens, rows.shape[1])
        scattered = rows.new_zeros(shape) if zeros is None else zeros(shape, rows.dtype)
        return scattered.index_add_(0, self.token_indices, rows)


class EncoderLayerArguments(NamedTuple):
    """x (tokens, width) with its layer: `layer_index` counts the dropout sites, `dtype` is that of matmuls."""

    x: Tensor
    parameters: LayerParameters
    spec: LayerSpec
    batch: LayerBatch
    layer_index: int
    dtype: torch.dtype
    tf32: bool = False
    """True if fp32 matmuls may round their operands to tf32."""
    int8: bool = False
    """True if inference without dropout is quantised."""
    recompute: bool = False
    """True if backward recomputes LayerNorms instead of keeping their outputs."""

    @property
    def needs_backward(self) -> bool:
        """Return whether a backward pass may follow."""
        return needs_backward(self.x, *self.parameters)

    @property
    def eps(self) -> float:
        """Return the eps of both LayerNorms of a spec that is not `unfused`."""
        assert self.spec.output_norm is not None
        return self.spec.output_norm.eps

    @property
    def tanh(self) -> bool:
        """Return whether GELU is approximated by tanh."""
        return self.spec.feed_forward.activation == "gelu_tanh"

    def attention(self, qkv: Tensor) -> AttentionArguments:
        """Return the attention of joined projections (tokens, 3 x width)."""
        batch, heads = self.batch, self.spec.self_attention.heads
        q, k, v = qkv.view(qkv.shape[0], 3, heads, qkv.shape[1] // (3 * heads)).unbind(1)
        return AttentionArguments(
            q=q,
            k=k,
            v=v,
            cu_seqlens_q=batch.cu_seqlens,
            cu_seqlens_k=batch.cu_seqlens,
            max_seqlen_q=batch.max_seqlen,
            max_seqlen_k=batch.max_seqlen,
            causal=self.spec.self_attention.causal,
            dropout_p=batch.attention_p,
            dropout_key=batch.dropout_key if batch.attention_p else None,
            dropout_site=Site.ATTENTION.of_layer(self.layer_index),
            bias=None,
            scale=1 / math.sqrt(q.shape[2]),
            tf32=self.tf32,
        )

    def check(self) -> None:
        """Raise UserError for offsets, token indices and dropout that no backend supports, by what the host knows."""
        x, offsets, indices = self.x, self.batch.cu_seqlens, self.batch.token_indices
        if offsets.dtype != torch.int32 or offsets.dim() != 1 or not len(offsets) or not offsets.is_contiguous():
            raise UserError(
                "cu_seqlens must be contiguous int32 of shape (sequences + 1,), not"
                f" {offsets.dtype} {tuple(offsets.shape)}"
            )
        check_devices({"cu_seqlens": offsets}, "x", x.device)
        if indices is not None and (indices.dtype != torch.int64 or indices.dim() != 1 or indices.device != x.device):
            raise UserError(
                f"token_indices must be int64 of shape (rows,) on {x.device}, not {indices.dtype}"
                f" {tuple(indices.shape)}"
            )
        if self.batch.drops and self.batch.dropout_key is None:
            raise UserError("dropout_key is None: it must be int64 (sequences,) where a dropout probability is above 0")

    def check_shapes(self) -> None:
        """Raise UserError for parameters and keys that kernels, which read addresses, would read beyond the end, and
        for invalid probabilities.

        Called inside the operator: a compiled graph may have been traced with other parameters.
        """
        x, parameters, batch = self.x, self.parameters, self.batch
        inner, width = len(parameters.intermediate), x.shape[1]
        shapes = {"intermediate": (inner, width), "output": (width, inner), "intermediate_bias": (inner,)}
        for name, tensor in parameters._asdict().items():
            square = name in ("query", "key", "value", "attention_output")
            shape = shapes.get(name, (width, width) if square else (width,))
            if tensor.shape != shape:
                raise UserError(
                    f"{name} of layer {self.layer_index} has shape {tuple(tensor.shape)}: it must be {shape}"
                )
        if not 0.0 <= batch.attention_p < 1.0:
            raise UserError(f"attention_p={batch.attention_p} must be at least 0 and below 1")
        key, sequences = batch.dropout_key, len(batch.cu_seqlens) - 1
        if key is not None and (key.dtype != torch.int64 or key.shape != (sequences,) or key.device != x.device):
            raise UserError(
                f"dropout_key must be int64 of shape ({sequences},) on {x.device}, one per sequence, not {key.dtype}"
                f" {tuple(key.shape)} on {key.device}"
            )
        dropout = replace(batch, token_indices=None).token_dropout(Site.ATTENTION_OUTPUT, self.layer_index)
        if dropout is not None:
            dropout.check(x)


class GradMask(NamedTuple):
    """The gradients that backward computes, in its order. Those of the projections are joined; those of a LayerNorm
    come with the bias before it as (3, width): weight, bias, bias of the linear layer. Vectors are fp32 and cheap."""

    x: bool
    projections: bool
    projection_biases: bool
    attention_output: bool
    attention_vectors: bool
    intermediate: bool
    intermediate_bias: bool
    output: bool
    output_vectors: bool
