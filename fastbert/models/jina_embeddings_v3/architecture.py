"""jina-embeddings v3 (Sturua et al. 2024) as an architecture record: XLM-RoBERTa's layers with rotary positions.

The folders with adapters of tasks, which ask for remote code, are refused; transformers' conversion of them is read.
"""

from __future__ import annotations

from typing import Any

from fastbert.checkpoints.weights import Weights
from fastbert.models.activations import activation_of
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    TransformersLayout,
)
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.heads.tokens import ForQuestionAnswering, ForTokenClassification
from fastbert.models.jina_embeddings_v3.config import JinaEmbeddingsV3Config
from fastbert.models.joined_rows import JoinedRows, renamed
from fastbert.models.roberta.architecture import KEY_MAP as ROBERTA_NAMES
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

PROJECTIONS = JoinedRows("self_attn.Wqkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
KEY_MAP = ROBERTA_NAMES.then(
    ("encoder.layer.", "layers."),
    *((f".attention.self.{name}.", f".self_attn.{name[0]}_proj.") for name in ("query", "key", "value")),
    (".attention.output.dense.", ".self_attn.o_proj."),
    (".attention.output.LayerNorm.", ".post_attention_layernorm."),
    (".intermediate.dense.", ".mlp.fc1."),
    (".output.dense.", ".mlp.fc2."),
    (".output.LayerNorm.", ".post_mlp_layernorm."),
)
# The names that transformers writes, those of the released code.
RELEASED = (
    ("encoder.layers.", "layers."),
    ("emb_ln.", "embeddings.LayerNorm."),
    (".mixer.out_proj.", ".self_attn.o_proj."),
    (".mixer.Wqkv.", ".self_attn.Wqkv."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
)


def jina_v3_spec(config: Any) -> ArchitectureSpec:
    """Return what a config of jina-embeddings v3 describes."""
    norm = NormSpec(config.layer_norm_eps)
    attention = AttentionSpec(config.num_attention_heads, config.head_dim, position="rotary", rotary=config.rotary())
    network = FeedForwardSpec(config.intermediate_size, activation_of(config.hidden_act))
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(
        config.vocab_size, config.hidden_size, positions=0, token_types=config.type_vocab_size, norm=norm
    )
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers)


def from_file(weights: Weights) -> Weights:
    """Return a file's weights by the names of transformers' modules."""
    return PROJECTIONS.split(renamed(weights, RELEASED))


JINA_EMBEDDINGS_V3 = Architecture(
    name=JinaEmbeddingsV3Config.model_type,
    title="jina-embeddings v3 (Sturua et al. 2024)",
    spec=jina_v3_spec,
    config=JinaEmbeddingsV3Config,
    class_prefix="JinaEmbeddingsV3",
    base_model_prefix="roberta",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, ForSequenceClassification, ForTokenClassification, ForQuestionAnswering),
    from_file=from_file,
    classification_head=ClassificationHeadSpec("tanh", drops_input=True),
    layouts=(
        TransformersLayout(
            model="JinaEmbeddingsV3Model",
            module="transformers.models.jina_embeddings_v3.modeling_jina_embeddings_v3",
            output="BaseModelOutputWithPooling",
            stack=None,
            layers="layers",
            config_limits_layers=True,
            containers=("self_attn", "mlp"),
            attention="self_attn",
            attention_dropout="attention_dropout",
            attention_output_dropout="post_attention_dropout",
            output_dropout="post_mlp_dropout",
            activation="mlp.activation_fn",
            parts=(
                *((name, f"self_attn.{name[0]}_proj") for name in ("query", "key", "value")),
                ("attention_output", "self_attn.o_proj"),
                ("attention_norm", "post_attention_layernorm"),
                ("intermediate", "mlp.fc1"),
                ("output", "mlp.fc2"),
                ("output_norm", "post_mlp_layernorm"),
            ),
            table_ids=("input_ids", "token_type_ids"),
            tables=("embeddings.word_embeddings", "embeddings.token_type_embeddings"),
            rotary="rotary_emb",
            layer_call="rotary",
            prediction_heads=(PredictionHeadLayout(name="JinaEmbeddingsV3LMHead"),),
        ),
    ),
)
