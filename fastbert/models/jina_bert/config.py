"""The configuration of JinaBERT v2."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown

GATES = {"geglu": "gelu", "reglu": "relu"}
_FOREIGN = "qk-post-norm"  # in the names of code for another layout


@config_class
class JinaBertConfig(BertConfig):
    """A JinaBERT v2 encoder (Günther et al. 2023): BERT with slopes by distance (ALiBi) and gated networks.

    In files `model_type` is "bert" with `position_embedding_type` "alibi". Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "jina_bert"
    constants: ClassVar[frozenset[str]] = frozenset({"is_decoder"})

    vocab_size: int = 30528
    max_position_embeddings: int = 8192
    attention_probs_dropout_prob: float = 0.0
    feed_forward_type: str = "geglu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.feed_forward_type not in GATES:
            raise UserError(f"feed_forward_type={shown(self.feed_forward_type)} is not one of {', '.join(GATES)}")

    @classmethod
    def describes(cls, values: dict[str, Any]) -> bool:
        """Return whether a config.json of `model_type` "bert" is of this architecture."""
        return values.get("position_embedding_type") == "alibi"

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of the released folders' dictionary, as `BertConfig.from_dict` does."""
        if _FOREIGN in str(values.get("auto_map")):
            raise UserError(f"{source}: JinaBERT with normalised queries and keys ({_FOREIGN}) is not supported")
        rest = {name: value for name, value in values.items() if name != "position_embedding_type"}
        if rest.get("model_type") == "bert":
            rest["model_type"] = cls.model_type
        extra = dict(rest.get("extra") or {})
        if "auto_map" in values:  # where other libraries find their code
            extra["auto_map"] = values["auto_map"]
        return super().from_dict({**rest, "extra": extra}, source)

    def to_dict(self, architecture: str | None = None) -> dict[str, Any]:
        """Return a dictionary that `from_dict`, and the released code, reads back as the same model."""
        values = super().to_dict(architecture)
        return dict(sorted({**values, "model_type": "bert", "position_embedding_type": "alibi"}.items()))

    @property
    def intermediate_outputs(self) -> int:
        """Return the outputs of the first linear layer of feed-forward networks: both halves."""
        return 2 * self.intermediate_size

    @property
    def intermediate_dropout_prob(self) -> float:
        """Return the dropout probability behind the activation of feed-forward networks."""
        return self.hidden_dropout_prob

    @property
    def feed_forward_dropout_prob(self) -> float:
        """Return 0: nothing is dropped behind feed-forward networks."""
        return 0.0

    @property
    def attention_output_dropout_prob(self) -> float:
        """Return the dropout probability behind the projection of attention."""
        return self.hidden_dropout_prob

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters of the encoder with its pooler, or with `heads` of masked LM too."""
        width, inner = self.hidden_size, self.intermediate_size
        layer = 4 * (width * width + width) + 3 * width * inner + width + 4 * width
        total = (self.vocab_size + self.type_vocab_size + 2) * width + self.num_hidden_layers * layer
        return total + width * width + width + (width * width + 3 * width + self.vocab_size if heads else 0)
