"""A convolution over the tokens of each sequence, whose result is added behind the first layer (DeBERTa-v2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastbert.models.architecture import ConvolutionSpec
from fastbert.models.layers import PaddedLayerBatch
from fastbert.models.norm import Norm, norm_of
from fastbert.models.parameter_cache import cached, is_cacheable
from fastbert.ops.attention.rotary import positions_of
from fastbert.ops.dropout.arguments import Site
from fastbert.ops.dropout.op import dropout
from fastbert.ops.encoder_layer.arguments import LayerBatch
from fastbert.ops.linear.op import linear
from fastbert.ops.native import buffers

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": torch.relu}


class Convolution(nn.Module):
    """LayerNorm(layer's output + activation(dropout(convolution of the embeddings))) over packed tokens.

    Each sequence is convolved by itself, with zeros beyond its ends.
    """

    def __init__(self, spec: ConvolutionSpec, hidden_size: int) -> None:
        super().__init__()
        padding = spec.kernel_size // 2
        self.conv: nn.Conv1d = nn.Conv1d(
            hidden_size, hidden_size, spec.kernel_size, padding=padding, groups=spec.groups
        )
        self.LayerNorm: Norm = norm_of(spec.norm, hidden_size)
        self.activation: str = spec.activation

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
    """Return the convolution of x (tokens, hidden_size): the matmul of each token's neighbourhood, group by group.

    On a native CPU a text has the same bits in every batch.
    """
    assert conv.bias is not None
    rows = _neighbourhoods(x, cu_seqlens, conv.kernel_size[0], conv.groups)
    weights, biases = _matrices(conv), conv.bias.chunk(conv.groups)
    products = [
        linear(group, weight, bias) for group, weight, bias in zip(rows.unbind(1), weights, biases, strict=True)
    ]
    return products[0] if len(products) == 1 else torch.cat(products, 1)


def _neighbourhoods(x: Tensor, cu_seqlens: Tensor, size: int, groups: int) -> Tensor:
    """Return what each token's outputs read of x (tokens, hidden_size), zeros beyond the ends of its sequence:
    (tokens, groups, size * hidden_size / groups)."""
    tokens, half = x.shape[0], size // 2
    lengths = cu_seqlens.long().diff()
    ends = lengths.repeat_interleave(lengths, output_size=tokens)
    index, padded = positions_of(cu_seqlens, tokens), F.pad(x, (0, 0, half, half))
    neighbours = []
    for offset in range(-half, half + 1):
        if not offset:
            neighbours.append(x)
            continue
        outside = (index + offset < 0) | (index + offset >= ends)
        neighbours.append(padded[half + offset : half + offset + tokens].masked_fill(outside[:, None], 0))
    if groups == 1:
        return torch.cat(neighbours, 1)[:, None]
    return torch.stack([rows.unflatten(1, (groups, -1)) for rows in neighbours], 2).flatten(2)


def _matrices(conv: nn.Conv1d) -> tuple[Tensor, ...]:
    """Return the weight of each group as a matrix, (out / groups, size * in / groups): parameters in inference on a
    CPU, for whose matmuls prepacked copies are made once."""
    weight, groups = conv.weight, conv.groups

    def joined() -> tuple[Tensor, ...]:
        return weight.permute(0, 2, 1).flatten(1).chunk(groups)

    if is_cacheable(weight):
        return cached((weight,), groups, lambda: tuple(nn.Parameter(matrix.clone(), False) for matrix in joined()))
    matrices = joined()
    if weight.is_cpu and buffers.direct(weight):
        # `linear` prepacks parameters alone; in training their copies do not outlive a step either.
        for matrix in matrices:
            matrix._is_param = True
    return matrices
