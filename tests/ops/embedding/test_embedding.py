"""Embeddings with their LayerNorm against the oracle."""

import torch

from fastbert import ops
from fastbert.ops import reference


def test_embedding_layer_norm_is_the_sum_of_three_tables(seed: int) -> None:
    torch.manual_seed(seed)
    tables = tuple(torch.randn(size, 16, dtype=torch.float64) for size in (50, 10, 2))
    ids = tuple(torch.randint(size, (7,)) for size in (50, 10, 2))
    weight, bias = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    words, positions, types = ids
    expected = reference.layer_norm(reference.embed(words, types, positions, tables), weight, bias, 1e-12)
    torch.testing.assert_close(ops.embedding_layer_norm(ids, tables, weight, bias, 1e-12), expected)
