"""DistilBERT (Sanh et al. 2019) as an architecture record: BERT's layers under other names, without segments, a pooler
and dropout behind attention."""

from __future__ import annotations

from typing import Any

from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    ClassificationHeadSpec,
    EmbeddingsSpec,
    TransformersLayout,
)
from fastbert.models.bert.architecture import TANH_GELUS
from fastbert.models.distilbert.config import DistilBertConfig
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap
from fastbert.ops.encoder_layer.spec import Activation, NormSpec, bert_layer

EPS = 1e-12  # of all norms; the config does not name it
KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "transformer.layer."),
        (".attention.self.query.", ".attention.q_lin."),
        (".attention.self.key.", ".attention.k_lin."),
        (".attention.self.value.", ".attention.v_lin."),
        (".attention.output.dense.", ".attention.out_lin."),
        (".attention.output.LayerNorm.", ".sa_layer_norm."),
        (".intermediate.dense.", ".ffn.lin1."),
        (".output.dense.", ".ffn.lin2."),
        (".output.LayerNorm.", ".output_layer_norm."),
        ("cls.predictions.transform.dense.", "vocab_transform."),
        ("cls.predictions.transform.LayerNorm.", "vocab_layer_norm."),
        ("cls.predictions.decoder.weight", "vocab_projector.weight"),
        ("cls.predictions.bias", "vocab_projector.bias"),
        ("classifier.dense.", "pre_classifier."),
        ("classifier.out_proj.", "classifier."),
    )
)


def distilbert_spec(config: Any) -> ArchitectureSpec:
    """Return what a DistilBERT config of transformers describes."""
    activation: Activation = "gelu_tanh" if config.activation in TANH_GELUS else "gelu"
    layer = bert_layer(config.dim, config.n_heads, config.hidden_dim, activation, EPS)
    embeddings = EmbeddingsSpec(
        vocab_size=config.vocab_size,
        embedding_size=config.dim,
        positions=config.max_position_embeddings,
        norm=NormSpec(EPS),
    )
    return ArchitectureSpec(embeddings, (layer,) * config.n_layers, pooler=False)


DISTILBERT = Architecture(
    name="distilbert",
    title="DistilBERT (Sanh et al. 2019)",
    spec=distilbert_spec,
    config=DistilBertConfig,
    class_prefix="DistilBert",
    base_model_prefix="distilbert",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, *TASK_HEADS),
    classification_head=ClassificationHeadSpec("relu"),
    layouts=(
        TransformersLayout(
            model="DistilBertModel",
            module="transformers.models.distilbert.modeling_distilbert",
            output="BaseModelOutput",
            positional=("input_ids", "attention_mask", "inputs_embeds", "position_ids"),
            ignored=("token_type_ids",),
            stack="transformer",
            layers="transformer.layer",
            containers=("attention", "ffn"),
            attention="attention",
            heads="n_heads",
            query="attention.q_lin",
            key="attention.k_lin",
            value="attention.v_lin",
            attention_output="attention.out_lin",
            attention_output_dropout=None,
            attention_norm="sa_layer_norm",
            intermediate="ffn.lin1",
            activation="ffn.activation",
            feed_forward_output="ffn.lin2",
            output_dropout="ffn.dropout",
            output_norm="output_layer_norm",
            tables=("embeddings.word_embeddings", "embeddings.position_embeddings"),
            pooler=None,
            layer_call="distilbert",
        ),
    ),
)
