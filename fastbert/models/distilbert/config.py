"""The configuration of DistilBERT."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, check_probability, config_class
from fastbert.errors import UserError


@config_class
class DistilBertConfig(BertConfig):
    """A DistilBERT encoder (Sanh et al. 2019): half of BERT's layers, without segments, a pooler and dropout behind
    attention.

    The fields are BERT's; config.json and `transformers.DistilBertConfig` call them `dim`, `n_layers`, `n_heads`,
    `hidden_dim`, ..., which can be read as attributes too. `classifier_dropout` is `seq_classif_dropout`. Raises
    `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "distilbert"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    }
    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size", "layer_norm_eps", "is_decoder"})

    num_hidden_layers: int = 6
    type_vocab_size: int = 0
    classifier_dropout: float | None = 0.2
    qa_dropout: float = 0.1
    """Dropout probability in front of the scores of answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("qa_dropout", self.qa_dropout)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str = "config") -> Self:
        """Make a config of a dictionary in transformers' format, as `BertConfig.from_dict` does."""
        if values.get("sinusoidal_pos_embds"):
            raise UserError(f"{source}: sinusoidal_pos_embds=true, fixed position embeddings, is not supported")
        return super().from_dict(values, source)

    @property
    def attention_output_dropout_prob(self) -> float:
        """Return 0: nothing is dropped behind the projection of attention."""
        return 0.0

    @property
    def token_classifier_dropout(self) -> float:
        """Return the dropout probability in front of a classifier of tokens."""
        return self.hidden_dropout_prob

    @property
    def span_dropout(self) -> float:
        """Return the dropout probability in front of the scores of answers."""
        return self.qa_dropout
