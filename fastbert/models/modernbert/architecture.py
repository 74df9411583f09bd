"""ModernBERT (Warner et al. 2024), and models of its layout such as the Ettin encoders, as an architecture record."""

from __future__ import annotations

from typing import Any, Literal

from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    PredictionSpec,
    TransformersLayout,
)
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.joined_rows import JoinedRows
from fastbert.models.key_map import KeyMap
from fastbert.models.modernbert.config import LOCAL, ModernBertConfig
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

PROJECTIONS = JoinedRows("attn.Wqkv", ("attn.query", "attn.key", "attn.value"))
KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "layers."),
        *((f".attention.self.{name}.", f".attn.{name}.") for name in ("query", "key", "value")),
        (".attention.output.dense.", ".attn.Wo."),
        (".attention.LayerNorm.", ".attn_norm."),
        (".intermediate.LayerNorm.", ".mlp_norm."),
        (".intermediate.dense.", ".mlp.Wi."),
        (".output.dense.", ".mlp.Wo."),
        ("encoder.LayerNorm.", "final_norm."),
        ("embeddings.word_embeddings.", "embeddings.tok_embeddings."),
        ("embeddings.LayerNorm.", "embeddings.norm."),
        ("cls.predictions.transform.dense.", "head.dense."),
        ("cls.predictions.transform.LayerNorm.", "head.norm."),
        ("cls.predictions.decoder.weight", "decoder.weight"),
        ("cls.predictions.bias", "decoder.bias"),
        *((f"{head}.dense.", "head.dense.") for head in ("classifier", "qa_outputs")),
        *((f"{head}.LayerNorm.", "head.norm.") for head in ("classifier", "qa_outputs")),
        *((f"{head}.out_proj.", "classifier.") for head in ("classifier", "qa_outputs")),
    )
)


def modernbert_spec(config: Any) -> ArchitectureSpec:
    """Return what a ModernBERT config describes."""
    norm = NormSpec(config.layer_norm_eps, place="pre", bias=config.norm_bias)
    network = FeedForwardSpec(
        config.intermediate_size, activation_of(config.hidden_act), gated=True, bias=config.mlp_bias
    )
    layers = []
    for index, kind in enumerate(config.layer_types):
        attention = AttentionSpec(
            config.num_attention_heads, config.head_dim, position="rotary", rotary=config.rotary(kind),
            window=config.local_attention // 2 if kind == LOCAL else None,
            projection_bias=config.attention_bias, output_bias=config.attention_bias,
        )  # fmt: skip
        # The embeddings' norm is in front of the first layer's attention.
        layers.append(LayerSpec(config.hidden_size, attention, network, norm if index else None, norm))
    behind = NormSpec(config.layer_norm_eps, bias=config.norm_bias)
    embeddings = EmbeddingsSpec(config.vocab_size, config.hidden_size, positions=0, norm=behind)
    return ArchitectureSpec(embeddings, tuple(layers), final_norm=behind, pooler=False, scales_residuals=True)


def classification_head(config: Any) -> ClassificationHeadSpec:
    """Return the classifier of a config: the masked-LM head's first half, then a linear layer."""
    norm = NormSpec(config.layer_norm_eps, bias=config.norm_bias)
    pooling: Literal["first", "mean"] = "mean" if config.classifier_pooling == "mean" else "first"
    return ClassificationHeadSpec(
        activation_of(config.classifier_activation), bias=config.classifier_bias, norm=norm, pooling=pooling
    )


def prediction(config: Any) -> PredictionSpec:
    """Return the masked-LM head of a config."""
    norm = NormSpec(config.layer_norm_eps, bias=config.norm_bias)
    return PredictionSpec(
        config.hidden_size, activation_of(config.classifier_activation), norm, bias=config.classifier_bias,
        decoder_bias=config.decoder_bias,
    )  # fmt: skip


MODERNBERT = Architecture(
    name=ModernBertConfig.model_type,
    title="ModernBERT (Warner et al. 2024)",
    spec=modernbert_spec,
    config=ModernBertConfig,
    class_prefix="ModernBert",
    base_model_prefix="model",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, *TASK_HEADS),
    classification_head=classification_head,
    transforms_tokens=True,
    prediction=prediction,
    from_file=PROJECTIONS.split,
    to_file=PROJECTIONS.join_tensors,
    layouts=(
        TransformersLayout(
            model="ModernBertModel",
            module="transformers.models.modernbert.modeling_modernbert",
            output="BaseModelOutput",
            positional=("input_ids", "attention_mask", "position_ids", "inputs_embeds"),
            ignored=("token_type_ids",),
            stack=None,
            layers="layers",
            containers=("attn", "mlp"),
            attention="attn",
            attention_dropout="attention_dropout",
            attention_output_dropout="attn.out_drop",
            output_dropout=None,
            inner_dropout="mlp.drop",
            activation="mlp.act",
            parts=(
                ("attention_norm", "attn_norm"),
                ("qkv", "attn.Wqkv"),
                ("attention_output", "attn.Wo"),
                ("output_norm", "mlp_norm"),
                ("intermediate", "mlp.Wi"),
                ("output", "mlp.Wo"),
            ),
            embedding_arguments=("input_ids", "inputs_embeds"),
            embedding_norm="norm",
            embedding_dropout="drop",
            tables=("embeddings.tok_embeddings",),
            table_ids=("input_ids",),
            weight="final_norm",
            final_norm="final_norm",
            rotary="rotary_emb",
            pooler=None,
            layer_call="modernbert",
            prediction_heads=(
                PredictionHeadLayout(name="ModernBertPredictionHead", activation="act", norm="norm", decoder=None),
            ),
            decoder=("ModernBertForMaskedLM", "decoder"),
        ),
    ),
)
