"""The heads of tasks, which the models of every architecture have."""

from __future__ import annotations

from fastbert.models.heads.sequence import ForMultipleChoice, ForSequenceClassification
from fastbert.models.heads.tokens import ForQuestionAnswering, ForTokenClassification

TASK_HEADS = (ForSequenceClassification, ForTokenClassification, ForQuestionAnswering, ForMultipleChoice)
