"""Heads over sequences: next-sentence prediction, classification, regression, multiple choice."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.fusibility import is_plain, project
from fastbert.models.heads.base import ModelWithHead
from fastbert.models.heads.prediction import PreTrainingHeads
from fastbert.models.labels import (
    IS_NEXT,
    NUMBER_CLASSES,
    check_multi_label,
    class_labels,
    class_loss,
    scale_to_items,
)
from fastbert.models.outputs import LogitsOutput
from fastbert.models.packed import Packed, columns_matter, read_inputs, relative_positions
from fastbert.models.unsupported_arguments import TransformersArguments, refuse_arguments
from fastbert.packing import PackedBatch


class ForNextSentencePrediction(ModelWithHead):
    """An encoder with the next-sentence head.

    Example:
        >>> import fastbert
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertForNextSentencePrediction.from_pretrained("runs/mine/model")
        >>> model(**tokenizer("a short one.", "one", return_tensors="pt")).logits.shape
        torch.Size([1, 2])
    """

    accepts_loss_kwargs = True

    def add_head(self, config: BertConfig) -> None:
        """Add the next-sentence head."""
        self.cls: PreTrainingHeads = PreTrainingHeads(config, mlm=False, nsp=True)

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
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> LogitsOutput:
        """Compute `logits` (B, 2), class 0 = B follows A, and, from labels, the loss; inputs as in `BertModel`.

        `labels` int64 (B,), or `next_sentence_label` of the `PackedBatch`, with -100 for sequences without a label. The
        loss is that of `BertForMaskedLM`. Raises `UserError` for labels of the wrong shape, dtype or range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        pooled, hidden_states = self._encode_sequences(packed, output_hidden_states)
        logits = project(self.cls.seq_relationship, pooled)
        target = packed.batch.next_sentence_label if labels is None else labels
        loss = None
        if target is not None:
            name = "next_sentence_label" if labels is None else "labels"
            target = class_labels(name, target, logits.shape[0], 2, IS_NEXT)
            loss = class_loss(logits, target, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=hidden_states)


class ForSequenceClassification(ModelWithHead):
    """An encoder with a classifier or regressor of sequences.

    The head reads each sequence's first token (Devlin et al. 2019, section 4.1). The config's `problem_type` selects
    the loss: `"regression"` is the squared error, `"single_label_classification"` the cross-entropy and
    `"multi_label_classification"` the binary cross-entropy of each class. If it is None, `num_labels=1` or floating-
    point labels mean regression, everything else one class per sequence.

    Example:
        >>> import fastbert
        >>> import torch
        >>> tokenizer = fastbert.load_tokenizer("runs/mine/model")
        >>> model = fastbert.BertForSequenceClassification.from_pretrained("runs/mine/model", num_labels=3)
        >>> inputs = tokenizer(["a short one.", "one"], padding=True, return_tensors="pt")
        >>> output = model(**inputs, labels=torch.tensor([0, 2]))
        >>> output.logits.shape, output.loss.shape
        (torch.Size([2, 3]), torch.Size([]))
    """

    accepts_loss_kwargs = True
    takes_bilstm = True

    @property
    def with_pooler(self) -> bool:  # type: ignore[override]
        """Return whether the classifier reads pooled first tokens."""
        return self.architecture.head_spec(self.config) is None

    def add_head(self, config: BertConfig) -> None:
        """Add the classifier."""
        self.classifier: nn.Module = self._classifier(config.num_labels)

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
        num_orders: int = 1,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> LogitsOutput:
        """Compute `logits` (B, num_labels) and, from labels, the loss; inputs as in `BertModel`.

        With `num_orders`, each so many adjacent sequences are one text pair in different orders, whose representations
        are added in front of the classifier (Radford et al. 2018, section 3.3): B is then the number of pairs.

        `labels` are int64 (B,), -100 without a label; for regression (B, num_labels) numbers, (B,) if `num_labels=1`;
        for several classes at once (B, num_labels) of 0 to 1. The loss is that of `BertForMaskedLM`, in fp32. Raises
        `UserError` for labels of the wrong shape, dtype or range.
        """
        packed = read_inputs(
            self, batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds,
            past_key_values=past_key_values, **unsupported,
        )  # fmt: skip
        if num_orders != 1 and (num_orders < 1 or len(packed.batch) % num_orders):
            raise UserError(
                f"{len(packed.batch)} sequences cannot be split into pairs in num_orders={num_orders} orders"
            )
        logits, hidden_states = self._classify_sequences(packed, self.classifier, output_hidden_states, num_orders)
        loss = None if labels is None else self._loss(logits.float(), labels, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=hidden_states)

    def exact_logits(self, batch: PackedBatch) -> Tensor:
        """Return the logits of a batch, fp32 (sequences, num_labels).

        The last matmul is fp32 at least, so that models in 16 bits do not round different scores to the same. Raises
        `UserError` as calling the model does.
        """
        packed = read_inputs(self, batch, None, None, None, None, None)
        x, last, _ = self._classifier_input(packed, self.classifier, None)
        if x.dtype == torch.float32 or not is_plain(last):
            return project(last, x).float()
        # In fp64, so that rounding hides how torch divides the work over its vector units.
        return (x.double() @ last.weight.double().T + last.bias.double()).float()

    def rank(self, query: str, texts: Sequence[str], tokenizer: Any, **options: Any) -> list[Any]:
        """Return texts by their relevance to a query, best first, from a cross-encoder: a model with one label.

        Each is a `fastbert.reranking.rank.Ranked`: the text's `index`, its `score` and the `text`; equal scores keep
        their order. Options: `top`, `activation` "sigmoid" or "identity" (default: as config.json says, else
        "sigmoid"), `max_length` in tokens, `batch_tokens`, `progress`. `fastbert.CrossEncoder` reads them from a
        folder. Raises `UserError` for several labels, an empty query, texts that are not strings, and a tokenizer whose
        vocabulary is not the model's.
        """
        # Ranking builds on models, so the package's root, which is always loaded, calls it.
        ranked: list[Any] = sys.modules["fastbert"].rank_texts(self, query, texts, tokenizer, **options)
        return ranked

    def _loss(self, logits: Tensor, labels: Tensor, items: Tensor | int | None) -> Tensor:
        problem = self.config.problem_type
        if not isinstance(labels, Tensor):
            raise UserError(f"labels must be a tensor, not {type(labels).__name__}")
        if problem is None and (self.config.num_labels == 1 or labels.is_floating_point()):
            problem = "regression"
        if problem not in ("regression", "multi_label_classification"):
            classes = class_labels("labels", labels, logits.shape[0], logits.shape[1], NUMBER_CLASSES)
            return class_loss(logits, classes, items)
        one_number = logits.shape[1] == 1 and labels.numel() == logits.numel()
        if labels.shape != logits.shape and not one_number:
            raise UserError(
                f"labels have shape {tuple(labels.shape)}: {problem} takes {tuple(logits.shape)}, one number for each"
                " of num_labels"
            )
        targets = labels.reshape(logits.shape).float()
        if problem == "regression":
            return scale_to_items(F.mse_loss(logits, targets), labels.numel(), items)
        check_multi_label(targets)
        return scale_to_items(F.binary_cross_entropy_with_logits(logits, targets), labels.numel(), items)


