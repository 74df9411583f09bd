"""ELMo's language models: each direction predicts the word after its own, with one softmax for both."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.elmo.config import ElmoConfig
from fastbert.models.elmo.model import ElmoModel
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.heads.prediction import VocabularyHead
from fastbert.models.initialisation import draw
from fastbert.models.labels import mean_loss
from fastbert.models.outputs import CausalLMOutput
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.packing import IGNORE_INDEX, PackedBatch


@dataclass(eq=False)
class BidirectionalLMOutput(CausalLMOutput):
    """The output of both language models; losses and counts are sums over both, `forward_loss_sum` that of the one from
    left to right. `hidden_states` as in `EncoderOutput`."""

    forward_loss_sum: Tensor | None = None


class OutputWords(VocabularyHead):
    """The softmax over the most frequent words, shared by both directions."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.transform: nn.Identity = nn.Identity()
        self.decoder: nn.Linear = nn.Linear(config.projection_size, config.output_size)


class ForBidirectionalLM(ModelWithHead):
    """An encoder with both language models of ELMo (Peters et al. 2018, section 3.1), trained by their mean loss."""

    with_pooler = False
    config: ElmoConfig
    elmo: ElmoModel

    def add_head(self, config: BertConfig) -> None:
        """Add the softmax."""
        assert isinstance(config, ElmoConfig)
        self.lm_head: OutputWords = OutputWords(config)

    def init_weights(self, seed: int | None = None) -> None:
        """Draw new weights as ELMo does; with `seed` they are reproducible."""
        self.elmo.init_weights(seed)
        decoder = self.lm_head.decoder
        if not decoder.weight.is_meta:
            generator = None if seed is None else torch.Generator().manual_seed(seed + 1)
            draw(nn.init.normal_, decoder.weight, std=1 / math.sqrt(decoder.in_features), generator=generator)
            nn.init.zeros_(decoder.bias)

    def set_vocabulary(self, words: list[str], begin: str = "[CLS]", end: str = "[SEP]") -> None:
        """Set the words that ids stand for, as `ElmoModel.set_vocabulary`."""
        self.elmo.set_vocabulary(words, begin, end)

    def forward(
        self, batch: PackedBatch, *, return_logits: bool | None = None, output_hidden_states: bool | None = None
    ) -> BidirectionalLMOutput:
        """Compute the loss of a `PackedBatch` of ids with the labels of next tokens (`fastbert.data.next_tokens`).

        The words to predict from right to left follow from them: the label of a token is the id of the token before it.
        Ids from `output_size` on are predicted as `unk_token_id`. `loss` is the mean over both directions, an fp32
        scalar. With `return_logits`, or without labels, `logits` (2, rows, output_size) are those of each direction at
        the tokens that predict, all tokens without labels. Raises `UserError` for an input that is not packed.
        """
        if not isinstance(batch, PackedBatch):
            raise UserError(f"ELMo reads a PackedBatch of word ids, not {type(batch).__name__}")
        last, states = self.elmo.encode(batch, output_hidden_states=bool(output_hidden_states))
        output = BidirectionalLMOutput(hidden_states=tuple(states) or None)
        forward, backward = last.chunk(2, dim=1)
        positions, labels = batch.masked_positions, batch.labels
        if positions is None or labels is None:
            output.logits = torch.stack((self.lm_head(forward), self.lm_head(backward)))
            return output
        forward, backward = forward.index_select(0, positions), backward.index_select(0, positions + 1)
        if return_logits:
            output.logits = torch.stack((self.lm_head(forward), self.lm_head(backward)))
        before = batch.input_ids[positions].masked_fill(labels == IGNORE_INDEX, IGNORE_INDEX)
        losses = [
            self.lm_head.loss(x, self.output_words(words)) for x, words in ((forward, labels), (backward, before))
        ]
        both = CrossEntropy(*(getattr(losses[0], name) + getattr(losses[1], name) for name in _SUMS))
        output.loss = mean_loss(both)
        output.mlm_loss_sum, output.mlm_count, output.mlm_correct = both.loss_sum, both.count, both.correct
        output.forward_loss_sum = losses[0].loss_sum
        return output

    def output_words(self, ids: Tensor) -> Tensor:
        """Return the outputs of the softmax that stand for words, both int64 (words,)."""
        return ids.masked_fill(ids >= self.config.output_size, self.config.unk_token_id)

    def check_ranges(self, batch: PackedBatch) -> None:
        """Raise `UserError` for ids outside the vocabulary; on a GPU this is a host-device sync."""
        self.elmo.check_ranges(batch)


_SUMS = ("loss_sum", "count", "correct")
