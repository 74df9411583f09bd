"""Encoders and their heads, packed from the embeddings to the loss.

The models of every architecture are attributes here, under the names that transformers has for them: `BertModel`,
`BertForMaskedLM`, `RobertaForTokenClassification`, ... Their architecture's record makes them.
"""

from typing import TYPE_CHECKING, Any

from fastbert.models import registry
from fastbert.models.outputs import EncoderOutput, LogitsOutput, PreTrainingOutput, SpanOutput

if TYPE_CHECKING:
    from fastbert.models.encoder import EncoderModel as BertModel
    from fastbert.models.heads.pretraining import ForMaskedLM as BertForMaskedLM
    from fastbert.models.heads.pretraining import ForPreTraining as BertForPreTraining
    from fastbert.models.heads.sequence import ForMultipleChoice as BertForMultipleChoice
    from fastbert.models.heads.sequence import ForNextSentencePrediction as BertForNextSentencePrediction
    from fastbert.models.heads.sequence import ForSequenceClassification as BertForSequenceClassification
    from fastbert.models.heads.tokens import ForQuestionAnswering as BertForQuestionAnswering
    from fastbert.models.heads.tokens import ForTokenClassification as BertForTokenClassification

__all__ = [
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


def __getattr__(name: str) -> Any:
    model = registry.find_class(name)
    if model is None:
        raise AttributeError(f"module 'fastbert.models' has no attribute {name!r}")
    return model
