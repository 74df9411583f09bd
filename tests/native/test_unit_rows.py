"""Vectors of length 1: the native kernel has the bits of the composition in PyTorch, which gradients need."""

import pytest
import torch

from fastbert.embeddings.pooling import normalized


@pytest.mark.parametrize("width", [1, 2, 3, 16, 127, 384, 1025])
def test_bits_of_the_composition(width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(40, width, generator=generator) * torch.randn(40, 1, generator=generator).exp() * 10
    vectors[3], vectors[4], vectors[5, 0] = 0, 1e-30, float("nan")
    composed = normalized(vectors.clone().requires_grad_()).detach()
    assert torch.equal(normalized(vectors).view(torch.int32), composed.view(torch.int32))
    assert normalized(vectors[:0]).shape == (0, width)
