"""BERT with a head for each use the paper describes; given labels, logits are computed only where there is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert import ops
from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel, resized
from fastbert.models.bert.model import (
    ROWS_MULTIPLE,
    BertModel,
    Norm,
    first_indices,
    first_tokens,
    is_plain_norm,
    multiplies_in_bf16,
)
from fastbert.models.fusibility import is_plain, project, project_apart
from fastbert.models.labels import (
    NUMBER_CLASSES,
    USE_VOCABULARY,
    check_places,
    check_range,
    check_shares,
    class_labels,
    class_loss,
    integers,
    masked_places,
    mean_of,
    part_of,
    read_places,
)
from fastbert.models.outputs import LogitsOutput, PreTrainingOutput, SpanOutput
from fastbert.models.packed import Packed
from fastbert.models.padded import PaddedBatch
from fastbert.models.unsupported_arguments import TransformersArguments, refuse_arguments
from fastbert.ops.cross_entropy.op import CrossEntropy
from fastbert.ops.dispatch import preferred_backend
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.native.matmul_table import prefers_native
from fastbert.packing import IGNORE_INDEX, PackedBatch

# What to do about a next-sentence label that is out of range.
IS_NEXT = "use 0 where B follows A and 1 where it does not"


def shown_states(packed: Packed, states: list[Tensor]) -> tuple[Tensor, ...] | None:
    """Hidden states as outputs hold them: those of the embeddings and of each layer, None where none were kept."""
    return tuple(packed.restore(state) for state in states) or None


def _options(packed: Packed, output_hidden_states: bool | None) -> dict[str, Any]:
    """What `encode` takes beside the batch."""
    return {"output_hidden_states": bool(output_hidden_states), "inputs_embeds": packed.embeds}


class PredictionTransform(nn.Module):
    """Dense, GELU, LayerNorm: what a hidden state goes through before the vocabulary product."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = Norm(config.hidden_size, config.layer_norm_eps)
        self.approximate = config.gelu_approximation

    def forward(self, x: Tensor) -> Tensor:
        norm = self.LayerNorm
        product, bias = project_apart(self.dense, x)
        if is_plain_norm(norm):
            return ops.gelu_layer_norm(product, bias, norm.weight, norm.bias, norm.eps, self.approximate)
        normed: Tensor = norm(ops.bias_gelu(product, bias, self.approximate))
        return normed


class PredictionHead(nn.Module):
    """The masked-LM head: the decoder's weight is the token embedding (tied), with a bias of its own."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.decoder.bias = self.bias

    def forward(self, x: Tensor) -> Tensor:
        """Logits (rows, vocab_size) of hidden states (rows, hidden_size)."""
        return project(self.decoder, self.transform(x))

    def loss(self, x: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> CrossEntropy:
        """Cross-entropy of the labels (rows,) of hidden states (rows, hidden_size)."""
        extra = -len(x) % ROWS_MULTIPLE if self._library_multiplies_bf16(len(x)) else 0
        if extra:  # rows without a label, which count for nothing
            x = F.pad(x, (0, 0, 0, extra))
            labels = F.pad(labels, (0, extra), value=IGNORE_INDEX)
        x = self.transform(x)
        if is_plain(self.decoder):
            weight, bias = self.decoder.weight, self.decoder.bias
            return ops.linear_cross_entropy(x, weight, bias, labels, label_smoothing=label_smoothing)
        logits, counted = self.decoder(x), labels != IGNORE_INDEX
        loss = F.cross_entropy(
            logits.float(), labels, ignore_index=IGNORE_INDEX, label_smoothing=label_smoothing, reduction="sum"
        )
        return CrossEntropy(loss, counted.sum(), ((logits.argmax(-1) == labels) & counted).sum())

    def _library_multiplies_bf16(self, rows: int) -> bool:
        """Whether torch's library will multiply bf16 on the CPU, and not our kernels, which take any number of rows."""
        weight = self.decoder.weight
        if not multiplies_in_bf16(weight):
            return False
        if torch.compiler.is_compiling() or preferred_backend("linear_cross_entropy", weight.device) != "native":
            return True
        return not (is_plain(self.decoder) and prefers_native("bf16", rows, *weight.shape))


class PreTrainingHeads(nn.Module):
    """The heads of pre-training, under Hugging Face's names."""

    def __init__(self, config: BertConfig, mlm: bool, nsp: bool) -> None:
        super().__init__()
        if mlm:
            self.predictions = PredictionHead(config)
        if nsp:
            self.seq_relationship = nn.Linear(config.hidden_size, 2)


