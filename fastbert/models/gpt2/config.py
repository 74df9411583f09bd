"""The configuration of GPT-2."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_probability, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown

_FIELDS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
    "embedding_dropout_prob": "embd_pdrop",
    "layer_norm_eps": "layer_norm_epsilon",
}


@config_class
class DecoderConfig(BertConfig):
    """The fields that GPT and GPT-2 share: a stack of layers that read left to right, without segments.

    The fields are BERT's; config.json and transformers call them `n_embd`, `n_layer`, `n_head`, `n_positions`, ...,
    which can be read as attributes too. Where `pad_token_id` is missing it is `eos_token_id`, as padding is never read.
    Raises `UserError` for invalid values.
    """

    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size", "is_decoder"})

    hidden_act: str = "gelu_new"
    layer_norm_eps: float = 1e-5
    type_vocab_size: int = 0
    is_decoder: bool = True
    embedding_dropout_prob: float = 0.1
    bos_token_id: int | None = None
    """The token with which texts begin."""
    eos_token_id: int | None = None
    """The token with which texts end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("embedding_dropout_prob", self.embedding_dropout_prob)
        for name in ("bos_token_id", "eos_token_id"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, int) and not isinstance(value, bool) and 0 <= value < self.vocab_size
            ):
                raise UserError(f"{name}={shown(value)} lies outside the vocabulary of {self.vocab_size}")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        if values.get("tie_word_embeddings") is False:
            raise UserError(f"{source}: tie_word_embeddings=false, a head with weights of its own, is not supported")
        eos = values.get("eos_token_id")
        if isinstance(eos, list) and len(eos) == 1:
            values = {**values, "eos_token_id": eos[0]}
        eos, size = values.get("eos_token_id"), values.get("vocab_size", cls.vocab_size)
        if values.get("pad_token_id") is None and isinstance(eos, int) and isinstance(size, int) and 0 <= eos < size:
            values = {**values, "pad_token_id": eos}
        return super().from_dict(values, source)

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters; the language model's head has none of its own."""
        del heads
        width, inner = self.hidden_size, self.intermediate_size
        layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        return (self.vocab_size + self.max_position_embeddings) * width + self.num_hidden_layers * layer + 2 * width


@config_class
class GPT2Config(DecoderConfig):
    """A GPT-2 language model (Radford et al. 2019), by default GPT-2 small: pre-LN layers that read left to right.

    `fastbert.models.gpt2.config.DecoderConfig` describes the fields. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "gpt2"
    attribute_map: ClassVar[dict[str, str]] = {
        **_FIELDS,
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
    }

    vocab_size: int = 50257
    max_position_embeddings: int = 1024

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        for name, idle in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            if values.get(name, idle) is not idle:
                raise UserError(f"{source}: {name}={shown(values[name])} is not supported")
        if values.get("n_inner") is None and "intermediate_size" not in values:
            width = values.get("n_embd", values.get("hidden_size", cls.hidden_size))
            values = {**values, "n_inner": 4 * width if isinstance(width, int) else width}
        return super().from_dict(values, source)
