"""The configuration of MPNet."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from fastbert.config import check_size, config_class
from fastbert.errors import UserError
from fastbert.io.untrusted_input import shown
from fastbert.models.activations import ACTIVATIONS
from fastbert.models.roberta.config import RobertaConfig

BUCKETS = 32
"""Buckets of relative positions, of both directions together; rows of the table beyond them are unused."""


@config_class
class MPNetConfig(RobertaConfig):
    """An MPNet encoder (Song et al. 2020): RoBERTa's positions, no segments, and a bias by distance in every layer.

    The fields and defaults are those of `transformers.MPNetConfig`. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "mpnet"
    constants: ClassVar[frozenset[str]] = frozenset({"type_vocab_size", "is_decoder", "classifier_dropout"})
    activations: ClassVar[tuple[str, ...]] = tuple(ACTIVATIONS)

    vocab_size: int = 30527
    type_vocab_size: int = 0
    relative_attention_num_buckets: int = BUCKETS

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.relative_attention_num_buckets
        if isinstance(rows, bool) or not isinstance(rows, int) or rows < BUCKETS:
            raise UserError(
                f"relative_attention_num_buckets={shown(rows)}: the table must have {BUCKETS} rows or more, one per"
                " bucket of distances"
            )
        check_size("relative_attention_num_buckets", rows)
        if self.pad_token_id != 1:
            raise UserError(f"pad_token_id={self.pad_token_id} must be 1, where MPNet's positions begin")

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """Return one of the published sizes of BERT as MPNet has it: RoBERTa's, without segments."""
        return super().preset(name, **{"type_vocab_size": 0, **overrides})

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters as `BertConfig.num_parameters`, with the table of distances."""
        return super().num_parameters(heads) + self.relative_attention_num_buckets * self.num_attention_heads
