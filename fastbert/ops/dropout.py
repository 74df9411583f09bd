"""Dropout whose mask is a function of (key of the sequence, layer and site, place), so that it can be replayed.

The counter of an element's Philox block is (block, position within the sequence or query, head, layer and site), and
the element owns 16 of the block's bits; `fastbert.ops.reference` says which. A mask is therefore the same on every
device, for every batch that the sequence appears in, and when a checkpointed layer is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from fastbert import _C
from fastbert.ops import backend, reference

# The bits of 1 / (1 - p) are handed to the native generator in the mask's own dtype.
_BITS = {torch.float32: torch.uint32, torch.bfloat16: torch.uint16, torch.float16: torch.uint16}


class Site(IntEnum):
    """Where dropout is applied; with the layer's number it makes the last word of the counter."""

    EMBEDDING = 0
    ATTENTION = 1
    ATTENTION_OUTPUT = 2
    FEED_FORWARD_OUTPUT = 3
    HEAD = 4

    def of_layer(self, layer: int) -> int:
        """The counter word of this site in one layer."""
        return layer << 8 | int(self)


@dataclass(frozen=True)
class TokenDropout:
    """Dropout on token vectors: probability, keys int64 (sequences,), each token's sequence and offset, the site."""

    p: float
    key: Tensor
    sequence_ids: Tensor
    offsets: Tensor
    site: int


def quantized(p: float) -> tuple[int, float]:
    """The 16-bit threshold of a dropout probability, and the factor 1 / (1 - p) that belongs to it."""
    threshold = min(round(p * 65536), 65535)
    return threshold, 65536 / (65536 - threshold)


def _keep_bits(scale: float, dtype: torch.dtype) -> int:
    return int(torch.tensor(scale, dtype=dtype).view(_BITS[dtype]).item())


def token_mask(dropout: TokenDropout, width: int, dtype: torch.dtype) -> Tensor:
    """The mask to multiply token vectors with: (tokens, width) in `dtype`, 0 or 1 / (1 - p)."""
    threshold, scale = quantized(dropout.p)
    if dtype in _BITS and backend.choose("dropout", dropout.key.device) == "native":
        mask = torch.empty(len(dropout.sequence_ids), width, dtype=dtype)
        _C.token_dropout_mask(
            mask.view(_BITS[dtype]).numpy(),
            dropout.key.numpy(),
            dropout.sequence_ids.numpy(),
            dropout.offsets.numpy(),
            dropout.site,
            threshold,
            _keep_bits(scale, dtype),
        )
        return mask
    mask = reference.token_dropout_mask(
        width, dropout.p, dropout.key, dropout.sequence_ids, dropout.offsets, dropout.site
    )
    return mask.to(dtype)


def attention_mask(shape: tuple[int, int, int, int], p: float, key: Tensor, site: int, dtype: torch.dtype) -> Tensor:
    """The mask of attention probabilities of sequences of one length: `shape` (sequences, heads, queries, keys)."""
    threshold, scale = quantized(p)
    if dtype in _BITS and backend.choose("dropout", key.device) == "native":
        mask = torch.empty(shape, dtype=dtype)
        _C.attention_dropout_mask(
            mask.view(_BITS[dtype]).numpy(), key.numpy(), site, threshold, _keep_bits(scale, dtype)
        )
        return mask
    _, heads, queries, keys = shape
    masks = [reference.attention_dropout_mask(heads, queries, keys, p, one, site) for one in key]
    return torch.stack(masks).to(dtype)


def dropout(x: Tensor, dropout: TokenDropout | None) -> Tensor:
    """Zero each element of `x` (tokens, width) with probability p and scale the rest by 1 / (1 - p).

    p counts in steps of 1/65536. `None` returns `x` as it is.
    """
    if dropout is None or dropout.p == 0.0:
        return x
    return backend.select("dropout", x.device)(x, dropout)


def _dropout(x: Tensor, dropout: TokenDropout) -> Tensor:
    return x * token_mask(dropout, x.shape[-1], x.dtype)


# The product is torch's on both; "native" means that the C++ generator writes the masks.
backend.register("dropout", "native", _dropout)
backend.register("dropout", "eager", _dropout)
