"""Encoders of transformers whose layers a `LayerSpec` describes: the spec of a model, and the modules of its layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from fastbert.errors import UserError
from fastbert.integrations.module_checks import activation_name, dropout_probability
from fastbert.integrations.transformers import layouts
from fastbert.integrations.transformers.spec_layer import SpecLayer, with_activation
from fastbert.models.architecture import ArchitectureSpec, RelativeEmbeddingsSpec, TransformersLayout
from fastbert.models.fusibility import has_hooks
from fastbert.models.positions import PositionReader
from fastbert.models.registry import ARCHITECTURES
from fastbert.models.rotary import frequencies
from fastbert.ops.encoder_layer.arguments import LayerPositions
from fastbert.ops.encoder_layer.spec import AttentionSpec, LayerSpec
from fastbert.packing import PackedBatch

# The keys of a config that say what its layers compute; activations and probabilities are read from the modules.
KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "embedding_size", "layer_norm_eps", "norm_eps", "rms_norm_eps",
    "attention_bias", "mlp_bias", "norm_bias", "layer_types", "local_attention", "rope_parameters",
    "num_hidden_groups", "relative_attention_num_buckets", "relative_attention", "max_relative_positions",
    "position_buckets", "pos_att_type", "share_att_key", "norm_rel_ebd", "position_biased_input", "conv_kernel_size",
    "conv_groups", "conv_act",
)  # fmt: skip
# How far the frequencies of a model in another dtype may be from those of its config.
FREQUENCY_ERROR = 0.01


class EncoderSpec:
    """What a model of transformers computes: the spec of its architecture, and how its layers read positions."""

    def __init__(self, layout: TransformersLayout, model: Any) -> None:
        """Raises `UserError` for a config that no spec describes, and for rotary embeddings that are not its own."""
        record = next(record for record in ARCHITECTURES.values() if layout in record.layouts)
        assert record.config is not None
        values = model.config.to_dict()
        config = record.config.from_dict({key: values[key] for key in KEYS if key in values}, record.name)
        self.layout = layout
        self.spec: ArchitectureSpec = record.spec(config)
        self.reader: PositionReader = PositionReader(self.spec, config.max_position_embeddings)
        self._check_frequencies(model)

    def layer_spec(self, index: int) -> LayerSpec:
        """Return the spec of the application of a layer."""
        # Layers that share parameters have one spec.
        layers = self.spec.layers
        return layers[0] if self.spec.shared is not None else layers[min(index, len(layers) - 1)]

    def layer(self, layer: nn.Module, index: int) -> SpecLayer | None:
        """Return the modules of a layer; None where it computes something else with them."""
        layout, spec = self.layout, self.layer_spec(index)
        attention = layouts.module_at(layer, layout.attention)
        if not _is_standard(attention, spec.self_attention):
            return None
        dropouts = [
            0.0 if path is None else dropout_probability(layouts.module_at(layer, path))
            for path in (layout.attention_output_dropout, layout.output_dropout, layout.inner_dropout)
        ]
        attention_p = _attention_probability(layout, attention)
        if attention_p is None or any(p is None for p in dropouts):
            return None
        if spec.self_attention.position == "disentangled" and layout.position_dropout is not None:
            p = dropout_probability(layouts.module_at(layer, layout.position_dropout))
            if p != dropouts[1]:
                return None
        absent = {"attention_norm"} if spec.attention_norm is None else set()
        if absent and type(layouts.module_at(layer, dict(layout.parts)["attention_norm"])) is not nn.Identity:
            return None
        if spec.self_attention.position != "disentangled" or spec.self_attention.shares_position_projections:
            absent |= {"position_key", "position_query"}
        if not spec.self_attention.position_keys:
            absent.add("position_key")
        if not spec.self_attention.position_queries:
            absent.add("position_query")
        parts = {name: layouts.module_at(layer, path) for name, path in layout.parts if name not in absent}
        activation = layouts.module_at(layer, layout.activation)
        name = activation_name(activation)
        return SpecLayer(
            spec=spec if name is None else with_activation(spec, name),
            parts=parts,
            activation=activation if name is None else None,
            home=layout.module,
            attention_p=attention_p,
            attention_output_p=dropouts[0] or 0.0,
            output_p=dropouts[1] or 0.0,
            inner_p=dropouts[2] or 0.0,
        )

    def positions(self, model: Any, batch: PackedBatch) -> LayerPositions | None:
        """Return what attention reads of a batch's positions, by the tables of a model."""
        layout, relative = self.layout, self.spec.relative
        if not isinstance(relative, RelativeEmbeddingsSpec):
            return self.reader.read(batch, bias=layouts.part(model, layout.relative_bias))
        assert layout.relative_embeddings is not None
        table = layouts.module_at(model, layout.relative_embeddings)
        norm = None if relative.norm is None else layouts.part(model, layout.relative_norm)
        modules = (table,) if norm is None else (table, norm)
        hooked = any(map(has_hooks, modules))  # then parameters alone do not decide the table
        return self.reader.read(
            batch,
            embeddings=lambda: table.weight if norm is None else norm(table.weight),
            sources=() if hooked else tuple(parameter for module in modules for parameter in module.parameters()),
        )

    def _check_frequencies(self, model: Any) -> None:
        """Raise UserError for rotary embeddings whose frequencies are not those of the config."""
        rotary = layouts.part(model, self.layout.rotary)
        if rotary is None:
            return
        for name, buffer in rotary.named_buffers():
            if not name.endswith("inv_freq") or "original" in name or buffer.is_meta:
                continue
            kind = name.removesuffix("inv_freq").rstrip("_")
            types = getattr(model.config, "layer_types", None)
            index = types.index(kind) if kind and types else 0
            table = self.layer_spec(index).self_attention.rotary
            expected = None if table is None else frequencies(table)[0].to(buffer.device)
            if (
                expected is None
                or expected.shape != buffer.shape
                or not torch.allclose(buffer.float(), expected, rtol=FREQUENCY_ERROR, atol=0)
            ):
                raise UserError(f"{self.layout.rotary}.{name} has other frequencies than the config's rope_parameters")


