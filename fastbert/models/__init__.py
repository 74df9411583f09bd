"""BERT as published, packed from the embeddings to the loss."""

from fastbert.models.bert.model import BertModel
from fastbert.models.heads.pretraining import BertForMaskedLM, BertForPreTraining
from fastbert.models.heads.sequence import (
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForSequenceClassification,
)
from fastbert.models.heads.tokens import BertForQuestionAnswering, BertForTokenClassification
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
