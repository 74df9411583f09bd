"""The stack of an encoder of a newer architecture, read from its spec."""

from __future__ import annotations

from typing import Any

from fastbert.models import registry
from fastbert.models.architecture import ArchitectureSpec, RelativeBiasSpec, RelativeEmbeddingsSpec
from fastbert.models.heads.prediction import prediction_spec
from fastbert.models.positions import LONGEST_TABLE
from fastbert.ops.encoder_layer.spec import LayerSpec, NormSpec
from fastbert.planning.stacks import PAIRED, EncoderShape

PAIRS_HEAD = "ForPreTraining"  # the head that trains a pooler beside the masked LM


def encoder_of_spec(config: Any, objective: str) -> EncoderShape:
    """Return the stack that pre-training an encoder of `config` with masked LM computes."""
    record = registry.architecture_of(config)
    spec = record.spec(config)
    layer, embeddings = spec.layers[-1], spec.embeddings
    attention, network = layer.self_attention, layer.feed_forward
    assert layer.output_norm is not None
    head = prediction_spec(config) if record.prediction is None else record.prediction(config)
    applied = _applications(spec)
    pooler = any(kind.__name__ == PAIRS_HEAD for kind in record.heads)
    projection = "matrix" if embeddings.projects_before_norm else "linear"
    projects = embeddings.always_projects or embeddings.embedding_size != layer.hidden_size
    return EncoderShape(
        name="",
        layers=len(applied),
        distinct=len(spec.layers),
        width=layer.hidden_size,
        heads=attention.heads,
        inner=network.intermediate_size,
        vocab=config.vocab_size,
        embedding=embeddings.embedding_size,
        positions=embeddings.positions,
        segments=embeddings.token_types,
        causal=spec.causal,
        head="tied" if head.norm is None else "masked",
        pooler=pooler,
        pooler_trains=pooler and objective in PAIRED,
        embedding_norm=embeddings.norm is not None,
        final_norm=spec.final_norm is not None,
        fused=layer.unfused is None,
        pre_norm=layer.output_norm.place == "pre",
        fp32_stream=layer.output_norm.place == "pre" and _vectors(embeddings.norm) < 2,
        rms_norm=layer.output_norm.kind == "rms_norm",
        gated=network.gated,
        query_width=attention.heads * attention.head_dim,
        key_width=(attention.key_value_heads or attention.heads) * attention.head_dim,
        projection_bias=attention.projection_bias,
        output_bias=attention.output_bias,
        first_bias=network.first_bias,
        second_bias=network.bias,
        norm_vectors=_vectors(layer.output_norm),
        absent_norms=sum((each.attention_norm is None) + (each.output_norm is None) for each in spec.layers),
        windows=tuple(each.self_attention.window for each in applied),
        **_relative(spec, layer),
        rotary_elements=_rotary_elements(spec, config.max_sequence_length),
        convolution=None if spec.convolution is None else (spec.convolution.kernel_size, spec.convolution.groups),
        projection=projection if projects else None,  # type: ignore[arg-type]
        decoder_width=head.width,
        transform_vectors=_vectors(head.norm) + head.bias,
        decoder_bias=head.decoder_bias,
        tied=head.tied,
    )


def _applications(spec: ArchitectureSpec) -> list[LayerSpec]:
    """Return the layers in the order in which they are applied."""
    layers = list(spec.layers) if spec.shared is None else [spec.layers[number] for number in spec.shared]
    return layers + layers[-1:] * spec.last_layer_repeats


def _rotary_elements(spec: ArchitectureSpec, longest: int) -> int:
    """Return the elements of all tables of rotary positions."""
    tables = {layer.self_attention.rotary for layer in spec.layers}
    return min(longest, LONGEST_TABLE) * sum(table.width for table in tables if table is not None)


def _vectors(norm: NormSpec | None) -> int:
    """Return the vectors of a norm, 0 without one."""
    return 0 if norm is None else 2 if norm.kind == "layer_norm" and norm.bias else 1


def _relative(spec: ArchitectureSpec, layer: LayerSpec) -> dict[str, Any]:
    """Return the fields of relative positions."""
    attention = layer.self_attention
    if isinstance(spec.relative, RelativeBiasSpec):
        return {"relative_parameters": spec.relative.rows * attention.heads}
    if not isinstance(spec.relative, RelativeEmbeddingsSpec):
        return {}
    kinds = attention.position_keys + attention.position_queries if attention.position == "disentangled" else 0
    rows = 2 * spec.relative.span
    return {
        "relative_rows": kinds * rows,
        "relative_parameters": (rows + _vectors(spec.relative.norm)) * layer.hidden_size,
        "relative_projections": 0 if attention.shares_position_projections else kinds,
    }
