"""The configuration of ELECTRA, and that of the generator which is trained beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_probability, check_size, config_class

SMALL_EMBEDDING, BASE_WIDTH = 128, 768
_WIDTH_MULTIPLE = 8  # of generators that are narrower than an attention head


@config_class
class ElectraConfig(BertConfig):
    """An ELECTRA encoder (Clark et al. 2020): BERT's layers behind embeddings that may be narrower, without a pooler.

    The fields and defaults are those of `transformers.ElectraConfig`, ELECTRA-small's. `summary_*` belong to multiple
    choice. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "electra"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        *BertConfig.keys_to_ignore_at_inference,
        *(f"rtd_{what}" for what in ("loss_sum", "count", "correct", "flagged", "replaced", "found")),
    ]

    embedding_size: int = 128
    """Width of the embeddings; where it differs from `hidden_size`, a projection follows."""
    hidden_size: int = 256
    num_attention_heads: int = 4
    intermediate_size: int = 1024
    summary_type: str = "first"
    summary_use_proj: bool = True
    summary_activation: str | None = "gelu"
    summary_last_dropout: float = 0.1
    """Dropout probability in front of the scores of choices."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("embedding_size", self.embedding_size)
        check_probability("summary_last_dropout", self.summary_last_dropout)

    @property
    def token_embedding_size(self) -> int:
        """Return the width of the token embedding, and of the masked-LM head whose decoder is tied to it."""
        return self.embedding_size

    @property
    def prediction_gelu_approximation(self) -> str:
        """Return "none": the masked-LM head has GELU by the error function, whatever `hidden_act` is."""
        return "none"

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes of BERT with ELECTRA's embeddings: 128 wide as in ELECTRA-small, as wide as
        the layers from ELECTRA-base on."""
        shape = super().preset(name)
        width = shape.hidden_size
        return replace(shape, **{"embedding_size": width if width >= BASE_WIDTH else SMALL_EMBEDDING, **overrides})

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with the discriminator's head if `heads`."""
        width, narrow = self.hidden_size, self.embedding_size
        tables = self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2
        pooler = width * width + width
        total = super().num_parameters() - pooler - tables * (width - narrow)
        if narrow != width:
            total += narrow * width + width
        return total + (pooler + width + 1 if heads else 0)


def generator_config(config: ElectraConfig, fraction: float) -> ElectraConfig:
    """Return the config of a discriminator's generator, which has `fraction` of its width, above 0 and at most 1.

    Layers, embeddings and the width of an attention head are the discriminator's (Clark et al. 2020, section 3.2); the
    width is rounded to whole heads, or below one head to a multiple of 8.
    """
    width, head = config.hidden_size * fraction, config.head_dim
    heads = max(1, round(width / head))
    hidden = heads * head if width >= head else min(max(1, round(width / _WIDTH_MULTIPLE)) * _WIDTH_MULTIPLE, head)
    inner = max(1, round(config.intermediate_size * hidden / config.hidden_size))
    return replace(config, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner)
