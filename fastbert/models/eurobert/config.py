"""The configuration of EuroBERT."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from fastbert.config import config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.rotary_config import RotaryConfig


@config_class
class EuroBertConfig(RotaryConfig):
    """A EuroBERT encoder (Boizard et al. 2025): pre-norm layers with RMSNorm, SwiGLU networks, rotary positions, and
    heads of keys and values that groups of query heads may share.

    The fields and defaults are those of `transformers.EuroBertConfig`. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "eurobert"
    theta: ClassVar[float] = 10_000.0
    attribute_map: ClassVar[dict[str, str]] = {
        **RotaryConfig.attribute_map,
        "layer_norm_eps": "rms_norm_eps",
        "attention_probs_dropout_prob": "attention_dropout",
    }
    constants: ClassVar[frozenset[str]] = frozenset(
        {"type_vocab_size", "is_decoder", "hidden_dropout_prob", "classifier_dropout"}
    )

    vocab_size: int = 128256
    max_position_embeddings: int = 8192
    type_vocab_size: int = 0
    hidden_act: str = "silu"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    layer_norm_eps: float = 1e-5
    pad_token_id: int = 128001
    num_key_value_heads: int | None = None
    """Heads of keys and values; None: as many as of queries."""
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    classifier_pooling: Literal["late", "mean", "bos"] = "late"

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = self.num_key_value_heads
        if groups is not None and (
            isinstance(groups, bool) or not isinstance(groups, int) or groups < 1 or self.num_attention_heads % groups
        ):
            raise UserError(
                f"num_key_value_heads={shown(groups)} must divide num_attention_heads={self.num_attention_heads}"
            )
        if self.classifier_pooling not in ("late", "mean", "bos"):
            raise UserError(f"classifier_pooling={shown(self.classifier_pooling)} must be late, mean or bos")
        for name in ("attention_bias", "mlp_bias", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name}={shown(getattr(self, name))} must be true or false")

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        return super().from_dict(values, source)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and that of transformers, reads back as the same model."""
        values = super().to_dict(architecture)
        values["num_key_value_heads"] = self.key_value_heads
        return values

    @property
    def key_value_heads(self) -> int:
        """Return the heads of keys and values."""
        return self.num_attention_heads if self.num_key_value_heads is None else self.num_key_value_heads

    @property
    def intermediate_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks: both halves."""
        return 2 * self.intermediate_size

    @property
    def ties_prediction_head(self) -> bool:
        """Return whether the masked-LM head multiplies with the token embedding."""
        return self.tie_word_embeddings

    @property
    def sequence_classifier_dropout(self) -> float:
        """Return 0: nothing is dropped in front of classifiers."""
        return 0.0

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder, or with `heads` with the masked-LM head."""
        width, inner, head_dim = self.hidden_size, self.intermediate_size, self.head_dim
        outputs = (self.num_attention_heads + 2 * self.key_value_heads) * head_dim
        layer = width * (outputs + self.num_attention_heads * head_dim) + 3 * width * inner + 2 * width
        layer += outputs + width if self.attention_bias else 0
        layer += 2 * inner + width if self.mlp_bias else 0
        total = self.vocab_size * width + self.num_hidden_layers * layer + width
        if heads:
            total += (0 if self.tie_word_embeddings else self.vocab_size * width) + self.mlp_bias * self.vocab_size
        return total
