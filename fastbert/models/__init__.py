"""BERT as published, packed from the embeddings to the loss."""

from fastbert.models.bert.model import BertModel
from fastbert.models.heads import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from fastbert.models.outputs import (
    EncoderOutput,
    LogitsOutput,
    PreTrainingOutput,
    SpanOutput,
)

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
