"""The base of all models with a head: encode the tokens that the head reads, and choose the logits it returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.config import BertConfig
from fastbert.models.architecture import ClassificationHeadSpec
from fastbert.models.base import PreTrainedModel
from fastbert.models.bilstm import BiLstm, sequence_states
from fastbert.models.encoder import EncoderModel, summary_indices, summary_tokens
from fastbert.models.fusibility import project
from fastbert.models.labels import TokenLabels, token_labels
from fastbert.models.norm import Norm, norm_of
from fastbert.models.packed import Packed
from fastbert.models.padded import PaddedBatch
from fastbert.ops.dropout.arguments import Site, TokenDropout
from fastbert.ops.dropout.masks import draw_keys
from fastbert.ops.dropout.op import dropout
from fastbert.packing import PackedBatch

# Of a `ClassificationHead`; GELU by the error function.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
HiddenStates = tuple[Tensor, ...] | None


@dataclass(frozen=True, eq=False)
class LabelledTokens:
    """The labels of a batch's tokens, and which logits a head over tokens returns beside its loss."""

    packed: Packed
    targets: TokenLabels | None
    """None: the batch has no labels."""
    all_tokens: bool
    """Compute logits of all tokens, else of the tokens with a label alone."""
    returns_logits: bool

    @property
    def indices(self) -> Tensor | None:
        """The tokens that the head reads, int64 (rows,); None for all tokens."""
        return None if self.all_tokens or self.targets is None else self.targets.positions

    def select(self, x: Tensor) -> Tensor:
        """Return the rows with a label of what was computed for the tokens that the head reads."""
        if not self.all_tokens or self.targets is None or self.targets.positions is None:
            return x
        return x[self.targets.positions]

    def restore(self, logits: Tensor) -> Tensor:
        """Return logits in the form of the input if they are of all tokens, else as they are."""
        return self.packed.restore(logits) if self.all_tokens else logits


class ClassificationHead(nn.Module):
    """A classifier of first tokens without the encoder's pooler: linear layer, activation, norm if there is one,
    dropout, linear layer."""

    def __init__(self, spec: ClassificationHeadSpec, hidden_size: int, classes: int) -> None:
        super().__init__()
        self.dense: nn.Linear = nn.Linear(hidden_size, hidden_size, bias=spec.bias)
        self.LayerNorm: Norm | None = None if spec.norm is None else norm_of(spec.norm, hidden_size)
        self.out_proj: nn.Linear = nn.Linear(hidden_size, classes)
        self.activation: str = spec.activation
        self.drops_input: bool = spec.drops_input
        self.pooling: str = spec.pooling

    def transform(self, first: Tensor) -> Tensor:
        """Return the activation of first tokens (sequences, hidden_size), normalised if the head has a norm: the same
        shape."""
        inner = ACTIVATIONS[self.activation](project(self.dense, first))
        return inner if self.LayerNorm is None else self.LayerNorm(inner)

    def forward(self, first: Tensor) -> Tensor:
        """Return logits (sequences, classes) of first tokens (sequences, hidden_size), without dropout."""
        return project(self.out_proj, self.transform(first))


