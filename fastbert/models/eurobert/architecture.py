"""EuroBERT (Boizard et al. 2025) as an architecture record: layers as Llama's that attend in both directions."""

from __future__ import annotations

from typing import Any, Literal

from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    EmbeddingsSpec,
    PredictionSpec,
    TransformersLayout,
)
from fastbert.models.eurobert.config import EuroBertConfig
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.heads.tokens import ForTokenClassification
from fastbert.models.joined_rows import JoinedRows
from fastbert.models.key_map import KeyMap
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

GATED = JoinedRows("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "layers."),
        *((f".attention.self.{name}.", f".self_attn.{name[0]}_proj.") for name in ("query", "key", "value")),
        (".attention.output.dense.", ".self_attn.o_proj."),
        (".attention.LayerNorm.", ".input_layernorm."),
        (".intermediate.LayerNorm.", ".post_attention_layernorm."),
        (".intermediate.dense.", ".mlp.gate_up_proj."),
        (".output.dense.", ".mlp.down_proj."),
        ("encoder.LayerNorm.", "norm."),
        ("embeddings.word_embeddings.", "embed_tokens."),
        ("cls.predictions.decoder.weight", "lm_head.weight"),
        ("cls.predictions.bias", "lm_head.bias"),
        ("classifier.dense.", "dense."),
        ("classifier.out_proj.", "classifier."),
    )
)


def eurobert_spec(config: Any) -> ArchitectureSpec:
    """Return what a EuroBERT config describes."""
    norm = NormSpec(config.layer_norm_eps, place="pre", kind="rms_norm", bias=False)
    attention = AttentionSpec(
        config.num_attention_heads, config.head_dim, key_value_heads=config.key_value_heads, position="rotary",
        rotary=config.rotary(), projection_bias=config.attention_bias, output_bias=config.attention_bias,
    )  # fmt: skip
    network = FeedForwardSpec(
        config.intermediate_size, activation_of(config.hidden_act), gated=True, bias=config.mlp_bias
    )
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(config.vocab_size, config.hidden_size, positions=0)
    behind = NormSpec(config.layer_norm_eps, kind="rms_norm", bias=False)
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers, final_norm=behind, pooler=False)


def classification_head(config: Any) -> ClassificationHeadSpec:
    """Return the classifier of a config, "late" pooling takes the mean of logits."""
    poolings: dict[str, Literal["first", "mean", "logits"]] = {"bos": "first", "mean": "mean", "late": "logits"}
    return ClassificationHeadSpec("gelu", pooling=poolings[config.classifier_pooling])


def prediction(config: Any) -> PredictionSpec:
    """Return the masked-LM head of a config: a matmul, whose weight is its own unless tied."""
    return PredictionSpec(config.hidden_size, decoder_bias=config.mlp_bias, tied=config.ties_prediction_head)


EUROBERT = Architecture(
    name=EuroBertConfig.model_type,
    title="EuroBERT (Boizard et al. 2025)",
    spec=eurobert_spec,
    config=EuroBertConfig,
    class_prefix="EuroBert",
    base_model_prefix="model",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, ForSequenceClassification, ForTokenClassification),
    classification_head=classification_head,
    prediction=prediction,
    from_file=GATED.join,
    to_file=GATED.split_tensors,
    replaces_remote_code=True,
    layouts=(
        TransformersLayout(
            model="EuroBertModel",
            module="transformers.models.eurobert.modeling_eurobert",
            output="BaseModelOutput",
            positional=("input_ids", "attention_mask", "position_ids", "inputs_embeds"),
            ignored=("token_type_ids",),
            stack=None,
            layers="layers",
            config_limits_layers=True,
            containers=("self_attn", "mlp"),
            attention="self_attn",
            attention_dropout="attention_dropout",
            attention_output_dropout=None,
            output_dropout=None,
            activation="mlp.act_fn",
            parts=(
                ("attention_norm", "input_layernorm"),
                *((name, f"self_attn.{name[0]}_proj") for name in ("query", "key", "value")),
                ("attention_output", "self_attn.o_proj"),
                ("output_norm", "post_attention_layernorm"),
                ("gate", "mlp.gate_proj"),
                ("up", "mlp.up_proj"),
                ("output", "mlp.down_proj"),
            ),
            embeddings=None,
            tables=("embed_tokens",),
            table_ids=("input_ids",),
            weight="norm",
            final_norm="norm",
            rotary="rotary_emb",
            pooler=None,
            layer_call="rotary",
            decoder=("EuroBertForMaskedLM", "lm_head"),
        ),
    ),
)
