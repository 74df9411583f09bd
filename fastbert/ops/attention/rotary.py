"""Rotary position embeddings (Su et al. 2021) composed of PyTorch operations."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, rotary: Tensor, positions: Tensor, *, inverse: bool = False) -> Tensor:
    """Turn the first dims of x (tokens, heads, head_dim) by the angles of `positions`, int64 (tokens,).

    `rotary` (positions, rotary_dim) holds cosines, then sines; dim i of the first half of the rotated ones is turned
    against dim i of the second. `inverse` turns back, as gradients are. Returns shape and dtype of x; products are fp32
    or wider.
    """
    wide = torch.promote_types(x.dtype, rotary.dtype)
    cosines, sines = rotary.index_select(0, positions).to(wide).unsqueeze(1).chunk(2, dim=-1)
    if inverse:
        sines = -sines
    width = rotary.shape[1]
    first, second = x[..., :width].to(wide).chunk(2, dim=-1)
    turned = torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)
    return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


def positions_of(cu_seqlens: Tensor, tokens: int) -> Tensor:
    """Return the index of each token in its sequence, int64 (tokens,)."""
    starts = cu_seqlens.long()
    lengths = starts.diff()
    return torch.arange(tokens, device=cu_seqlens.device) - starts[:-1].repeat_interleave(lengths, output_size=tokens)
