"""GPT (Radford et al. 2018) as an architecture record: BERT's layers, reading left to right, without segments."""

from __future__ import annotations

from typing import Any

from fastbert.models.architecture import ArchitectureSpec
from fastbert.models.gpt2.architecture import PROJECTION_NAMES, decoder_architecture, decoder_spec
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


OPENAI_GPT = decoder_architecture("GPT (Radford et al. 2018)", openai_gpt_spec, OpenAIGPTConfig, "OpenAIGPT", KEY_MAP)
