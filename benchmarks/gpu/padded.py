"""BERT's encoder in plain torch on padded tensors, as transformers implements it: the reference of the fused layer, and
of the whole encoder where transformers is not installed. It uses the weights of fastbert's modules.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models import BertModel
from fastbert.models.modules import Layer, Norm, Output
from fastbert.ops.encoder_layer.spec import APPROXIMATIONS
from fastbert.packing import PackedBatch, pad


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
        self.layer, self.dropout = layer, dropout

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
    """Embeddings and all layers, without dropout: the last hidden states of padded ids."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.embeddings = model.embeddings
        self.layers = nn.ModuleList(PaddedLayer(layer, 0.0) for layer in model.encoder.layer)  # type: ignore[arg-type]

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor | None) -> Tensor:
        """Compute ids (sequences, longest) -> (sequences, longest, width)."""
        tables = self.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = tables.word_embeddings(input_ids) + tables.token_type_embeddings(token_type_ids)
        x = _norm(x + tables.position_embeddings(positions), tables.LayerNorm)
        for layer in self.layers:
            x = layer(x, mask)
        return x
