"""The specification of a Transformer layer: static, hashable records without tensors.

A fused kernel states which specs it supports; every other layer is composed of the single operations
(`fastbert.ops.encoder_layer.composition`).
"""

from __future__ import annotations

import functools
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

from fastbert.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
Position = Literal["none", "rotary", "alibi", "relative", "disentangled"]
Similarity = Literal["dot", "additive", "concat"]
# By activation: the name of its GELU in `torch.nn.functional.gelu`.
APPROXIMATIONS = {"gelu": "none", "gelu_tanh": "tanh"}


@dataclass(frozen=True)
class RotarySpec:
    """Rotary position embeddings (Su et al. 2021): the first `width` dims of each head turn with the position."""

    base: float
    """The wavelength's base, theta."""
    width: int
    scaling: tuple[tuple[str, float | str | bool], ...] = ()
    """How frequencies are stretched for longer inputs: transformers' `rope_parameters` as sorted items; empty: not."""

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2:
            raise UserError(f"rotary embeddings of {self.width} dims: they turn pairs, so use an even number from 2 on")
        if not 0 < self.base < float("inf"):
            raise UserError(f"rope_theta={self.base} must be a positive number")


@dataclass(frozen=True)
class AttentionSpec:
    """Attention of `heads` heads of width `head_dim`."""

    heads: int
    head_dim: int
    key_value_heads: int | None = None
    """Heads of keys and values, each shared by a group of query heads; None: one per query head."""
    causal: bool = False
    window: int | None = None
    """Tokens on each side that a query attends to; None: all of its sequence."""
    position: Position = "none"
    """Position encoding inside attention; "none" where positions are added to the embeddings. "alibi" and "relative"
    add the encoder's bias by distance, "disentangled" multiplies with its table of relative positions."""
    rotary: RotarySpec | None = None
    """Of the position "rotary"."""
    position_keys: bool = False
    """True if queries attend to relative positions (c2p of "disentangled")."""
    position_queries: bool = False
    """True if relative positions attend to keys (p2c of "disentangled")."""
    shares_position_projections: bool = False
    """True if the projections of keys and queries project relative positions too."""
    projection_bias: bool = True
    """True if the query, key and value projections have biases."""
    output_bias: bool = True
    scale: float | None = None
    """Factor of the scores; None: 1 / sqrt(head_dim)."""
    similarity: Similarity = "dot"
    """Scores of queries and keys: the scaled dot product, or a perceptron (`fastbert.models.similarity`)."""


@dataclass(frozen=True)
class FeedForwardSpec:
    """Two linear layers with an activation between them; `gated` multiplies it with a second projection (GeGLU)."""

    intermediate_size: int
    activation: Activation = "gelu"
    gated: bool = False
    bias: bool = True
    intermediate_bias: bool | None = None
    """True if the first of them has a bias; None: as `bias` says of both."""

    @property
    def first_width(self) -> int:
        """Return the outputs of the first linear layer: of a gated network twice its width."""
        return self.intermediate_size * (2 if self.gated else 1)

    @property
    def first_bias(self) -> bool:
        """Return whether the first linear layer has a bias."""
        return self.bias if self.intermediate_bias is None else self.intermediate_bias


@dataclass(frozen=True)
class NormSpec:
    """A normalisation behind ("post") or in front of ("pre") its sub-layer."""

    eps: float
    place: Literal["post", "pre"] = "post"
    kind: Literal["layer_norm", "rms_norm"] = "layer_norm"
    bias: bool = True
    """True if LayerNorm has a bias; RMSNorm never has one."""