def applications(layout: TransformersLayout, model: Any) -> list[Any]:
    """Return the layers in the order in which the encoder applies them."""
    layers = list(layouts.stack(layout, model)[1])
    if layout.groups is None:
        return layers[: model.config.num_hidden_layers] if layout.config_limits_layers else layers
    number, groups = model.config.num_hidden_layers, model.config.num_hidden_groups
    return [
        layer for i in range(number) for layer in layouts.module_at(layers[int(i / (number / groups))], layout.groups)
    ]


def _attention_probability(layout: TransformersLayout, attention: Any) -> float | None:
    """Return the dropout probability of attention, 0 in inference; None where it is unknown or 1."""
    dropout: Any = getattr(attention, layout.attention_dropout)
    if isinstance(dropout, nn.Module) and not layout.attention_asks_training:
        return dropout_probability(dropout)
    probability: Any = dropout.p if isinstance(dropout, nn.Module) else dropout
    p = float(probability) if attention.training else 0.0
    return p if p < 1.0 else None


def _is_standard(attention: Any, spec: AttentionSpec) -> bool:
    """Return whether the attributes of an attention are those that its spec says."""
    values, size = attention.__dict__, spec.head_dim
    return (
        values.get("scaling", size**-0.5) == size**-0.5
        and not values.get("is_causal", False)
        and values.get("head_dim", size) == size
        and values.get("attention_head_size", size) == size
        and values.get("num_attention_heads", spec.heads) == spec.heads
        and values.get("sliding_window") == (None if spec.window is None else spec.window + 1)
        and values.get("share_att_key", False) in (False, spec.shares_position_projections)
    )
