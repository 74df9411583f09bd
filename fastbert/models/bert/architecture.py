"""BERT (Devlin et al. 2019) as an architecture record."""

from __future__ import annotations

from typing import Any

from fastbert.config import BertConfig
from fastbert.models.architecture import (
    Architecture,
    ArchitectureSpec,
    EmbeddingsSpec,
    PredictionHeadLayout,
    TransformersLayout,
)
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.pretraining import ForMaskedLM, ForPreTraining
from fastbert.models.heads.sequence import ForNextSentencePrediction
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.ops.encoder_layer.spec import Activation, NormSpec, bert_layer

# transformers' names of GELU by its approximation.
TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")


def bert_spec(config: Any, *, position_offset: int = 0, pooler: bool = True) -> ArchitectureSpec:
    """Return what a BERT-like config, with transformers' field names, describes."""
    activation: Activation = "gelu_tanh" if config.hidden_act in TANH_GELUS else "gelu"
    layer = bert_layer(
        config.hidden_size, config.num_attention_heads, config.intermediate_size, activation, config.layer_norm_eps,
        causal=bool(getattr(config, "is_decoder", False)),
    )  # fmt: skip
    embeddings = EmbeddingsSpec(
        vocab_size=config.vocab_size,
        embedding_size=getattr(config, "embedding_size", config.hidden_size),
        positions=config.max_position_embeddings,
        position_offset=position_offset,
        token_types=config.type_vocab_size,
        norm=NormSpec(config.layer_norm_eps),
    )
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers, pooler=pooler)


BERT = Architecture(
    name="bert",
    title="BERT (Devlin et al. 2019)",
    spec=bert_spec,
    config=BertConfig,
    class_prefix="Bert",
    base_model_prefix="bert",
    heads=(ForPreTraining, ForMaskedLM, ForNextSentencePrediction, *TASK_HEADS, ForCausalLM),
    class_names={"ForCausalLM": "BertLMHeadModel"},
    layouts=(
        TransformersLayout(
            model="BertModel",
            module="transformers.models.bert.modeling_bert",
            prediction_heads=(
                PredictionHeadLayout(
                    name="BertLMPredictionHead", transform="transform", activation="transform_act_fn", norm="LayerNorm"
                ),
            ),
        ),
    ),
)
