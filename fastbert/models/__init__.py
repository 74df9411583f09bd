"""Encoders and their heads, packed from the embeddings to the loss.

The models of every architecture are attributes here, under the names that transformers has for them: `BertModel`,
`BertForMaskedLM`, `RobertaForTokenClassification`, ... Their architecture's record makes them.
"""

from typing import TYPE_CHECKING, Any

from fastbert.models import registry
from fastbert.models.outputs import EncoderOutput, LogitsOutput, PreTrainingOutput, SpanOutput

if TYPE_CHECKING:
    from fastbert.models import classes
    from fastbert.models.classes import *  # noqa: F403
    from fastbert.models.classes import (
        BertForMaskedLM,
        BertForMultipleChoice,
        BertForNextSentencePrediction,
        BertForPreTraining,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
        BertModel,
    )

__all__: list[str] = [
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    "BertModel",
    "EncoderOutput",
    "LogitsOutput",
    "PreTrainingOutput",
    "SpanOutput",
]

if TYPE_CHECKING:
    __all__ += classes.__all__

if not TYPE_CHECKING:  # a type checker would take any name for a model

    def __getattr__(name: str) -> Any:
        model = registry.find_class(name)
        if model is None:
            raise AttributeError(f"module 'fastbert.models' has no attribute {name!r}")
        return model
