"""The head of left-to-right language models, which predicts the next token at each token."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.heads.prediction import PreTrainingHeads, TiedHead, VocabularyHead
from fastbert.models.labels import USE_VOCABULARY, check_token_labels, integers, mean_loss
from fastbert.models.outputs import CausalLMOutput
from fastbert.models.packed import read_inputs
from fastbert.models.unsupported_arguments import TransformersArguments
from fastbert.packing import IGNORE_INDEX, PackedBatch


class ForCausalLM(ModelWithHead):
    """An encoder that reads left to right (`config.is_decoder`) with a head that predicts the next token.

    The decoder is tied to the token embedding: behind BERT's masked-LM head, or alone as in GPT (Radford et al. 2018).
    """

    with_pooler = False
    accepts_loss_kwargs = True

    @property
    def tied_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the parameters that repeat others."""
        if self.architecture.tied_head:
            return ("lm_head.decoder.weight",)
        return ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")

    def add_head(self, config: BertConfig) -> None:
        """Add the head."""
        if self.architecture.tied_head:
            self.lm_head: TiedHead = TiedHead(config)
        else:
            self.cls: PreTrainingHeads = PreTrainingHeads(config, mlm=True, nsp=False)

    @property
    def head(self) -> VocabularyHead:
        """The head that predicts tokens from hidden states."""
        return self.lm_head if self.architecture.tied_head else self.cls.predictions

    def tie_weights(self) -> None:
        """Share the token embedding's weight, and the bias of BERT's head, with the decoder."""
        self.head.tie(self.get_input_embeddings().weight)

    def _resize_output(self, rows: int) -> None:
        self.head.resize(rows)
        self.tie_weights()

    def can_generate(self) -> bool:
        """Return False: `fastbert.models.causal_generation` generates, not transformers' `generate`."""
        return False

    def forward(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> CausalLMOutput:
        """Compute logits and, from labels, the loss; inputs as in `BertModel`.

        `labels` int64 (B, S), or (tokens,) with a packed batch, are those of the tokens themselves, as in transformers:
        the label of a token is predicted at the token before it, and -100 is ignored. A `PackedBatch` with
        `masked_positions` and `labels` has the tokens at which to predict, and what follows each.

        `logits` are (B, S, vocab_size), or (tokens, vocab_size) of a packed batch. With labels there are none, unless
        `return_logits=True`: then they are those of the tokens that predict one, (labels, vocab_size). In evaluation,
        padded input has logits at every position beside the loss, unless `return_logits=False`.

        The loss, an fp32 scalar, is the mean over the labels, or their sum divided by `num_items_in_batch`. Raises
        `UserError` for labels of the wrong shape, dtype or range, and for an encoder whose attention sees later tokens.
        """
        self.refuse_later_tokens()
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        shifted = None if labels is None else shifted_labels(integers("labels", labels, "one per token"), packed.batch)
        tokens = self._labelled_tokens(packed, shifted, self.config.vocab_size, USE_VOCABULARY, return_logits)
        x, hidden_states = self._encode(packed, tokens.indices, output_hidden_states)
        logits = tokens.restore(self.head(x)) if tokens.returns_logits else None
        output = CausalLMOutput(logits=logits, hidden_states=hidden_states)
        if tokens.targets is not None:
            loss = self.head.loss(tokens.select(x), tokens.targets.labels)
            output.loss = mean_loss(loss, num_items_in_batch)
            output.mlm_loss_sum, output.mlm_count, output.mlm_correct = loss.loss_sum, loss.count, loss.correct
        return output

    def refuse_later_tokens(self) -> None:
        """Raise `UserError` for an encoder whose attention sees the tokens that it should predict."""
        if not self.base_model.causal:
            raise UserError(
                f"{type(self).__name__} predicts the next token, but is_decoder=False lets attention see it: set"
                " is_decoder=True in the config, or use the masked-LM head"
            )

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids, labels and positions of a batch are in range; on a GPU this is a host-device sync.

        Raises `UserError` that names the field and the value.
        """
        self.base_model.check_ranges(batch)
        check_token_labels(batch, self.config.vocab_size)


def shifted_labels(labels: Tensor, batch: PackedBatch) -> Tensor:
    """Return the label of the next token at each token, in the form of `labels`: padded (B, S) or packed (tokens,)."""
    shifted = torch.full_like(labels, IGNORE_INDEX)
    if labels.dim() == 2:
        shifted[:, :-1] = labels[:, 1:]
        return shifted
    if len(labels) != batch.num_tokens or not len(labels):
        return labels  # refused by the check of shapes
    shifted[:-1] = labels[1:]
    lasts = (batch.cu_seqlens[1:].long() - 1) % len(labels)
    return shifted.index_fill(0, lasts, IGNORE_INDEX)
