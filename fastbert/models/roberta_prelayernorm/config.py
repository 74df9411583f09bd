"""The configuration of pre-LN BERT."""

from __future__ import annotations

from typing import ClassVar

from fastbert.config import config_class
from fastbert.models.roberta.config import RobertaConfig


@config_class
class RobertaPreLayerNormConfig(RobertaConfig):
    """A pre-LN encoder; the fields are those of `RobertaConfig`.

    The defaults are those of `transformers.RobertaPreLayerNormConfig`. Raises `UserError` for invalid values.
    """

    model_type: ClassVar[str] = "roberta-prelayernorm"

    def num_parameters(self, heads: bool = False) -> int:
        """Return the number of parameters as `BertConfig.num_parameters`, with those of the norm behind the layers."""
        return super().num_parameters(heads) + 2 * self.hidden_size
