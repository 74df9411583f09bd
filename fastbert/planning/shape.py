"""What a pre-training step computes, as numbers: the stacks of layers, tables and heads of each architecture.

Read from a config of `fastbert.models` by its field names, so that nothing here imports torch; newer architectures are
read from their specs (`fastbert.planning.spec_shape`), which do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbert.errors import UserError
from fastbert.planning.stacks import PAIRED, ElmoShape, EncoderShape, Head, ModelShape

if TYPE_CHECKING:
    from fastbert.config import BertConfig

OBJECTIVES = ("mlm+nsp", "mlm", "mlm+sop", "rtd", "ltr", "bilm")
POOLED = ("bert", "roberta-prelayernorm")
"""Architectures whose model for masked tokens has a pooler and a next-sentence head, whatever the objective."""
PRE_NORM = ("gpt2", "roberta-prelayernorm")
"""Architectures of pre-LN layers, which are composed of single operations, with a norm behind the last."""
BY_FIELDS = (
    "bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "roberta-prelayernorm", "gpt2",
    "openai-gpt",
)  # fmt: skip
"""Architectures that the fields of their configs describe: others have more than BERT's layers, tables and heads."""
GENERATOR_SIZE = 0.25


def model_shape(config: BertConfig | Any, objective: str, generator_size: float | None = None) -> ModelShape:
    """Return the stacks that pre-training a model of `config` computes: with `rtd` the generator's, then the
    discriminator's.

    `generator_size` is the width of the generator of `rtd` as a fraction of the discriminator's (default: 0.25).
    Raises `UserError` for an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise UserError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    if config.model_type == "elmo":
        return (_elmo(config),)
    if objective != "rtd" and config.model_type not in BY_FIELDS:
        from fastbert.planning.spec_shape import encoder_of_spec

        return (encoder_of_spec(config, objective),)
    if objective != "rtd":
        return (_encoder(config, objective),)
    fraction = GENERATOR_SIZE if generator_size is None else generator_size
    from fastbert.models.electra.config import generator_config

    narrow: Any = config
    generator = _encoder(generator_config(narrow, fraction), "mlm", name="generator ", shares_embeddings=True)
    return generator, _encoder(config, "rtd")


def _encoder(config: Any, objective: str, *, name: str = "", shares_embeddings: bool = False) -> EncoderShape:
    kind = config.model_type
    causal = bool(config.is_decoder) or objective == "ltr"
    pooler = kind in POOLED and not causal
    decoder = kind in ("gpt2", "openai-gpt")
    head: Head = "detection" if objective == "rtd" else "tied" if decoder else "masked"
    return EncoderShape(
        name=name,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocab=config.vocab_size,
        embedding=config.token_embedding_size,
        positions=config.max_position_embeddings,
        segments=config.type_vocab_size,
        causal=causal,
        head=head,
        pooler=pooler,
        pooler_trains=pooler and objective in PAIRED,
        embedding_norm=not decoder,
        final_norm=kind in PRE_NORM,
        shares_embeddings=shares_embeddings,
        fused=kind not in PRE_NORM,
        pre_norm=kind in PRE_NORM,
        fp32_stream=kind == "gpt2",
        decoder_bias=not decoder,
    )


def _elmo(config: Any) -> ElmoShape:
    return ElmoShape(
        layers=config.num_hidden_layers,
        projection=config.projection_size,
        units=config.intermediate_size,
        characters=config.character_embedding_size,
        filters=tuple(config.filters),
        highways=config.num_highways,
        vocab=config.output_size,
    )
