"""BERT's encoder in plain torch on padded tensors, as transformers writes it: what the fused layer is compared with,
and the whole encoder where transformers is not installed. The weights are those of our own modules.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models import BertModel
from fastbert.models.bert.modules import Layer, Norm, Output
from fastbert.packing import PackedBatch, pad


def key_mask(batch: PackedBatch) -> Tensor | None:
    """True where there is a key, (sequences, 1, 1, longest); None if there is one everywhere, as transformers does."""
    lengths = batch.cu_seqlens.diff()
    longest = int(lengths.max())
    if int(lengths.min()) == longest:
        return None
    return (torch.arange(longest, device=batch.device) < lengths[:, None])[:, None, None]


def padded(x: Tensor, batch: PackedBatch) -> Tensor:
    """Packed rows (tokens, width) as (sequences, longest, width), with zeros behind each sequence."""
    longest = int(batch.cu_seqlens.diff().max())
    return pad(x, slots(batch), (len(batch), longest))


def slots(batch: PackedBatch) -> Tensor:
    """The padded row of each packed token."""
    return batch.sequence_ids * int(batch.cu_seqlens.diff().max()) + batch.offsets_in_sequence


def _norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


class PaddedLayer(nn.Module):
    """An encoder layer: three projections, SDPA with a key mask, and each step after them an operation of torch."""

    def __init__(self, layer: Layer, dropout: float) -> None:
        super().__init__()
        self.layer, self.dropout = layer, dropout

    def _join(self, part: Output, x: Tensor, residual: Tensor) -> Tensor:
        return _norm(F.dropout(part.dense(x), self.dropout) + residual, part.LayerNorm)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x (sequences, longest, width) -> the same shape; rows behind a sequence mean nothing."""
        attention, layer = self.layer.attention, self.layer
        shape = (*x.shape[:2], layer.heads, -1)
        projections = (attention.self.query, attention.self.key, attention.self.value)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in projections)
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.dropout)
        x = self._join(attention.output, context.transpose(1, 2).flatten(2), x)
        inner = F.gelu(layer.intermediate.dense(x), approximate=layer.approximate)
        return self._join(layer.output, inner, x)


class PaddedEncoder(nn.Module):
    """Embeddings and all layers, without dropout: the last hidden states of padded ids."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.embeddings = model.embeddings
        self.layers = nn.ModuleList(PaddedLayer(layer, 0.0) for layer in model.encoder.layer)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Ids (sequences, longest) -> (sequences, longest, width)."""
        tables = self.embeddings
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = tables.word_embeddings(input_ids) + tables.token_type_embeddings(token_type_ids)
        x = _norm(x + tables.position_embeddings(places), tables.LayerNorm)
        for layer in self.layers:
            x = layer(x, mask)
        return x
