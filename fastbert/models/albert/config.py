"""The configuration of ALBERT."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_probability, check_size, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.activations import ACTIVATIONS

EMBEDDING_SIZE = 128  # of all released sizes


@config_class
class AlbertConfig(BertConfig):
    """An ALBERT encoder (Lan et al. 2020): BERT's layers with shared parameters behind narrow embeddings.

    The fields and defaults are those of `transformers.AlbertConfig`, ALBERT-xxlarge's; layers of a group, of
    `num_hidden_groups`, have the same parameters. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "albert"
    attribute_map: ClassVar[dict[str, str]] = {"classifier_dropout": "classifier_dropout_prob"}
    constants: ClassVar[frozenset[str]] = frozenset({"is_decoder"})
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)

    vocab_size: int = 30000
    embedding_size: int = EMBEDDING_SIZE
    hidden_size: int = 4096
    num_attention_heads: int = 64
    intermediate_size: int = 16384
    num_hidden_groups: int = 1
    hidden_act: str = "gelu_new"
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    classifier_dropout: float | None = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding_size", "num_hidden_groups"):
            check_size(name, getattr(self, name))
        # A config with fewer layers than it was made for has as many groups at most.
        object.__setattr__(self, "num_hidden_groups", min(self.num_hidden_groups, self.num_hidden_layers))
        check_probability("hidden_dropout_prob", self.hidden_dropout_prob)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        if values.get("inner_group_num", 1) != 1:
            raise UserError(f"{source}: inner_group_num={shown(values['inner_group_num'])} is not supported, only 1")
        groups, layers = values.get("num_hidden_groups"), values.get("num_hidden_layers")
        if isinstance(groups, int) and isinstance(layers, int) and groups > layers:
            raise UserError(f"{source}: num_hidden_groups={groups} must be at most num_hidden_layers={layers}")
        if values.get("tie_word_embeddings") is False:
            raise UserError(f"{source}: tie_word_embeddings=false, a head with weights of its own, is not supported")
        return super().from_dict(values, source)

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes of BERT with ALBERT's embeddings, 128 wide."""
        return super().preset(name, **{"embedding_size": EMBEDDING_SIZE, **overrides})

    @property
    def token_embedding_size(self) -> int:
        """Return the width of the token embedding, and of the masked-LM head whose decoder is tied to it."""
        return self.embedding_size

    @property
    def distinct_layers(self) -> int:
        """Return the number of layers with parameters of their own."""
        return self.num_hidden_groups

    @property
    def shared_layers(self) -> tuple[int, ...]:
        """Return the group of each layer."""
        layers, groups = self.num_hidden_layers, self.num_hidden_groups
        return tuple(int(layer / (layers / groups)) for layer in range(layers))

    @property
    def feed_forward_dropout_prob(self) -> float:
        """Return 0: nothing is dropped behind feed-forward networks."""
        return 0.0

    @property
    def attention_output_dropout_prob(self) -> float:
        """Return the dropout probability behind the projection of attention."""
        return self.hidden_dropout_prob

    @property
    def pair_dropout(self) -> float:
        """Return the dropout probability in front of the head of sentence orders in pre-training."""
        return self.sequence_classifier_dropout

    @property
    def prediction_activation(self) -> str:
        """Return the activation in the masked-LM head."""
        return ACTIVATIONS[self.hidden_act]

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder with its pooler, or with `heads` of `AlbertForPreTraining`."""
        width, inner, narrow = self.hidden_size, self.intermediate_size, self.embedding_size
        tables = (self.vocab_size + self.max_position_embeddings + self.type_vocab_size + 2) * narrow
        layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 4 * width
        total = tables + self.num_hidden_groups * layer + width * width + width + narrow * width + width
        if heads:
            total += width * narrow + 3 * narrow + self.vocab_size + 2 * width + 2
        return total