@dataclass(frozen=True)
class LayerSpec:
    """A layer of `hidden_size` features: attention, optional cross-attention, feed-forward network, and their norms,
    any of which may be absent."""

    hidden_size: int
    self_attention: AttentionSpec
    feed_forward: FeedForwardSpec
    attention_norm: NormSpec | None
    output_norm: NormSpec | None
    cross_attention: AttentionSpec | None = None
    cross_attention_norm: NormSpec | None = None
    encoded: str = field(init=False, repr=False, compare=False, default="")
    """The spec as text, in which form it crosses `torch.library`; `decode_spec` reads it."""
    unfused: str | None = field(init=False, repr=False, compare=False, default=None)
    """The part of the spec that the fused kernels lack; None if they support all of it: BERT's post-LN layers, with
    every bias."""

    def __post_init__(self) -> None:
        attention = self.self_attention
        if attention.heads < 1 or attention.head_dim < 1:
            raise UserError(f"heads={attention.heads} and head_dim={attention.head_dim} must be at least 1")
        if attention.position not in get_args(Position):
            names = ", ".join(map(repr, get_args(Position)))
            raise UserError(f"position={attention.position!r} must be one of {names}")
        if attention.window is not None and attention.window < 1:
            raise UserError(f"window={attention.window} must be at least 1 token on each side, or None for all tokens")
        if (attention.rotary is not None) != (attention.position == "rotary"):
            raise UserError(f"position={attention.position!r} and rotary={attention.rotary}: one needs the other")
        if attention.rotary is not None and attention.rotary.width > attention.head_dim:
            raise UserError(
                f"rotary embeddings of {attention.rotary.width} dims: heads have {attention.head_dim} alone"
            )
        if attention.similarity not in get_args(Similarity):
            names = ", ".join(map(repr, get_args(Similarity)))
            raise UserError(f"similarity={attention.similarity!r} must be one of {names}")
        groups = attention.key_value_heads
        if groups is not None and (groups < 1 or attention.heads % groups):
            raise UserError(f"key_value_heads={groups} must divide heads={attention.heads}")
        if self.feed_forward.activation not in get_args(Activation):
            names = ", ".join(map(repr, get_args(Activation)))
            raise UserError(f"activation={self.feed_forward.activation!r} must be one of {names}")
        fields = {name: value for name, value in asdict(self).items() if name not in ("encoded", "unfused")}
        object.__setattr__(self, "encoded", json.dumps(fields))
        object.__setattr__(self, "unfused", self._unfused())

    @property
    def is_pre_norm(self) -> bool:
        """Return whether this is a layer of LayerNorms in front of both sub-layers, and else as BERT's."""
        norms = (self.attention_norm, self.output_norm)
        if self.cross_attention is not None or any(norm is None or norm.place != "pre" for norm in norms):
            return False
        post = [None if norm is None else replace(norm, place="post") for norm in norms]
        return replace(self, attention_norm=post[0], output_norm=post[1]).unfused is None

    def _unfused(self) -> str | None:
        attention, network, norms = self.self_attention, self.feed_forward, (self.attention_norm, self.output_norm)
        if self.cross_attention is not None:
            return "cross-attention"
        if attention.key_value_heads not in (None, attention.heads) or attention.heads * attention.head_dim != (
            self.hidden_size
        ):
            return "grouped heads, or heads that are not as wide as the layer together"
        if attention.window is not None or attention.position != "none" or attention.scale is not None:
            return "a window, a position encoding inside attention or a scale of its own"
        if attention.similarity != "dot":
            return "a similarity other than the dot product"
        if network.gated or not (
            network.bias and network.first_bias and attention.projection_bias and attention.output_bias
        ):
            return "a gated feed-forward network, or absent biases"
        if network.activation not in APPROXIMATIONS:
            return "an activation other than GELU"
        if any(norm is None or norm.place != "post" or norm.kind != "layer_norm" or not norm.bias for norm in norms):
            return "norms that are not LayerNorms with biases behind both sub-layers"
        return None if norms[0] == norms[1] else "norms of different eps"


@functools.cache
def decode_spec(encoded: str) -> LayerSpec:
    """Return the spec of which `LayerSpec.encoded` is the text."""
    fields: dict[str, Any] = json.loads(encoded)
    for name in ("self_attention", "cross_attention"):
        if fields[name] is not None and fields[name]["rotary"] is not None:
            rotary = fields[name]["rotary"]
            scaling = tuple((key, value) for key, value in rotary["scaling"])
            fields[name]["rotary"] = RotarySpec(**(rotary | {"scaling": scaling}))
    kinds: dict[str, Any] = {
        "self_attention": AttentionSpec, "cross_attention": AttentionSpec, "feed_forward": FeedForwardSpec,
        "attention_norm": NormSpec, "cross_attention_norm": NormSpec, "output_norm": NormSpec,
    }  # fmt: skip
    return LayerSpec(
        **{
            name: kinds[name](**value) if name in kinds and value is not None else value
            for name, value in fields.items()
        }
    )


@functools.cache
def bert_layer(
    hidden_size: int, heads: int, intermediate_size: int, activation: Activation, eps: float, *, causal: bool = False
) -> LayerSpec:
    """Return the spec of BERT's layer (Devlin et al. 2019): post-LN, biases everywhere; cached."""
    norm = NormSpec(eps)
    attention = AttentionSpec(heads, hidden_size // heads, causal=causal)
    return LayerSpec(hidden_size, attention, FeedForwardSpec(intermediate_size, activation), norm, norm)
