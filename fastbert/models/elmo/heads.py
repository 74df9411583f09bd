"""Heads of tasks over a frozen ELMo: they read a learned mix of its layers (Peters et al. 2018, section 3.2 and 3.3).

With `config.bilstm_size` a bidirectional LSTM stands between the mix and the head, as in the paper's task models.
"""

from __future__ import annotations

from fastbert.config import BertConfig
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.heads.sequence import ForMultipleChoice, ForSequenceClassification
from fastbert.models.heads.tokens import ForQuestionAnswering, ForTokenClassification


class _OverMix(ModelWithHead):
    """A head over the mix of a frozen ELMo's layers, whose weights and scale are trained with the head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.base_model.add_mix()


class ElmoClassifier(_OverMix, ForSequenceClassification):
    """An encoder with a classifier of sentences, on the words at both ends, or on those of a BiLSTM."""


class ElmoTagger(_OverMix, ForTokenClassification):
    """An encoder with a classifier of words."""


class ElmoReader(_OverMix, ForQuestionAnswering):
    """An encoder with scores of where answers begin and end."""


class ElmoChooser(_OverMix, ForMultipleChoice):
    """An encoder with a score per choice."""


HEADS: dict[type, type] = {
    ForSequenceClassification: ElmoClassifier,
    ForTokenClassification: ElmoTagger,
    ForQuestionAnswering: ElmoReader,
    ForMultipleChoice: ElmoChooser,
}
"""ELMo's own classes for kinds of models with a head."""
