"""GPT (Radford et al. 2018) as an architecture record: BERT's layers, reading left to right, without segments."""

from __future__ import annotations

from typing import Any

from fastbert.models.architecture import Architecture, ArchitectureSpec
from fastbert.models.gpt2.architecture import HEADS, PROJECTION_NAMES, decoder_spec
from fastbert.models.gpt2.weights import join_projections, split_projections
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.key_map import KeyMap
from fastbert.models.openai_gpt.config import OpenAIGPTConfig
from fastbert.ops.encoder_layer.spec import NormSpec

KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "h."),
        *PROJECTION_NAMES,
        (".attention.output.dense.", ".attn.c_proj."),
        (".attention.output.LayerNorm.", ".ln_1."),
        (".intermediate.dense.", ".mlp.c_fc."),
        (".output.dense.", ".mlp.c_proj."),
        (".output.LayerNorm.", ".ln_2."),
        ("embeddings.word_embeddings.", "tokens_embed."),
        ("embeddings.position_embeddings.", "positions_embed."),
        ("lm_head.decoder.", "lm_head."),
    )
)


def openai_gpt_spec(config: Any) -> ArchitectureSpec:
    """Return what a config of GPT describes."""
    return decoder_spec(config, NormSpec(config.layer_norm_eps), None)


OPENAI_GPT = Architecture(
    name="openai-gpt",
    title="GPT (Radford et al. 2018)",
    spec=openai_gpt_spec,
    config=OpenAIGPTConfig,
    class_prefix="OpenAIGPT",
    base_model_prefix="transformer",
    key_map=KEY_MAP,
    head_key_maps={ForSequenceClassification: KEY_MAP.then(("classifier.", "score."))},
    from_file=split_projections,
    to_file=join_projections,
    tied_head=True,
    classifier_bias=False,
    heads=HEADS,
    class_names={"ForCausalLM": "OpenAIGPTLMHeadModel"},
    layouts=(),
)
