"""GPT-2 (Radford et al. 2019) as an architecture record: pre-LN layers that read left to right, and a final norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastbert.models.architecture import Architecture, ArchitectureSpec, EmbeddingsSpec
from fastbert.models.bert.architecture import TANH_GELUS
from fastbert.models.gpt2.config import DecoderConfig, GPT2Config
from fastbert.models.gpt2.weights import join_projections, split_projections
from fastbert.models.heads.causal import ForCausalLM
from fastbert.models.heads.sequence import ForSequenceClassification
from fastbert.models.heads.tasks import TASK_HEADS
from fastbert.models.key_map import KeyMap
from fastbert.ops.encoder_layer.spec import Activation, AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

PROJECTION_NAMES = tuple(
    (f".attention.self.{projection}.", f".attn.{projection}.") for projection in ("query", "key", "value")
)
KEY_MAP = KeyMap(
    (
        ("encoder.layer.", "h."),
        *PROJECTION_NAMES,
        (".attention.output.dense.", ".attn.c_proj."),
        (".attention.LayerNorm.", ".ln_1."),
        (".intermediate.LayerNorm.", ".ln_2."),
        (".intermediate.dense.", ".mlp.c_fc."),
        (".output.dense.", ".mlp.c_proj."),
        ("encoder.LayerNorm.", "ln_f."),
        ("embeddings.word_embeddings.", "wte."),
        ("embeddings.position_embeddings.", "wpe."),
        ("lm_head.decoder.", "lm_head."),
    )
)


def decoder_spec(config: Any, norm: NormSpec, final_norm: NormSpec | None) -> ArchitectureSpec:
    """Return what a config of GPT or GPT-2 describes, with a norm in front of or behind each sub-layer."""
    activation: Activation = "gelu_tanh" if config.hidden_act in TANH_GELUS else "gelu"
    attention = AttentionSpec(config.num_attention_heads, config.hidden_size // config.num_attention_heads, causal=True)
    network = FeedForwardSpec(config.intermediate_size, activation)
    layer = LayerSpec(config.hidden_size, attention, network, norm, norm)
    embeddings = EmbeddingsSpec(
        vocab_size=config.vocab_size, embedding_size=config.hidden_size, positions=config.max_position_embeddings
    )
    return ArchitectureSpec(
        embeddings,
        (layer,) * config.num_hidden_layers,
        final_norm=final_norm,
        pooler=False,
        scales_residuals=norm.place == "pre",
    )


def gpt2_spec(config: Any) -> ArchitectureSpec:
    """Return what a GPT-2 config describes."""
    return decoder_spec(config, NormSpec(config.layer_norm_eps, place="pre"), NormSpec(config.layer_norm_eps))


def decoder_architecture(
    title: str,
    spec: Callable[[Any], ArchitectureSpec],
    config: type[DecoderConfig],
    class_prefix: str,
    key_map: KeyMap,
) -> Architecture:
    """Return the record of GPT or GPT-2, which differ in their norms and in the names of their files."""
    return Architecture(
        name=config.model_type,
        title=title,
        spec=spec,
        config=config,
        class_prefix=class_prefix,
        base_model_prefix="transformer",
        key_map=key_map,
        head_key_maps={ForSequenceClassification: key_map.then(("classifier.", "score."))},
        from_file=split_projections,
        to_file=join_projections,
        tied_head=True,
        classifier_bias=False,
        heads=(ForCausalLM, *TASK_HEADS),
        class_names={"ForCausalLM": f"{class_prefix}LMHeadModel"},
        layouts=(),
    )


GPT2 = decoder_architecture("GPT-2 (Radford et al. 2019)", gpt2_spec, GPT2Config, "GPT2", KEY_MAP)
