"""NomicBERT (Nussbaum et al. 2024) as an architecture record: post-LN layers without biases in their linear layers,
gated networks, rotary positions."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fastbert.checkpoints.weights import Weights
from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    TransformersLayout,
)
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.heads.tokens import ForTokenClassification
from fastbert.models.joined_rows import JoinedRows, renamed
from fastbert.models.key_map import KeyMap
from fastbert.models.nomic_bert.config import NomicBertConfig
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

GATED = JoinedRows("mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"))
PROJECTIONS = JoinedRows("self_attn.Wqkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "layers."),
        *((f".attention.self.{name}.", f".self_attn.{name[0]}_proj.") for name in ("query", "key", "value")),
        (".attention.output.dense.", ".self_attn.o_proj."),
        (".attention.output.LayerNorm.", ".post_attention_layernorm."),
        (".intermediate.dense.", ".mlp.gate_up_proj."),
        (".output.dense.", ".mlp.down_proj."),
        (".output.LayerNorm.", ".post_mlp_layernorm."),
        ("cls.predictions.transform.LayerNorm.", "cls.predictions.transform.layer_norm."),
    )
)
# The names in the released files, which transformers writes too.
RELEASED = (
    ("encoder.layers.", "layers."),
    ("emb_ln.", "embeddings.LayerNorm."),
    (".attn.out_proj.", ".self_attn.o_proj."),
    (".attn.Wqkv.", ".self_attn.Wqkv."),
    (".mlp.fc11.", ".mlp.up_proj."),
    (".mlp.fc12.", ".mlp.gate_proj."),
    (".mlp.fc2.", ".mlp.down_proj."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
)


def nomic_spec(config: Any) -> ArchitectureSpec:
    """Return what a NomicBERT config describes."""
    norm = NormSpec(config.layer_norm_eps)
    attention = AttentionSpec(
        config.num_attention_heads, config.head_dim, position="rotary", rotary=config.rotary(), projection_bias=False,
        output_bias=False,
    )  # fmt: skip
    network = FeedForwardSpec(config.intermediate_size, activation_of(config.hidden_act), gated=True, bias=False)
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(
        config.vocab_size, config.hidden_size, positions=0, token_types=config.type_vocab_size, norm=norm
    )
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers, bare_pooler=False)


def from_file(weights: Weights) -> Weights:
    """Return a file's weights by the names of transformers' modules, gate and up projections joined."""
    return GATED.join(PROJECTIONS.split(renamed(weights, RELEASED)))


def to_file(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors as files hold them."""
    return GATED.split_tensors(tensors)


NOMIC_BERT = Architecture(
    name=NomicBertConfig.model_type,
    title="NomicBERT (Nussbaum et al. 2024)",
    spec=nomic_spec,
    config=NomicBertConfig,
    class_prefix="NomicBert",
    base_model_prefix="nomic_bert",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, ForSequenceClassification, ForTokenClassification),
    from_file=from_file,
    to_file=to_file,
    replaces_remote_code=True,
    layouts=(
        TransformersLayout(
            model="NomicBertModel",
            module="transformers.models.nomic_bert.modeling_nomic_bert",
            output="BaseModelOutputWithPooling",
            stack=None,
            layers="layers",
            config_limits_layers=True,
            containers=("self_attn", "mlp"),
            attention="self_attn",
            attention_dropout="attention_dropout",
            attention_output_dropout="post_attention_dropout",
            output_dropout="post_mlp_dropout",
            activation="mlp.act_fn",
            parts=(
                *((name, f"self_attn.{name[0]}_proj") for name in ("query", "key", "value")),
                ("attention_output", "self_attn.o_proj"),
                ("attention_norm", "post_attention_layernorm"),
                ("gate", "mlp.gate_proj"),
                ("up", "mlp.up_proj"),
                ("output", "mlp.down_proj"),
                ("output_norm", "post_mlp_layernorm"),
            ),
            table_ids=("input_ids", "token_type_ids"),
            tables=("embeddings.word_embeddings", "embeddings.token_type_embeddings"),
            rotary="rotary_emb",
            layer_call="rotary",
            prediction_heads=(
                PredictionHeadLayout(
                    name="NomicBertLMPredictionHead", transform="transform", activation="transform_act_fn"
                ),
            ),
        ),
    ),
)
