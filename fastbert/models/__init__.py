"""BERT as published, packed from the embeddings to the loss, and what writes text from it."""

from fastbert.models.bert import BertModel
from fastbert.models.generation import Generated, GenerationSettings
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
from fastbert.models.seq2seq import BertForSequenceToSequence
from fastbert.models.sequence_config import SequenceConfig

__all__ = [
    "BertForMaskedLM",
    "BertForMultipleChoice",
    "BertForNextSentencePrediction",
    "BertForPreTraining",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForSequenceToSequence",
    "BertForTokenClassification",
    "BertModel",
    "EncoderOutput",
    "Generated",
    "GenerationSettings",
    "LogitsOutput",
    "PreTrainingOutput",
    "SequenceConfig",
    "SpanOutput",
]
