"""The heads of pre-training: masked LM, alone or with next-sentence prediction."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.models.architecture import PredictionSpec
from fastbert.models.fusibility import project
from fastbert.models.heads.base import LabelledTokens, ModelWithHead
from fastbert.models.heads.prediction import PreTrainingHeads
from fastbert.models.labels import (
    IS_NEXT,
    USE_VOCABULARY,
    check_labels,
    check_token_labels,
    class_labels,
    mean_loss,
)
from fastbert.models.outputs import LogitsOutput, MaskedLMOutput, PreTrainingOutput
from fastbert.models.packed import read_inputs
from fastbert.models.unsupported_arguments import TransformersArguments
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.packing import IGNORE_INDEX, PackedBatch


class MaskedLanguageModel(ModelWithHead):
    """A model with the masked-LM head, whose decoder is tied to the token embedding."""

    cls: PreTrainingHeads

    @property
    def tied_keys(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the parameters that repeat others."""
        return tuple(f"cls.predictions.{name}" for name in self.cls.predictions.tied_names)

    @property
    def prediction(self) -> PredictionSpec | None:
        """Return the masked-LM head of the architecture, None for BERT's."""
        return None if self.architecture.prediction is None else self.architecture.prediction(self.config)

    def add_head(self, config: BertConfig) -> None:
        """Add the masked-LM head."""
        self.cls = PreTrainingHeads(config, mlm=True, nsp=False, spec=self.prediction)

    def tie_weights(self) -> None:
        """Share the token embedding's weight and the head's bias with the decoder."""
        self.cls.predictions.tie(self.get_input_embeddings().weight)

    def _resize_output(self, rows: int) -> None:
        self.cls.predictions.resize(rows)
        self.tie_weights()

    def _predict(self, tokens: LabelledTokens, x: Tensor) -> tuple[Tensor | None, CrossEntropy | None]:
        """Return the logits to return and the loss, each None without, of hidden states (rows, hidden_size)."""
        head, targets = self.cls.predictions, tokens.targets
        logits = tokens.restore(head(x)) if tokens.returns_logits else None
        return logits, None if targets is None else head.loss(tokens.select(x), targets.labels)

    def check_ranges(self, batch: PackedBatch) -> None:
        """Check that all ids, labels and masked positions of a batch are in range; on a GPU this is a host-device sync.

        Raises `UserError` that names the field and the value.
        """
        self.base_model.check_ranges(batch)
        check_token_labels(batch, self.config.vocab_size)
        check_labels("next_sentence_label", batch.next_sentence_label, 2, "classes")


class ForPreTraining(MaskedLanguageModel):
    """An encoder with both heads of pre-training, masked LM and next-sentence prediction.

    Devlin et al. 2019, section 3.1. The decoder of the masked LM is tied to the token embedding.

    Example:
        >>> import fastbert
        >>> import torch
        >>> model = fastbert.BertForPreTraining.from_pretrained("runs/mine/model")
        >>> ids = torch.tensor([[2, 5, 4, 7, 3]])
        >>> labels = torch.tensor([[-100, -100, 6, -100, -100]])
        >>> output = model(input_ids=ids, labels=labels, next_sentence_label=torch.tensor([0]))
        >>> output.loss.dtype, output.prediction_logits.shape, output.seq_relationship_logits.shape
        (torch.float32, torch.Size([1, 5, 9]), torch.Size([1, 2]))
    """

    def add_head(self, config: BertConfig) -> None:
        """Add both heads."""
        self.cls: PreTrainingHeads = PreTrainingHeads(config, mlm=True, nsp=True, spec=self.prediction)

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
        next_sentence_label: Tensor | None = None,
        return_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> PreTrainingOutput:
        """Compute the logits of both heads and, from labels, the sum of both mean losses; inputs as in `BertModel`.

        Labels come with the `PackedBatch` (`masked_positions`, `labels`, `next_sentence_label`), or as `labels` int64
        (B, S), or (tokens,) with a packed batch, with -100 at tokens without a label, and `next_sentence_label` int64
        (B,): 0 = B follows A, 1 = it does not, -100 = no label. `prediction_logits` are as the logits of
        `BertForMaskedLM`, `seq_relationship_logits` (B, 2). Raises `UserError` for labels of the wrong shape, dtype or
        range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        tokens = self._labelled_tokens(packed, labels, self.config.vocab_size, USE_VOCABULARY, return_logits)
        pooled, x, hidden_states = self._encode_pooled(packed, tokens.indices, output_hidden_states)
        logits, mlm = self._predict(tokens, x)
        pooled = self._head_dropout(packed.batch, pooled, self.config.pair_dropout)
        nsp_logits = project(self.cls.seq_relationship, pooled)
        output = PreTrainingOutput(
            prediction_logits=logits, seq_relationship_logits=nsp_logits, hidden_states=hidden_states
        )
        losses = []
        if mlm is not None:
            output.mlm_loss_sum, output.mlm_count, output.mlm_correct = mlm.loss_sum, mlm.count, mlm.correct
            losses.append(mean_loss(mlm))
        target = packed.batch.next_sentence_label if next_sentence_label is None else next_sentence_label
        if target is not None:
            target = class_labels("next_sentence_label", target, nsp_logits.shape[0], 2, IS_NEXT)
            output.nsp_loss_sum = F.cross_entropy(nsp_logits.float(), target, reduction="sum")
            # Sequences labelled -100 are never counted as correct: no class has that number.
            output.nsp_count = (target != IGNORE_INDEX).sum()
            output.nsp_correct = (nsp_logits.argmax(-1) == target).sum()
            losses.append(output.nsp_loss_sum / output.nsp_count.clamp(min=1))
        if losses:
            output.loss = torch.stack(losses).sum()
        return output


class ForMaskedLM(MaskedLanguageModel):
    """An encoder with the masked-LM head, whose decoder is tied to the token embedding.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertForMaskedLM.from_pretrained("runs/mine/model")
        >>> inputs = tokenizer("a [MASK] one.", return_tensors="pt")
        >>> logits = model(**inputs).logits
        >>> logits.shape
        torch.Size([1, 6, 9])
        >>> words = tokenizer.convert_ids_to_tokens(logits[0, 2].topk(3).indices)  # the best first
        >>> len(words)
        3
    """

    with_pooler = False
    accepts_loss_kwargs = True
    counts_predictions = False
    """Set in pre-training: outputs are then of the class `MaskedLMOutput`, for means over several batches."""

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

        `logits` are (B, S, vocab_size), or (tokens, vocab_size) of a packed batch. With labels there are none, unless
        `return_logits=True`: then they are those of the tokens with a label, (labels, vocab_size). In evaluation,
        padded input has logits at every position beside the loss, unless `return_logits=False`. They have the dtype of
        the parameters, or of autocast.

        The loss, an fp32 scalar, is the mean over the labels, or their sum divided by `num_items_in_batch`, a number or
        a scalar. Raises `UserError` for labels of the wrong shape, dtype or range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        tokens = self._labelled_tokens(packed, labels, self.config.vocab_size, USE_VOCABULARY, return_logits)
        x, hidden_states = self._encode(packed, tokens.indices, output_hidden_states)
        logits, loss = self._predict(tokens, x)
        mean = None if loss is None else mean_loss(loss, num_items_in_batch)
        if loss is None or not self.counts_predictions:
            return LogitsOutput(loss=mean, logits=logits, hidden_states=hidden_states)
        return MaskedLMOutput(
            loss=mean,
            logits=logits,
            hidden_states=hidden_states,
            mlm_loss_sum=loss.loss_sum,
            mlm_count=loss.count,
            mlm_correct=loss.correct,
        )
