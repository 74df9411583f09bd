"""Heads of tasks over a frozen ELMo: they read a learned mix of its layers (Peters et al. 2018, section 3.2 and 3.3).

With `config.bilstm_size` a bidirectional LSTM stands between ELMo and the head, as in the paper's task models. It reads
[x; ELMo], where x is the vector of the word's characters, which no context has changed, and the head reads [h; ELMo'],
where h is the state of the LSTM, and ELMo' a mix with weights of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.models.bilstm import sequence_states
from fastbert.models.elmo.model import ElmoModel
from fastbert.models.heads.base import HiddenStates, ModelWithHead
from fastbert.models.heads.sequence import ForMultipleChoice, ForSequenceClassification
from fastbert.models.heads.tokens import ForQuestionAnswering, ForTokenClassification
from fastbert.models.packed import Packed
from fastbert.packing import PackedBatch


class _OverMix(ModelWithHead):
    """A head over the mix of a frozen ELMo's layers, whose weights and scale are trained with the head."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.base_model.add_mix(beside_states=self.bilstm is not None)

    def _encode(
        self, packed: Packed, token_indices: Tensor | None, output_hidden_states: bool | None
    ) -> tuple[Tensor, HiddenStates]:
        """Return the mix (rows, hidden_size), or with a BiLSTM its outputs and another mix (rows, bilstm_size +
        hidden_size), and with `output_hidden_states` the states of all layers, in the form of the input."""
        if self.bilstm is None:
            return super()._encode(packed, token_indices, output_hidden_states)
        elmo, batch = self.base_model, packed.batch
        assert isinstance(elmo, ElmoModel)
        assert elmo.state_mix is not None
        mix, states = elmo.encode(batch, output_hidden_states=True, inputs_embeds=packed.embeds)
        characters = states[0][:, : elmo.config.hidden_size // 2]  # which the first layer has twice
        h = self.bilstm(elmo.drop(batch, torch.cat((characters, mix), dim=1)), batch)
        x = torch.cat((h, elmo.state_mix(torch.stack(states, dim=1)).to(h.dtype)), dim=1)  # which the head drops
        x = x if token_indices is None else x.index_select(0, token_indices)
        return x, (tuple(packed.restore(state) for state in states) if output_hidden_states else None)

    def _ends(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """Select the states of each sequence, (sequences, bilstm_size + hidden_size): of the BiLSTM and of ELMo, whose
        halves have both read the sequence from one end to the other."""
        size = self.config.bilstm_size
        return torch.cat((sequence_states(x[:, :size], batch), sequence_states(x[:, size:], batch)), dim=1)


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
