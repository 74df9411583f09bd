"""MPNet (Song et al. 2020) as an architecture record: RoBERTa's layers and positions without segments, and a bucketed
bias by distance that all layers share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    RelativeBiasSpec,
    TransformersLayout,
)
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.mpnet.config import BUCKETS, MPNetConfig
from fastbert.models.roberta.architecture import KEY_MAP as ROBERTA_NAMES
from fastbert.ops.encoder_layer.spec import NormSpec, bert_layer

KEY_MAP = ROBERTA_NAMES.then(
    *((f".attention.self.{name}.", f".attention.attn.{name[0]}.") for name in ("query", "key", "value")),
    (".attention.output.dense.", ".attention.attn.o."),
    (".attention.output.LayerNorm.", ".attention.LayerNorm."),
    ("positions.bias.", "encoder.relative_attention_bias."),
)


def mpnet_spec(config: Any) -> ArchitectureSpec:
    """Return what an MPNet config, with transformers' field names, describes."""
    norm = NormSpec(config.layer_norm_eps)
    layer = bert_layer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size, activation_of(config.hidden_act),
        config.layer_norm_eps,
    )  # fmt: skip
    layer = replace(layer, self_attention=replace(layer.self_attention, position="relative"))
    embeddings = EmbeddingsSpec(
        vocab_size=config.vocab_size, embedding_size=config.hidden_size, positions=config.max_position_embeddings,
        position_offset=config.pad_token_id + 1, norm=norm,
    )  # fmt: skip
    relative = RelativeBiasSpec(config.relative_attention_num_buckets, BUCKETS)
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers, relative=relative)


MPNET = Architecture(
    name=MPNetConfig.model_type,
    title="MPNet (Song et al. 2020)",
    spec=mpnet_spec,
    config=MPNetConfig,
    class_prefix="MPNet",
    base_model_prefix="mpnet",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, *TASK_HEADS),
    classification_head=ClassificationHeadSpec("tanh", drops_input=True),
    layouts=(
        TransformersLayout(
            model="MPNetModel",
            module="transformers.models.mpnet.modeling_mpnet",
            output="BaseModelOutputWithPooling",
            positional=("input_ids", "attention_mask", "position_ids", "inputs_embeds"),
            ignored=("token_type_ids",),
            containers=("attention", "attention.attn", "intermediate", "output"),
            attention="attention.attn",
            attention_output_dropout="attention.dropout",
            parts=(
                *((name, f"attention.attn.{name[0]}") for name in ("query", "key", "value")),
                ("attention_output", "attention.attn.o"),
                ("attention_norm", "attention.LayerNorm"),
                ("intermediate", "intermediate.dense"),
                ("output", "output.dense"),
                ("output_norm", "output.LayerNorm"),
            ),
            tables=("embeddings.word_embeddings", "embeddings.position_embeddings"),
            positions="after_padding",
            relative_bias="encoder.relative_attention_bias",
            layer_call="mpnet",
            tuple_keeps_pooler=True,
            prediction_heads=(PredictionHeadLayout(name="MPNetLMHead"),),
        ),
    ),
)
