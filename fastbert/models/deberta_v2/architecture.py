"""DeBERTa-v2 and -v3 (He et al. 2021) as an architecture record: BERT's layers with disentangled attention, whose
relative positions are one table of the encoder."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    ConvolutionSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    PredictionSpec,
    RelativeEmbeddingsSpec,
    TransformersLayout,
)
from fastbert.models.deberta_v2.config import CONTENT_TO_POSITION, POSITION_TO_CONTENT, DebertaV2Config
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap
from fastbert.ops.encoder_layer.spec import NormSpec, bert_layer

KEY_MAP = KeyMap(
    (
        (".attention.self.position_key.", ".attention.self.pos_key_proj."),
        (".attention.self.position_query.", ".attention.self.pos_query_proj."),
        *((f".attention.self.{name}.", f".attention.self.{name}_proj.") for name in ("query", "key", "value")),
        ("positions.embeddings.", "encoder.rel_embeddings."),
        ("positions.LayerNorm.", "encoder.LayerNorm."),
        ("encoder.convolution.", "encoder.conv."),
        ("embeddings.projection.", "embeddings.embed_proj."),
        ("classifier.dense.", "pooler.dense."),
        ("classifier.out_proj.", "classifier."),
    )
)


def deberta_spec(config: Any) -> ArchitectureSpec:
    """Return what a DeBERTa config describes."""
    norm = NormSpec(config.layer_norm_eps)
    kinds = config.pos_att_type
    layer = bert_layer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size, activation_of(config.hidden_act),
        config.layer_norm_eps,
    )  # fmt: skip
    attention = layer.self_attention
    if kinds:  # each term adds its variance to the scores
        attention = replace(attention, scale=1 / math.sqrt(attention.head_dim * (1 + len(set(kinds)))))
    relative = None
    if config.relative_attention:
        buckets = config.position_buckets if config.position_buckets > 0 else None
        relative = RelativeEmbeddingsSpec(
            config.relative_span, buckets, config.longest_distance, norm if config.normalises_positions else None
        )
        if kinds:
            attention = replace(
                attention,
                position="disentangled",
                position_keys=CONTENT_TO_POSITION in kinds,
                position_queries=POSITION_TO_CONTENT in kinds,
                shares_position_projections=config.share_att_key,
            )
    embeddings = EmbeddingsSpec(
        vocab_size=config.vocab_size, embedding_size=config.token_embedding_size,
        positions=config.max_position_embeddings if config.position_biased_input else 0,
        token_types=config.type_vocab_size, norm=norm, projects_before_norm=True,
    )  # fmt: skip
    convolution = None
    if config.conv_kernel_size > 0:
        convolution = ConvolutionSpec(config.conv_kernel_size, config.conv_groups, config.conv_act, norm)
    layers = (replace(layer, self_attention=attention),) * config.num_hidden_layers
    return ArchitectureSpec(
        embeddings, layers, relative=relative, convolution=convolution, pooler=False,
        last_layer_repeats=max(config.z_steps - 1, 0),
    )  # fmt: skip


def prediction(config: Any) -> PredictionSpec:
    """Return the masked-LM head of a config; that of the released models is as wide as the layers."""
    width = config.token_embedding_size if config.legacy else config.hidden_size
    return PredictionSpec(width, activation_of(config.hidden_act), NormSpec(config.layer_norm_eps))


def renames_of(config: Any) -> tuple[tuple[str, str], ...]:
    """Return the names of the released models' masked-LM head."""
    if config.legacy:
        return ()
    return (
        ("cls.predictions.transform.", "lm_predictions.lm_head."),
        ("cls.predictions.bias", "lm_predictions.lm_head.bias"),
    )


DEBERTA_V2 = Architecture(
    name=DebertaV2Config.model_type,
    title="DeBERTa-v3 (He et al. 2021)",
    spec=deberta_spec,
    config=DebertaV2Config,
    class_prefix="DebertaV2",
    base_model_prefix="deberta",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, *TASK_HEADS),
    classification_head=lambda config: ClassificationHeadSpec(config.pooler_hidden_act, drops_input=True),
    prediction=prediction,
    renames_of=renames_of,
    layouts=(
        TransformersLayout(
            model="DebertaV2Model",
            module="transformers.models.deberta_v2.modeling_deberta_v2",
            output="BaseModelOutput",
            containers=("attention", "attention.self", "attention.output", "intermediate", "output"),
            parts=(
                *((name, f"attention.self.{name}_proj") for name in ("query", "key", "value")),
                ("position_key", "attention.self.pos_key_proj"),
                ("position_query", "attention.self.pos_query_proj"),
                ("attention_output", "attention.output.dense"),
                ("attention_norm", "attention.output.LayerNorm"),
                ("intermediate", "intermediate.dense"),
                ("output", "output.dense"),
                ("output_norm", "output.LayerNorm"),
            ),
            position_dropout="attention.self.pos_dropout",
            embedding_arguments=("input_ids", "inputs_embeds", "position_ids", "token_type_ids", "mask"),
            embedding_projection="embed_proj",
            relative_embeddings="encoder.rel_embeddings",
            relative_norm="encoder.LayerNorm",
            convolution="encoder.conv",
            pooler=None,
            layer_call="deberta",
            prediction_heads=(
                PredictionHeadLayout(
                    name="LegacyDebertaV2LMPredictionHead",
                    transform="transform",
                    activation="transform_act_fn",
                    norm="LayerNorm",
                ),
                PredictionHeadLayout(
                    name="DebertaV2LMPredictionHead",
                    activation="transform_act_fn",
                    norm="LayerNorm",
                    decoder=None,
                    reads_table=True,
                ),
            ),
        ),
    ),
)
