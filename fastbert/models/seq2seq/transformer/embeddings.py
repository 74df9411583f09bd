"""Token embeddings with sinusoidal positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.op import dropout as apply_dropout
from fastbert.packing import PackedBatch

WAVELENGTH = 10_000.0
"""The longest wavelength, divided by 2 pi."""


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Compute position encodings (Vaswani et al. 2017, section 3.5), fp32 (tokens, width), of int64 (tokens,).

    Features 2i and 2i + 1 are sine and cosine of position / 10000^(2i / width), for an even width.
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles = positions[:, None] * torch.exp(exponents * -math.log(WAVELENGTH))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class SinusoidalEmbeddings(nn.Module):
    """Token embeddings times the root of their width (section 3.4), plus sinusoidal positions, with dropout."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.word_embeddings: nn.Embedding = nn.Embedding(vocab_size, width)

    def forward(self, batch: PackedBatch, dropout: TokenDropout | None) -> Tensor:
        """Return embeddings (tokens, width) in the dtype of the table."""
        rows: Tensor = self.word_embeddings(batch.input_ids)
        width = rows.shape[1]
        return apply_dropout(rows * math.sqrt(width) + sinusoids(batch.position_ids, width).to(rows.dtype), dropout)
