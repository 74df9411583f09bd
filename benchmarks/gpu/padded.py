"""BERT in plain torch on padded tensors, as transformers implements it: the reference of the fused layer, the rival of
training steps, and of inference where transformers is not installed. It uses the weights of fastbert's modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models import BertForPreTraining, BertModel
from fastbert.models.modules import Embeddings, Layer, Norm, Output
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS
from fastbert.packing import PackedBatch, pad

if TYPE_CHECKING:
    from fastbert.models.heads.prediction import PreTrainingHeads


def key_mask(batch: PackedBatch) -> Tensor | None:
    """Return the key mask (sequences, 1, 1, longest), True for real keys; None if nothing is padded, as in
    transformers."""
    lengths = batch.cu_seqlens.diff()
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return None
    return (torch.arange(longest, device=batch.device) < lengths[:, None])[:, None, None]


def padded(x: Tensor, batch: PackedBatch) -> Tensor:
    """Return packed rows (tokens, width) as (sequences, longest, width), with zeros after each sequence."""
    longest = int(batch.cu_seqlens.diff().max())
    return pad(x, slots(batch), (len(batch), longest))


def slots(batch: PackedBatch) -> Tensor:
    """Return the padded row of each packed token."""
    return batch.sequence_ids * int(batch.cu_seqlens.diff().max()) + batch.offsets_in_sequence


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


class PaddedLayer(nn.Module):
    """An encoder layer: three projections, SDPA with a key mask, and every further step an operation of torch."""

    def __init__(self, layer: Layer, dropout: float) -> None:
        super().__init__()
        self.layer = layer
        self.dropout = dropout

    def _join(self, part: Output, x: Tensor, residual: Tensor) -> Tensor:
        return _norm(F.dropout(part.dense(x), self.dropout) + residual, part.LayerNorm)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Compute x (sequences, longest, width) -> the same shape; rows of padding are undefined."""
        attention, layer = self.layer.attention, self.layer
        shape = (*x.shape[:2], layer.spec.self_attention.heads, -1)
        projections = (attention.self.query, attention.self.key, attention.self.value)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in projections)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)
        x = self._join(attention.output, context.transpose(1, 2).flatten(2), x)
        approximate = APPROXIMATIONS[layer.spec.feed_forward.activation]
        inner = F.gelu(layer.intermediate.dense(x), approximate=approximate)
        return self._join(layer.output, inner, x)


class PaddedEncoder(nn.Module):
    """Embeddings and all layers: the last hidden states of padded ids."""

    def __init__(self, model: BertModel, dropout: float = 0.0) -> None:
        super().__init__()
        self.embeddings: Embeddings = model.embeddings
        self.dropout = dropout
        self.layers: nn.ModuleList = nn.ModuleList(PaddedLayer(layer, dropout) for layer in model.encoder.layer)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute ids (sequences, longest) -> (sequences, longest, width)."""
        tables = self.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = tables.word_embeddings(input_ids) + tables.token_type_embeddings(token_type_ids)
        x = F.dropout(_norm(x + tables.position_embeddings(positions), tables.LayerNorm), self.dropout)
        for layer in self.layers:
            x = layer(x, mask)
        return x


@dataclass(frozen=True, kw_only=True)
class PaddedBatch:
    """A batch as plain torch gets it: ids and segments (sequences, longest), the key mask, the flat rows of masked
    tokens with their labels, and the next-sentence labels (sequences,)."""

    input_ids: Tensor
    token_type_ids: Tensor
    mask: Tensor | None
    masked_rows: Tensor
    labels: Tensor
    next_sentence_label: Tensor

    @classmethod
    def of(cls, batch: PackedBatch) -> PaddedBatch:
        """Pad a packed batch that has labels."""
        assert batch.masked_positions is not None
        assert batch.labels is not None
        assert batch.next_sentence_label is not None
        unpacked = batch.unpack()
        return cls(
            input_ids=unpacked["input_ids"],
            token_type_ids=unpacked["token_type_ids"],
            mask=key_mask(batch),
            masked_rows=slots(batch)[batch.masked_positions],
            labels=batch.labels,
            next_sentence_label=batch.next_sentence_label,
        )


class PaddedForPreTraining(nn.Module):
    """The encoder with both heads of pre-training. The vocabulary's matmul computes masked tokens alone, as NVIDIA's
    training scripts do; transformers computes all."""

    def __init__(self, model: BertForPreTraining, dropout: float) -> None:
        super().__init__()
        self.encoder: PaddedEncoder = PaddedEncoder(model.bert, dropout)
        self.pooler: Any = model.bert.pooler
        self.cls: PreTrainingHeads = model.cls

    def forward(self, batch: PaddedBatch) -> Tensor:
        """Return the sum of both mean losses."""
        x = self.encoder(batch.input_ids, batch.token_type_ids, batch.mask)
        head = self.cls.predictions
        masked = F.gelu(head.transform.dense(x.flatten(0, 1)[batch.masked_rows]))
        logits = head.decoder(_norm(masked, head.transform.LayerNorm))
        next_sentence = self.cls.seq_relationship(torch.tanh(self.pooler.dense(x[:, 0])))
        return F.cross_entropy(logits.float(), batch.labels) + F.cross_entropy(
            next_sentence.float(), batch.next_sentence_label
        )