class ForMultipleChoice(ModelWithHead):
    """An encoder with one score per choice.

    The loss is that of a softmax over a question's choices (Devlin et al. 2019, section 4.4).

    Example:
        >>> import fastbert
        >>> import torch
        >>> model = fastbert.BertForMultipleChoice.from_pretrained("runs/mine/model")
        >>> ids = torch.tensor([[[2, 5, 3, 6, 3], [2, 5, 3, 7, 3]]])
        >>> output = model(input_ids=ids, labels=torch.tensor([1]))
        >>> output.logits.shape
        torch.Size([1, 2])
    """

    accepts_loss_kwargs = True
    takes_bilstm = True

    def add_head(self, config: BertConfig) -> None:
        """Add the classifier, behind the encoder's pooler where it has one."""
        self.classifier: nn.Linear | nn.Module = (
            nn.Linear(config.hidden_size, 1) if self.base_model.pooler else self._classifier(1)
        )

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
        num_choices: int | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        past_key_values: None = None,
        **unsupported: Unpack[TransformersArguments],
    ) -> LogitsOutput:
        """Compute `logits` (questions, choices) and, from labels, the loss.

        `input_ids`, `attention_mask`, `token_type_ids` and `position_ids` are (questions, choices, length),
        `inputs_embeds` (questions, choices, length, hidden_size). A `PackedBatch` holds the choices of a question next
        to each other and needs `num_choices`. `labels` are int64 (questions,), the right choice from 0. The loss is
        that of `BertForMaskedLM`. Raises `UserError` for other shapes.
        """
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        ids = batch if isinstance(batch, Tensor) else input_ids
        name, padded = ("inputs_embeds", inputs_embeds) if ids is None else ("input_ids", ids)
        if padded is not None:
            axes = ("questions", "choices", "length", *(("hidden_size",) if ids is None else ()))
            if padded.dim() != len(axes):
                raise UserError(f"{name} must have shape ({', '.join(axes)}), not {tuple(padded.shape)}")
            num_choices = padded.shape[1]
        if not num_choices:
            raise UserError("a PackedBatch of choices needs num_choices, the number of choices per question")
        positions = relative_positions(self, ids, position_ids)
        flat: Iterable[Any] = (
            tensor.flatten(0, 1) if isinstance(tensor, Tensor) and tensor.dim() >= 3 else tensor
            for tensor in (batch, input_ids, attention_mask, token_type_ids, positions, inputs_embeds)
        )
        packed = Packed(*flat, columns_matter=columns_matter(self))
        if not packed.came_padded and len(packed.batch) % num_choices:
            raise UserError(f"{len(packed.batch)} sequences cannot be split into questions of {num_choices} choices")
        scores, hidden_states = self._classify_sequences(packed, self.classifier, output_hidden_states)
        logits = scores.view(-1, num_choices)
        loss = None
        if labels is not None:
            targets = class_labels("labels", labels, logits.shape[0], num_choices, "number the choices from 0")
            loss = class_loss(logits, targets, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=hidden_states)