class ModelWithHead(PreTrainedModel):
    """A head over an encoder, which is the attribute `base_model_prefix` and has a pooler if `with_pooler`.

    With `config.bilstm_size`, heads of tasks read a bidirectional LSTM over the encoder's outputs, and no pooler.
    """

    with_pooler: bool = True
    takes_bilstm: bool = False
    """True if a BiLSTM may stand between the encoder and the head."""

    def __init__(self, config: BertConfig) -> None:
        """Make a model with new weights, from torch's global generator."""
        super().__init__(config)
        encoder = self.architecture.model_class(EncoderModel)
        size = config.bilstm_size if self.takes_bilstm else None
        with_pooler = self.with_pooler and size is None
        self.add_module(self.base_model_prefix, encoder(config, add_pooling_layer=with_pooler))
        self.bilstm: BiLstm | None = None if size is None else BiLstm(config.bilstm_input_size, size)
        self.position_offset: int = self.base_model.position_offset
        self.add_head(config)
        self.init_weights()

    def add_head(self, config: BertConfig) -> None:
        """Add the modules of the head."""
        raise NotImplementedError

    def init_weights(self, seed: int | None = None) -> None:
        """Initialise all weights as `PreTrainedModel.init_weights` does, those of a BiLSTM as torch does."""
        super().init_weights(seed)
        if self.bilstm is not None:
            self.bilstm.init_weights(None if seed is None else torch.Generator().manual_seed(seed))

    def _classifier(self, classes: int) -> nn.Module:
        """Return the architecture's classifier of first tokens: a linear layer, or a `ClassificationHead`."""
        spec, width = self.architecture.head_spec(self.config), self.config.head_input_size
        if spec is None:
            return nn.Linear(width, classes, bias=self.architecture.classifier_bias)
        return ClassificationHead(spec, width, classes)

    def _token_classifier(self, classes: int) -> nn.Module:
        """Return the architecture's classifier of tokens: a linear layer, or a `ClassificationHead`."""
        width, spec = self.config.head_input_size, self.architecture.head_spec(self.config)
        if spec is None or not self.architecture.transforms_tokens:
            return nn.Linear(width, classes)
        return ClassificationHead(spec, width, classes)

    @property
    def classifier_dropout_prob(self) -> float:
        """Return the dropout probability in front of the classifier of sequences."""
        return self.config.sequence_classifier_dropout

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the token embedding, whose weight is (vocab_size, hidden_size)."""
        embedding: nn.Embedding = self.base_model.get_input_embeddings()
        return embedding

    def _labelled_tokens(
        self, packed: Packed, labels: Tensor | None, classes: int, cure: str, return_logits: bool | None
    ) -> LabelledTokens:
        """Read the labels of tokens. Without `return_logits`, logits of padded input are returned in evaluation."""
        targets = token_labels(packed, labels, classes, cure)
        all_tokens = targets is None or (return_logits is None and packed.came_padded and not self.training)
        return LabelledTokens(packed, targets, all_tokens, all_tokens or bool(return_logits))

    def _encode(
        self, packed: Packed, token_indices: Tensor | None, output_hidden_states: bool | None
    ) -> tuple[Tensor, HiddenStates]:
        """Return hidden states (rows, hidden_size) of the last layer, or the outputs (rows, bilstm_size) of the BiLSTM
        behind it, and with `output_hidden_states` the encoder's states of all tokens at every layer, in the form of the
        input."""
        x, states = self.base_model.encode(
            packed.batch,
            output_hidden_states=bool(output_hidden_states),
            token_indices=token_indices if self.bilstm is None else None,
            inputs_embeds=packed.embeds,
        )
        if self.bilstm is not None:
            x = self.bilstm(x, packed.batch)
            x = x if token_indices is None else x.index_select(0, token_indices)
        return x, tuple(packed.restore(state) for state in states) or None

    def _ends(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """Select from what `_encode` returns of a model with a BiLSTM what stands for each sequence."""
        return sequence_states(x, batch)

    def _encode_pooled(
        self, packed: Packed, token_indices: Tensor | None, output_hidden_states: bool | None
    ) -> tuple[Tensor, Tensor, HiddenStates]:
        """Return the pooled first tokens (sequences, hidden_size), first tokens themselves without a pooler, then what
        `_encode` returns. Where attention is causal they are the last tokens, and of a BiLSTM (sequences, bilstm_size)
        the outputs at both ends.

        With `token_indices` nothing but these and the first tokens is computed in the last layer.
        """
        batch = packed.batch
        whole = isinstance(batch, PaddedBatch) or self.bilstm is not None
        if token_indices is None or whole or not batch.num_tokens:
            x, hidden_states = self._encode(packed, None, output_hidden_states)
            if self.bilstm is None:
                first = summary_tokens(x, batch, self.base_model.causal)
            else:
                first = self._ends(x, batch)
            x = x if token_indices is None else x[token_indices]
        else:
            indices = torch.cat((summary_indices(batch, self.base_model.causal), token_indices))
            rows, hidden_states = self._encode(packed, indices, output_hidden_states)
            first, x = rows[: len(batch)], rows[len(batch) :]
        pooler = self.base_model.pooler
        return first if pooler is None else pooler(first), x, hidden_states

    def _encode_sequences(self, packed: Packed, output_hidden_states: bool | None) -> tuple[Tensor, HiddenStates]:
        """Return the first tokens of `_encode_pooled` (sequences, hidden_size), and the hidden states of `_encode`."""
        no_tokens = packed.batch.input_ids.new_empty(0)
        pooled, _, hidden_states = self._encode_pooled(packed, no_tokens, output_hidden_states)
        return pooled, hidden_states

    def _encode_means(self, packed: Packed, output_hidden_states: bool | None) -> tuple[Tensor, Tensor, HiddenStates]:
        """Return the mean hidden states of each sequence (sequences, hidden_size), then what `_encode` returns."""
        x, hidden_states = self._encode(packed, None, output_hidden_states)
        means = self._ends(x, packed.batch) if self.bilstm is not None else sequence_means(x, packed.batch)
        return means, x, hidden_states

    def _classify_sequences(
        self, packed: Packed, classifier: nn.Module, output_hidden_states: bool | None, num_orders: int = 1
    ) -> tuple[Tensor, HiddenStates]:
        """Return logits (sequences / num_orders, classes) of the pooled first tokens, and the hidden states of
        `_encode`. The pooled tokens of each `num_orders` adjacent sequences are added."""
        if isinstance(classifier, ClassificationHead) and classifier.pooling == "logits":
            x, hidden_states = self._encode(packed, None, output_hidden_states)
            x = self._token_dropout(packed.batch, classifier.transform(x), self.classifier_dropout_prob)
            logits = sequence_means(project(classifier.out_proj, x), packed.batch)
            return (logits if num_orders == 1 else logits.unflatten(0, (-1, num_orders)).sum(1)), hidden_states
        x, last, hidden_states = self._classifier_input(packed, classifier, output_hidden_states, num_orders)
        return project(last, x), hidden_states

    def _classifier_input(
        self, packed: Packed, classifier: nn.Module, output_hidden_states: bool | None, num_orders: int = 1
    ) -> tuple[Tensor, nn.Module, HiddenStates]:
        """Return the input (sequences / num_orders, width) of a classifier's last linear layer, that layer, and the
        hidden states of `_encode`."""
        if isinstance(classifier, ClassificationHead) and classifier.pooling == "mean":
            first, _, hidden_states = self._encode_means(packed, output_hidden_states)
        else:
            first, hidden_states = self._encode_sequences(packed, output_hidden_states)
        if num_orders != 1:
            first = first.unflatten(0, (-1, num_orders)).sum(1)
        batch, p = packed.batch, self.classifier_dropout_prob
        if isinstance(classifier, ClassificationHead):
            if classifier.drops_input:
                input_p = self.config.classifier_input_dropout
                first = self._head_dropout(batch, first, input_p, Site.HEAD_INPUT, group=num_orders)
            first, classifier = classifier.transform(first), classifier.out_proj
        return self._head_dropout(batch, first, p, group=num_orders), classifier, hidden_states

    def _classify_tokens(
        self, packed: Packed, classifier: nn.Module, token_indices: Tensor | None, output_hidden_states: bool | None
    ) -> tuple[Tensor, HiddenStates]:
        """Return logits (rows, classes) of tokens, all of them or those of `token_indices`, and the hidden states."""
        x, hidden_states = self._encode(packed, token_indices, output_hidden_states)
        if isinstance(classifier, ClassificationHead):
            x, classifier = classifier.transform(x), classifier.out_proj
        x = self._token_dropout(packed.batch, x, self.config.token_classifier_dropout, token_indices)
        return project(classifier, x), hidden_states

    def _head_dropout(
        self, batch: PackedBatch, x: Tensor, p: float, site: Site = Site.HEAD, *, group: int = 1
    ) -> Tensor:
        """Drop elements of x, which has one row per `group` of adjacent sequences."""
        if not self.training or not p:
            return x
        rows = torch.arange(0, len(batch), group, device=batch.device)
        return dropout(x, TokenDropout(p, _keys(batch), rows, 0 * rows, int(site)))

    def _token_dropout(self, batch: PackedBatch, x: Tensor, p: float, token_indices: Tensor | None = None) -> Tensor:
        """Drop elements of x, which has one row per token, or per token of `token_indices`."""
        if not self.training or not p:
            return x
        tokens = TokenDropout(p, _keys(batch), batch.sequence_ids, batch.offsets_in_sequence, int(Site.HEAD))
        return dropout(x, tokens if token_indices is None else tokens.select(token_indices))


def sequence_means(x: Tensor, batch: PackedBatch) -> Tensor:
    """Return the mean of each sequence's rows of x (tokens, width): (sequences, width), zeros for empty sequences.

    Sums are fp32, or as wide as x.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if isinstance(batch, PaddedBatch):
        rows = wide.reshape(*batch.shape, -1)
        if batch.mask is None:
            return rows.mean(1).to(x.dtype)
        counts = batch.mask.sum(1, keepdim=True).clamp(min=1)
        return (rows.masked_fill(~batch.mask[..., None], 0).sum(1) / counts).to(x.dtype)
    lengths = batch.cu_seqlens.diff().long()
    sums = torch.segment_reduce(wide, "sum", lengths=lengths, axis=0, initial=0)
    return (sums / lengths.clamp(min=1)[:, None]).to(x.dtype)


def _keys(batch: PackedBatch) -> Tensor:
    """Return the dropout keys of a batch, int64 (sequences,), drawn where it has none."""
    return draw_keys(len(batch), batch.device) if batch.dropout_key is None else batch.dropout_key
