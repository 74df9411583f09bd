"""JinaBERT v2 (Günther et al. 2023) as an architecture record: BERT's layers with ALiBi and gated networks.

Its published code is not part of transformers: the models here follow the published formulas and were not compared with
a release. Nothing of a folder's own code is executed.
"""

from __future__ import annotations

from typing import Any

from fastbert.models.activations import activation_of
from fastbert.models.architecture import Architecture, ArchitectureSpec, EmbeddingsSpec
from fastbert.models.heads.pretraining import ForMaskedLM
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.jina_bert.config import GATES, JinaBertConfig
from fastbert.models.key_map import KeyMap
from fastbert.ops.encoder_layer.spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

KEY_MAP = KeyMap(
    (
        (".attention.output.", ".attention.out."),
        (".intermediate.dense.", ".mlp.gated_layers."),
        (".output.dense.", ".mlp.wo."),
        (".output.LayerNorm.", ".mlp.layernorm."),
        (".attention.out.", ".attention.output."),
    )
)


def jina_bert_spec(config: Any) -> ArchitectureSpec:
    """Return what a JinaBERT config describes."""
    norm = NormSpec(config.layer_norm_eps)
    attention = AttentionSpec(config.num_attention_heads, config.head_dim, position="alibi")
    network = FeedForwardSpec(
        config.intermediate_size, activation_of(GATES[config.feed_forward_type]), gated=True, intermediate_bias=False
    )
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(
        config.vocab_size, config.hidden_size, positions=0, token_types=config.type_vocab_size, norm=norm
    )
    return ArchitectureSpec(embeddings, (layer,) * config.num_hidden_layers)


JINA_BERT = Architecture(
    name=JinaBertConfig.model_type,
    title="JinaBERT v2 (Günther et al. 2023)",
    spec=jina_bert_spec,
    config=JinaBertConfig,
    class_prefix="JinaBert",
    base_model_prefix="bert",
    key_map=KEY_MAP,
    heads=(ForMaskedLM, *TASK_HEADS),
    replaces_remote_code=True,
    describes=JinaBertConfig.describes,
    layouts=(),
)
