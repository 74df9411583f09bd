"""A convolution over the tokens of each sequence, whose result is added behind the first layer (DeBERTa-v2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models.architecture import ConvolutionSpec
from fastbert.models.layers import PaddedLayerBatch
from fastbert.models.norm import norm_of
from fastbert.ops.attention.rotary import positions_of
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.dropout.op import dropout
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.linear.op import linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": torch.relu}


class Convolution(nn.Module):
    """LayerNorm(layer's output + activation(dropout(convolution of the embeddings))) over packed tokens.

    Each sequence is convolved by itself, with zeros beyond its ends.
    """

    def __init__(self, spec: ConvolutionSpec, hidden_size: int) -> None:
        super().__init__()
        padding = spec.kernel_size // 2
        self.conv = nn.Conv1d(hidden_size, hidden_size, spec.kernel_size, padding=padding, groups=spec.groups)
        self.LayerNorm = norm_of(spec.norm, hidden_size)
        self.activation = spec.activation

    def forward(self, x: Tensor, residual: Tensor, batch: LayerBatch) -> Tensor:
        """Return the normalised sum of `residual` and of the convolution of the embeddings x, (tokens, hidden_size)
        each."""
        if isinstance(batch, PaddedLayerBatch) and batch.padded.mask is not None:
            x = x.masked_fill(~batch.padded.mask.reshape(-1, 1), 0)
        normed: Tensor = self.LayerNorm(convolve(self.conv, x, residual, batch, self.activation, batch.output_p))
        return normed


def convolve(conv: nn.Conv1d, x: Tensor, residual: Tensor, batch: LayerBatch, activation: str, p: float) -> Tensor:
    """Return residual + activation(dropout(convolution of x)), (tokens, hidden_size) each, dropped with probability
    `p`; `activation` is a key of `ACTIVATIONS`."""
    dropped = dropout(_convolution(conv, x, batch.cu_seqlens), batch.token_dropout(Site.CONVOLUTION, p=p))
    return residual + ACTIVATIONS[activation](dropped)


def _convolution(conv: nn.Conv1d, x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Return the convolution of x (tokens, hidden_size): the matmul of each token's neighbourhood."""
    tokens = x.shape[0]
    assert conv.bias is not None
    size, groups = conv.kernel_size[0], conv.groups
    offsets = torch.arange(size, device=x.device) - size // 2
    place = positions_of(cu_seqlens, tokens)[:, None] + offsets
    ends = cu_seqlens.long().diff().repeat_interleave(cu_seqlens.long().diff(), output_size=tokens)
    inside = (place >= 0) & (place < ends[:, None])
    neighbours = (torch.arange(tokens, device=x.device)[:, None] + offsets).clamp(0, max(tokens - 1, 0))
    rows = x[neighbours].masked_fill(~inside[..., None], 0)  # (tokens, size, hidden_size)
    if groups == 1:
        return linear(rows.flatten(1), conv.weight.permute(0, 2, 1).flatten(1), conv.bias)
    grouped = rows.unflatten(-1, (groups, -1))
    weight = conv.weight.unflatten(0, (groups, -1))
    summed = torch.einsum("tsgi,gois->tgo", grouped.to(weight.dtype), weight).flatten(1)
    return summed + conv.bias