class BertWithHead(PreTrainedModel):
    """What the heads share: the encoder under the name `bert`, and how inputs and labels are read."""

    with_pooler = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=self.with_pooler)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.bert.embeddings.word_embeddings

    def _encode_read(
        self, packed: Packed, places: Tensor | None, output_hidden_states: bool = False
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Hidden states of each sequence's first token (sequences, hidden_size), which the pooler takes; those at
        `places`, int64, or of all tokens; and with `output_hidden_states` those of all tokens at every layer.

        With `places` nothing else of the last layer is computed.
        """
        batch, options = packed.batch, _options(packed, output_hidden_states)
        if places is None or isinstance(batch, PaddedBatch) or not batch.num_tokens:
            x, states = self.bert.encode(batch, **options)
            return first_tokens(x, batch), read_places(x, places), states
        x, states = self.bert.encode(batch, token_indices=torch.cat((first_indices(batch), places)), **options)
        return x[: len(batch)], x[len(batch) :], states

    def _shows_all(self, packed: Packed, return_logits: bool | None) -> bool:
        """Whether logits of every position are returned beside a loss: in evaluation, of padded input."""
        return return_logits is None and packed.came_padded and not self.training

    def _pool(self, firsts: Tensor) -> Tensor:
        assert self.bert.pooler is not None
        pooled: Tensor = self.bert.pooler(firsts)
        return pooled

    def _encode_pooled(self, packed: Packed, output_hidden_states: bool | None = False) -> tuple[Tensor, list[Tensor]]:
        """Return the pooled first tokens (sequences, hidden_size), and with `output_hidden_states` all tokens at every
        layer."""
        firsts, _, states = self._encode_read(packed, packed.batch.input_ids.new_empty(0), bool(output_hidden_states))
        return self._pool(firsts), states

    def _classifier_dropout(
        self, batch: PackedBatch, x: Tensor, per_token: bool, places: Tensor | None = None
    ) -> Tensor:
        """Of a row a sequence, or `per_token` of all tokens or those at `places`."""
        config = self.config
        p = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        if not self.training or not p:
            return x
        key = batch.dropout_key if batch.dropout_key is not None else draw_keys(len(batch), batch.device)
        rows = torch.arange(len(batch), device=batch.device)
        sequences, offsets = (batch.sequence_ids, batch.offsets_in_sequence) if per_token else (rows, 0 * rows)
        dropout = TokenDropout(p, key, sequences, offsets, int(Site.HEAD))
        return ops.dropout(x, dropout if places is None else dropout.select(places))


class _MaskedLanguageModel(BertWithHead):
    """A model whose decoder is tied to the token embedding."""

    cls: PreTrainingHeads
    tied_keys = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias")

    def tie_weights(self) -> None:
        """Make the decoder's weight the token embedding itself, and its bias the head's."""
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight
        self.cls.predictions.decoder.bias = self.cls.predictions.bias

    def _resize_output(self, rows: int) -> None:
        predictions = self.cls.predictions
        added = predictions.bias.detach().new_zeros(max(rows - len(predictions.bias), 0))
        predictions.bias = resized(predictions.bias, rows, added)
        predictions.decoder.out_features = rows
        self.tie_weights()


class BertForPreTraining(_MaskedLanguageModel):
    """Masked LM and next-sentence prediction together (Devlin et al. 2019, section 3.1).

    Labels come with the `PackedBatch` (`masked_positions`, `labels`, `next_sentence_label`) or as `labels` (B, S) int64
    with -100 where there is none and `next_sentence_label` (B,), 0 = B follows A. `prediction_logits` is as the logits
    of `BertForMaskedLM`.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = PreTrainingHeads(config, mlm=True, nsp=True)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        masked = masked_places(packed, labels, self.config.vocab_size, USE_VOCABULARY)
        every = masked is None or self._shows_all(packed, return_logits)
        read = None if every or masked is None else masked[0]
        firsts, x, states = self._encode_read(packed, read, bool(output_hidden_states))
        nsp_logits = project(self.cls.seq_relationship, self._pool(firsts))
        output = PreTrainingOutput(
            seq_relationship_logits=nsp_logits,
            hidden_states=shown_states(packed, states),
        )
        losses = []
        if every:
            output.prediction_logits = packed.restore(self.cls.predictions(x))
        elif return_logits:
            output.prediction_logits = self.cls.predictions(x)
        if masked is not None:
            loss = self.cls.predictions.loss(read_places(x, masked[0]) if every else x, masked[1])
            output.mlm_loss_sum, output.mlm_count, output.mlm_correct = loss.loss_sum, loss.count, loss.correct
            losses.append(mean_of(loss))
        target = packed.batch.next_sentence_label if next_sentence_label is None else next_sentence_label
        if target is not None:
            target = class_labels("next_sentence_label", target, nsp_logits.shape[0], 2, IS_NEXT)
            output.nsp_loss_sum = F.cross_entropy(nsp_logits.float(), target, reduction="sum")
            # Sequences labelled -100 count for nothing: no class has that number.
            output.nsp_count = (target != IGNORE_INDEX).sum()
            output.nsp_correct = (nsp_logits.argmax(-1) == target).sum()
            losses.append(output.nsp_loss_sum / output.nsp_count.clamp(min=1))
        if losses:
            output.loss = torch.stack(losses).sum()
        return output

    def check_ranges(self, batch: PackedBatch) -> None:
        """Raise UserError for numbers that the model has no row or class for. Reads the batch, so a GPU waits."""
        self.bert.check_ranges(batch)
        for name, values, size, of in (
            ("labels", batch.labels, self.config.vocab_size, "entries of the vocabulary"),
            ("next_sentence_label", batch.next_sentence_label, 2, "classes"),
        ):
            if values is not None:
                check_range(name, values[values != IGNORE_INDEX], size, of)
        check_places(batch)


class BertForMaskedLM(_MaskedLanguageModel):
    """BERT with the masked-LM head. `logits` are (..., vocab_size): every position without labels. With labels they are
    left out, unless `return_logits=True`, for the labelled positions, or, unless it is False, for every position of
    padded input in evaluation. `num_items_in_batch`: the loss is the sum over the labels divided by it."""

    with_pooler = False
    accepts_loss_kwargs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = PreTrainingHeads(config, mlm=True, nsp=False)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        masked = masked_places(packed, labels, self.config.vocab_size, USE_VOCABULARY)
        options = _options(packed, output_hidden_states)
        if masked is None or self._shows_all(packed, return_logits):
            x, states = self.bert.encode(packed.batch, **options)
            logits: Tensor | None = packed.restore(self.cls.predictions(x))
            x = x if masked is None else read_places(x, masked[0])
        else:
            x, states = self.bert.encode(packed.batch, token_indices=masked[0], **options)
            logits = self.cls.predictions(x) if return_logits else None
        loss = None if masked is None else mean_of(self.cls.predictions.loss(x, masked[1]), num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=shown_states(packed, states))


class BertForNextSentencePrediction(BertWithHead):
    """BERT with the next-sentence head; `logits` (sequences, 2), class 0 = B follows A."""

    accepts_loss_kwargs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.cls = PreTrainingHeads(config, mlm=False, nsp=True)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        pooled, states = self._encode_pooled(packed, output_hidden_states)
        logits = project(self.cls.seq_relationship, pooled)
        target = packed.batch.next_sentence_label if labels is None else labels
        loss = None
        if target is not None:
            name = "next_sentence_label" if labels is None else "labels"
            target = class_labels(name, target, logits.shape[0], 2, IS_NEXT)
            loss = class_loss(logits, target, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=shown_states(packed, states))


class BertForSequenceClassification(BertWithHead):
    """softmax(W C) of the pooled first token; `logits` (sequences, num_labels). The loss follows the config's
    `problem_type`: squared error (regression), cross-entropy (single_label_classification) or, with a label of 0 or 1
    for each class, binary cross-entropy (multi_label_classification). Where it is None, `num_labels=1` or labels that
    are floating-point mean regression, others one class each. `num_items_in_batch` is as in `BertForMaskedLM`."""

    accepts_loss_kwargs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        pooled, states = self._encode_pooled(packed, output_hidden_states)
        pooled = self._classifier_dropout(packed.batch, pooled, per_token=False)
        logits = project(self.classifier, pooled)
        loss = None if labels is None else self._loss(logits.float(), labels, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=shown_states(packed, states))

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
            return part_of(F.mse_loss(logits, targets), labels.numel(), items)
        check_shares(targets)
        return part_of(F.binary_cross_entropy_with_logits(logits, targets), labels.numel(), items)


class BertForTokenClassification(BertWithHead):
    """One class a token; `logits` (..., num_labels), labels -100 where there is none; which logits are returned beside
    a loss, and `num_items_in_batch`, is as in `BertForMaskedLM`."""

    with_pooler = False
    accepts_loss_kwargs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        masked = masked_places(packed, labels, self.config.num_labels, NUMBER_CLASSES)
        every = masked is None or self._shows_all(packed, return_logits)
        places = None if every or masked is None else masked[0]
        x, states = self.bert.encode(packed.batch, token_indices=places, **_options(packed, output_hidden_states))
        x = self._classifier_dropout(packed.batch, x, per_token=True, places=places)
        logits = project(self.classifier, x)
        shown = packed.restore(logits) if every else logits if return_logits else None
        kept = shown_states(packed, states)
        if masked is None:
            return LogitsOutput(logits=shown, hidden_states=kept)
        read, targets = read_places(logits, masked[0]) if every else logits, masked[1]
        loss = class_loss(read, targets, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=shown, hidden_states=kept)


class BertForQuestionAnswering(BertWithHead):
    """A start and an end vector over the tokens (Devlin et al. 2019, section 4.2); positions are int64 (sequences,)
    counted within the sequence as it was given. Positions beyond its end are ignored."""

    with_pooler = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(replace(config, num_labels=2))  # a start and an end, whatever the config was made for
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        packed = Packed(batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        x, states = self.bert.encode(packed.batch, **_options(packed, output_hidden_states))
        logits = project(self.qa_outputs, x).float()
        loss = None
        if start_positions is not None and end_positions is not None:
            named = (("start_positions", start_positions), ("end_positions", end_positions))
            targets = [self._positions(name, given, packed) for name, given in named]
            loss = torch.stack([self._span_loss(packed, logits[:, i], targets[i]) for i in range(2)]).mean()
        start, end = (packed.restore(logits[:, i]) for i in range(2))
        kept = shown_states(packed, states)
        return SpanOutput(loss=loss, start_logits=start, end_logits=end, hidden_states=kept)

    @staticmethod
    def _positions(name: str, positions: Tensor, packed: Packed) -> Tensor:
        """Positions as int64 (sequences,)."""
        flat = integers(name, positions, "one position per sequence").reshape(-1)
        rows = packed.shape[0] if packed.shape is not None else len(packed.batch)
        if flat.shape[0] != rows:
            raise UserError(f"{name} have shape {tuple(positions.shape)}, but there are {rows} sequences")
        return flat

    @staticmethod
    def _span_loss(packed: Packed, logits: Tensor, targets: Tensor) -> Tensor:
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
        beyond = (targets < 0) | (targets >= width)
        # Padding has no score, and a loss of infinity would say nothing of the row.
        at_target = scores.detach().gather(1, targets.masked_fill(beyond, 0)[:, None])[:, 0]
        ignored = beyond | (at_target == float("-inf"))
        return F.cross_entropy(scores, targets.masked_fill(ignored, IGNORE_INDEX))


class BertForMultipleChoice(BertWithHead):
    """One score a choice, softmax over the choices: `input_ids` (questions, choices, length); `logits` (questions,
    choices); `labels` int64 (questions,). A `PackedBatch` holds the choices of a question next to each other and needs
    `num_choices`."""

    accepts_loss_kwargs = True

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.init_weights()

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
        refuse_arguments(self, {"past_key_values": past_key_values, **unsupported})
        given = batch if isinstance(batch, Tensor) else input_ids
        if given is not None:
            if given.dim() != 3:
                raise UserError(f"input_ids must have shape (questions, choices, length), not {tuple(given.shape)}")
            num_choices = given.shape[1]
        elif inputs_embeds is not None:
            if inputs_embeds.dim() != 4:
                raise UserError(
                    "inputs_embeds must have shape (questions, choices, length, hidden_size), not"
                    f" {tuple(inputs_embeds.shape)}"
                )
            num_choices = inputs_embeds.shape[1]
        if not num_choices:
            raise UserError("a PackedBatch of choices needs num_choices, the number of choices per question")
        flat: Iterable[Any] = (
            tensor.flatten(0, 1) if isinstance(tensor, Tensor) and tensor.dim() >= 3 else tensor
            for tensor in (batch, input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        )
        packed = Packed(*flat)
        if not packed.came_padded and len(packed.batch) % num_choices:
            raise UserError(f"{len(packed.batch)} sequences cannot be split into questions of {num_choices} choices")
        pooled, states = self._encode_pooled(packed, output_hidden_states)
        pooled = self._classifier_dropout(packed.batch, pooled, per_token=False)
        logits = project(self.classifier, pooled).view(-1, num_choices)
        loss = None
        if labels is not None:
            targets = class_labels("labels", labels, logits.shape[0], num_choices, "number the choices from 0")
            loss = class_loss(logits, targets, num_items_in_batch)
        return LogitsOutput(loss=loss, logits=logits, hidden_states=shown_states(packed, states))
