"""The configurations of RoBERTa and of the models with its architecture."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import BertConfig, config_class


@config_class
class RobertaConfig(BertConfig):
    """A RoBERTa encoder (Liu et al. 2019): BERT's layers, positions that begin behind the padding's.

    The fields and defaults are those of `transformers.RobertaConfig`: roberta-base has `max_position_embeddings=514`,
    for sequences of up to 512 tokens. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "roberta"

    vocab_size: int = 50265
    pad_token_id: int = 1

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes of BERT as RoBERTa has it: one segment, the released models' LayerNorm, and
        positions for 512 tokens behind that of the padding."""
        positions = cls.max_position_embeddings + overrides.get("pad_token_id", cls.pad_token_id) + 1
        shape = {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": positions}
        return super().preset(name, **{**shape, **overrides})

    @property
    def max_sequence_length(self) -> int:
        """Return the number of tokens in the longest sequence: the first positions are those of the padding."""
        return self.max_position_embeddings - self.pad_token_id - 1

    @property
    def prediction_gelu_approximation(self) -> str:
        """Return "none": the masked-LM head has GELU by the error function, whatever `hidden_act` is."""
        return "none"


@config_class
class XLMRobertaConfig(RobertaConfig):
    """An XLM-RoBERTa encoder (Conneau et al. 2020); the fields of `RobertaConfig`."""

    model_type: ClassVar[str] = "xlm-roberta"

    vocab_size: int = 30522


@config_class
class CamembertConfig(RobertaConfig):
    """A CamemBERT encoder (Martin et al. 2020); the fields of `RobertaConfig`."""

    model_type: ClassVar[str] = "camembert"

    vocab_size: int = 30522
