"""Heads over tokens: tagging, and spans that answer questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.fusibility import project
from fastbert.models.heads.base import ClassificationHead, ModelWithHead
from fastbert.models.labels import NUMBER_CLASSES, class_loss, integers
from fastbert.models.outputs import LogitsOutput, SpanOutput
from fastbert.models.packed import Packed, read_inputs
from fastbert.models.padded import PaddedBatch
from fastbert.models.unsupported_arguments import TransformersArguments
from fastbert.packing import IGNORE_INDEX, PackedBatch


class ForTokenClassification(ModelWithHead):
    """An encoder with a linear classifier of each token, for tagging.

    Devlin et al. 2019, section 5.3.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertForTokenClassification.from_pretrained("runs/mine/model", num_labels=5)
        >>> model(**tokenizer("a short one.", return_tensors="pt")).logits.shape
        torch.Size([1, 6, 5])
    """

    with_pooler = False
    takes_bilstm = True
    accepts_loss_kwargs = True

    def add_head(self, config: BertConfig) -> None:
        """Add the classifier."""
        self.classifier: nn.Module = self._token_classifier(config.num_labels)

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
    ) -> LogitsOutput:
        """Compute logits and, from labels, the loss; inputs as in `BertModel`, labels as in `BertForPreTraining`.

        `logits` are (B, S, num_labels), or (tokens, num_labels) of a packed batch. Which of them are returned beside a
        loss, and what the loss is, follows `BertForMaskedLM`. Raises `UserError` for labels of the wrong shape, dtype
        or range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        tokens = self._labelled_tokens(packed, labels, self.config.num_labels, NUMBER_CLASSES, return_logits)
        logits, hidden_states = self._classify_tokens(packed, self.classifier, tokens.indices, output_hidden_states)
        output = LogitsOutput(hidden_states=hidden_states)
        if tokens.returns_logits:
            output.logits = tokens.restore(logits)
        if tokens.targets is not None:
            output.loss = class_loss(tokens.select(logits), tokens.targets.labels, num_items_in_batch)
        return output


class ForQuestionAnswering(ModelWithHead):
    """An encoder with a start and an end score per token, for answers that are spans of the text.

    Devlin et al. 2019, section 4.2.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertForQuestionAnswering.from_pretrained("runs/mine/model")
        >>> output = model(**tokenizer("a one.", "a short one.", return_tensors="pt"))
        >>> output.start_logits.shape, output.end_logits.shape
        (torch.Size([1, 10]), torch.Size([1, 10]))
    """

    with_pooler = False
    takes_bilstm = True

    def __init__(self, config: BertConfig) -> None:
        """Make a model with new weights, from torch's global generator."""
        super().__init__(replace(config, num_labels=2))  # start and end, whatever the config was made for

    def add_head(self, config: BertConfig) -> None:
        """Add the linear layer of both scores."""
        self.qa_outputs: nn.Module = self._token_classifier(2)

    def forward(
        self,
        batch: PackedBatch | Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> SpanOutput:
        """Compute `start_logits` and `end_logits`, fp32 (B, S) or (tokens,), and, from positions, the mean of both
        cross-entropies; inputs as in `BertModel`.

        `start_positions` and `end_positions` are int64 (B,): columns of padded input, tokens from the start of a packed
        sequence. Positions outside the sequence are ignored. Raises `UserError` for positions of the wrong shape or
        dtype.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        x, hidden_states = self._encode(packed, None, output_hidden_states)
        last = self.qa_outputs
        if isinstance(last, ClassificationHead):
            x, last = last.transform(x), last.out_proj
        x = self._token_dropout(packed.batch, x, self.config.span_dropout)
        logits = project(last, x).float()
        loss = None
        if start_positions is not None and end_positions is not None:
            named = (("start_positions", start_positions), ("end_positions", end_positions))
            targets = [_check_positions(name, positions, packed) for name, positions in named]
            loss = torch.stack([_position_loss(packed, logits[:, i], targets[i]) for i in range(2)]).mean()
        start, end = (packed.restore(logits[:, i]) for i in range(2))
        return SpanOutput(loss=loss, start_logits=start, end_logits=end, hidden_states=hidden_states)


def _check_positions(name: str, positions: Tensor, packed: Packed) -> Tensor:
    """Return positions as int64 (sequences,). Raises UserError for another shape or dtype."""
    flat = integers(name, positions, "one position per sequence").reshape(-1)
    rows = packed.shape[0] if packed.shape is not None else len(packed.batch)
    if flat.shape[0] != rows:
        raise UserError(f"{name} have shape {tuple(positions.shape)}, but there are {rows} sequences")
    return flat


def _position_loss(packed: Packed, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits (tokens,) over each sequence's tokens at targets (sequences,)."""
    batch = packed.batch
    if isinstance(batch, PaddedBatch):
        scores = logits.reshape(*batch.shape)
        scores = scores if batch.mask is None else scores.masked_fill(~batch.mask, float("-inf"))
    else:
        if packed.slots is None:
            rows, width = len(batch), batch.max_seqlen
            slots = batch.sequence_ids * width + batch.offsets_in_sequence
        else:
            assert packed.shape is not None
            slots, (rows, width) = packed.slots, packed.shape
        scores = logits.new_full((rows * width,), float("-inf")).index_copy(0, slots, logits).view(rows, width)
    width = scores.shape[1]
    outside = (targets < 0) | (targets >= width)
    # Padding scores -inf: as a target it would make the loss infinite.
    at_target = scores.detach().gather(1, targets.masked_fill(outside, 0)[:, None])[:, 0]
    ignored = outside | (at_target == float("-inf"))
    return F.cross_entropy(scores, targets.masked_fill(ignored, IGNORE_INDEX))
