"""The configuration of ModernBERT."""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Literal, Self

from fastbert.config import BertConfig, check_probability, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.activations import ACTIVATIONS
from fastbert.models.rotary import rotary_spec
from fastbert.ops.encoder_layer.spec import RotarySpec

GLOBAL, LOCAL = "full_attention", "sliding_attention"
THETAS = {GLOBAL: 160_000.0, LOCAL: 10_000.0}
# The released sizes: layers, width, heads, width of the feed-forward network.
SIZES = {"base": (22, 768, 12, 1152), "large": (28, 1024, 16, 2624)}
_SMALLER_INNER = 3, 2  # the share of the width that the network of other sizes has, as base


@config_class
class ModernBertConfig(BertConfig):
    """A ModernBERT encoder (Warner et al. 2024): pre-LN layers without biases, gated networks, rotary positions, most
    layers with a window.

    The fields and defaults are those of `transformers.ModernBertConfig`; `layer_types` and `rope_parameters` also read
    the older `global_attn_every_n_layers`, `global_rope_theta`, `local_rope_theta` and `rope_scaling`. Raises
    `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "modernbert"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_act": "hidden_activation",
        "layer_norm_eps": "norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
        "embedding_dropout_prob": "embedding_dropout",
    }
    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size", "is_decoder", "hidden_dropout_prob"})
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)

    vocab_size: int = 50368
    hidden_size: int = 768
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    intermediate_size: int = 1152
    max_position_embeddings: int = 8192
    layer_norm_eps: float = 1e-5
    type_vocab_size: int = 0
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    embedding_dropout_prob: float = 0.0
    mlp_dropout: float = 0.0
    """Dropout probability behind the activation of feed-forward networks."""
    classifier_dropout: float | None = 0.0
    pad_token_id: int = 50283
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    decoder_bias: bool = True
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    classifier_pooling: Literal["cls", "mean"] = "cls"
    local_attention: int = 128
    """Tokens that a layer with a window sees, half of them on each side."""
    layer_types: tuple[str, ...] = ()
    """ "full_attention" or "sliding_attention" per layer; empty: every third is global."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """The rotary embeddings of both types of layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # A config with fewer layers than it was made for has the types of the first ones.
        types = self.layer_types[: self.num_hidden_layers] or _every(3, self.num_hidden_layers)
        object.__setattr__(self, "layer_types", tuple(types))
        ropes = {name: {"rope_type": "default", "rope_theta": theta} for name, theta in THETAS.items()}
        for name, values in self.rope_parameters.items():
            if name not in ropes or not isinstance(values, dict):
                raise UserError(f"rope_parameters={shown(self.rope_parameters)} must have {GLOBAL} and {LOCAL}")
            ropes[name] |= values
        object.__setattr__(self, "rope_parameters", ropes)
        for name in ("mlp_dropout", "embedding_dropout_prob"):
            check_probability(name, getattr(self, name))
        if len(types) != self.num_hidden_layers or not set(types) <= {GLOBAL, LOCAL}:
            raise UserError(
                f"layer_types={shown(list(types))} must name {GLOBAL} or {LOCAL} for each of {self.num_hidden_layers}"
                " layers"
            )
        window = self.local_attention
        if isinstance(window, bool) or not isinstance(window, int) or not 2 <= window < 2**31:
            raise UserError(
                f"local_attention={shown(window)} must be 2 tokens or more, half of them on each side, and below 2**31;"
                f" global layers alone are layer_types={GLOBAL}"
            )
        if self.classifier_pooling not in ("cls", "mean"):
            raise UserError(f"classifier_pooling={shown(self.classifier_pooling)} must be cls or mean")
        if not isinstance(self.classifier_activation, str) or self.classifier_activation not in ACTIVATIONS:
            raise UserError(
                f"classifier_activation={shown(self.classifier_activation)} is not one of {', '.join(ACTIVATIONS)}"
            )
        for name in ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name}={shown(getattr(self, name))} must be true or false")
        for kind in set(types):
            self.rotary(kind)

    def rotary(self, kind: str) -> RotarySpec:
        """Return the rotary embeddings of layers of a type."""
        return rotary_spec(self.rope_parameters[kind], self.head_dim, self.max_position_embeddings)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        values = dict(values)
        for name in ("tie_word_embeddings",):
            if values.get(name) is False:
                raise UserError(f"{source}: {name}=false, a head with weights of its own, is not supported")
        every = values.get("global_attn_every_n_layers", 3)
        layers = values.get("num_hidden_layers", cls.num_hidden_layers)
        types = values.get("layer_types")
        if types is None and isinstance(every, int) and every > 0 and isinstance(layers, int) and layers < 1 << 16:
            types = _every(every, layers)
        values["layer_types"] = tuple(types) if isinstance(types, list | tuple) else ()
        if isinstance(layers, int) and len(values["layer_types"]) > layers:
            raise UserError(f"{source}: layer_types has {len(values['layer_types'])} entries for {layers} layers")
        ropes = values.get("rope_parameters") or {}
        if not isinstance(ropes, dict):
            raise UserError(f"{source}: rope_parameters={shown(ropes)} must be an object")
        values["rope_parameters"] = {kind: _rope(values, kind, ropes.get(kind)) for kind in (GLOBAL, LOCAL)}
        if values.get("classifier_dropout", 0.0) is None:
            values["classifier_dropout"] = 0.0
        return super().from_dict(values, source)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model."""
        values = super().to_dict(architecture)
        values["layer_types"] = list(self.layer_types)
        older = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta", "rope_scaling")
        return {name: value for name, value in values.items() if name not in older}

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes, base or large, or a smaller one of BERT's with ModernBERT's layers."""
        if name in SIZES:
            layers, width, heads, inner = SIZES[name]
        else:
            shape = BertConfig.preset(name)
            layers, width, heads = shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads
            inner = width * _SMALLER_INNER[0] // _SMALLER_INNER[1]
        sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
        return cls(**{**sizes, "intermediate_size": inner, **overrides})

    @property
    def intermediate_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks: both halves."""
        return 2 * self.intermediate_size

    @property
    def attention_output_dropout_prob(self) -> float:
        """Return the dropout probability behind the projection of attention."""
        return self.attention_probs_dropout_prob

    @property
    def intermediate_dropout_prob(self) -> float:
        """Return the dropout probability behind the activation of feed-forward networks."""
        return self.mlp_dropout

    @property
    def prediction_activation(self) -> str:
        """Return the activation in the masked-LM head."""
        return ACTIVATIONS[self.classifier_activation]

    @property
    def span_dropout(self) -> float:
        """Return the dropout probability in front of the scores of answers."""
        return self.sequence_classifier_dropout

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with `heads` with the masked-LM head."""
        width, inner, layers = self.hidden_size, self.intermediate_size, self.num_hidden_layers
        norms = (2 * layers + 1) * width * (2 if self.norm_bias else 1)
        layer = 4 * width * width + 3 * width * inner
        layer += 4 * width if self.attention_bias else 0
        layer += 2 * inner + width if self.mlp_bias else 0
        total = self.vocab_size * width + norms + layers * layer
        if heads:
            total += width * width + width + (self.vocab_size if self.decoder_bias else 0)
        return total


def _every(number: int, layers: int) -> list[str]:
    """Return the types of layers of which every `number`-th is global, the first one too."""
    return [LOCAL if layer % number else GLOBAL for layer in range(layers)]


def _rope(values: dict[str, Any], kind: str, parameters: Any) -> dict[str, Any]:
    """Return the rotary embeddings of a type of layers, from any of the forms of config.json."""
    older = "global_rope_theta" if kind == GLOBAL else "local_rope_theta"
    scaling = values.get("rope_scaling")
    theta = values.get(older)
    merged = {"rope_theta": THETAS[kind] if theta is None else theta, "rope_type": "default"}
    for source in (scaling, parameters):
        if isinstance(source, dict):
            merged |= source
            if "rope_type" not in source and "type" in source:
                merged["rope_type"] = source["type"]
    merged.pop("type", None)
    return merged
