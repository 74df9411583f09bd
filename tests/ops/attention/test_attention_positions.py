"""Attention with windows, rotary embeddings, biases by distance, relative positions and grouped heads."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from fastbert import ops
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.attention.arguments import AttentionArguments, WantedGradients
from fastbert.ops.attention.op import ATTENTION

LENGTHS = (5, 33, 1, 70, 17)
HEADS, DIM, LENGTH, ROWS = 4, 16, 80, 10
CU_SEQLENS = torch.tensor([0, *itertools.accumulate(LENGTHS)], dtype=torch.int32)
FEATURES = ("window", "rotary", "distance_bias", "position_keys", "position_queries", "grouped")


def rotary_table(width: int = DIM, positions: int = 100) -> Tensor:
    frequencies = 1 / 10_000 ** (torch.arange(0, width, 2) / width)
    angles = torch.arange(positions).float()[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), 1)


def case(features: set[str], seed: int, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], dict[str, Any]]:
    """Return q, k, v and the options of a call that uses some features."""
    generator = torch.Generator().manual_seed(seed)
    groups = 2 if "grouped" in features else HEADS

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    tensors = [drawn(sum(LENGTHS), heads, DIM) for heads in (HEADS, groups, groups)]
    options: dict[str, Any] = {
        "window": 3,
        "rotary": rotary_table(DIM - 4),
        "distance_bias": drawn(HEADS, 2 * LENGTH - 1),
        "position_keys": drawn(ROWS, HEADS, DIM),
        "position_queries": drawn(ROWS, HEADS, DIM),
    }
    options = {name: value for name, value in options.items() if name in features}
    if {"position_keys", "position_queries"} & features:
        options["buckets"] = torch.randint(0, ROWS, (2 * LENGTH - 1,), generator=generator, dtype=torch.int32)
    return tensors, options


def leaves_of(tensors: list[Tensor], options: dict[str, Any]) -> list[Tensor]:
    """Return the tensors with gradients."""
    tables = [options[name] for name in ("distance_bias", "position_keys", "position_queries") if name in options]
    return [tensor.requires_grad_() for tensor in (*tensors, *tables)]


@pytest.mark.parametrize("causal", [False, True])
def test_every_combination_is_the_oracle(causal: bool, seed: int) -> None:
    for chosen in itertools.product((False, True), repeat=len(FEATURES)):
        features = {name for name, choice in zip(FEATURES, chosen, strict=True) if choice}
        tensors, options = case(features, seed)
        leaves = leaves_of(tensors, options)
        actual = ops.attention(*tensors, CU_SEQLENS, CU_SEQLENS, 70, 70, causal=causal, **options)
        expected = reference.attention(*tensors, CU_SEQLENS, CU_SEQLENS, causal=causal, **options)
        torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12, msg=f"{features}")
        grad = torch.randn(actual.shape, generator=torch.Generator().manual_seed(seed), dtype=actual.dtype)
        pairs = zip(torch.autograd.grad(actual, leaves, grad), torch.autograd.grad(expected, leaves, grad), strict=True)
        for gradient, oracle in pairs:
            torch.testing.assert_close(gradient, oracle, atol=1e-10, rtol=1e-10, msg=f"{features}")


def test_positions_replace_the_index_in_the_sequence(seed: int) -> None:
    """Rotary embeddings see differences alone, so shifted positions change nothing, and others do."""
    tensors, options = case({"rotary"}, seed)
    index = torch.cat([torch.arange(length) for length in LENGTHS])
    plain = ops.attention(*tensors, CU_SEQLENS, CU_SEQLENS, 70, 70, **options)
    shifted = ops.attention(*tensors, CU_SEQLENS, CU_SEQLENS, 70, 70, rotary_positions=index + 9, **options)
    stretched = ops.attention(*tensors, CU_SEQLENS, CU_SEQLENS, 70, 70, rotary_positions=index // 2, **options)
    torch.testing.assert_close(shifted, plain, atol=1e-5, rtol=1e-5)
    assert (stretched - plain).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window=0 must be an integer of at least 1 token on each side"),
        ({"window": 2**63 - 1}, r"window=9223372036854775807 must be an integer .* below 2\*\*31"),
        ({"window": 2.5}, "window=2.5 must be an integer"),
        ({"rotary": torch.zeros(100, 15)}, "rotary turns 15 dims of each head: they must be even"),
        ({"rotary": torch.zeros(100, 18)}, "at most head_dim=16"),
        ({"rotary": torch.zeros(69, 16)}, "rotary has 69 positions, but max_seqlen_k=70"),
        ({"rotary_positions": torch.zeros(126, dtype=torch.int64)}, "given without rotary"),
        ({"rotary": torch.zeros(9, 8), "rotary_positions": torch.full((126,), 9)}, "rotary_positions holds 9, outside"),
        ({"distance_bias": torch.zeros(4, 137)}, "distance_bias has 137 distances.* at least 139"),
        ({"position_keys": torch.zeros(5, 4, 16)}, "position_keys needs buckets"),
        (
            {"position_keys": torch.zeros(5, 4, 16), "buckets": torch.full((139,), 5, dtype=torch.int32)},
            "buckets holds 5, outside of a table of 5 rows",
        ),
        (
            {"position_queries": torch.zeros(5, 4, 8), "buckets": torch.zeros(139, dtype=torch.int32)},
            r"position_queries must be torch.float32 of shape \(rows, 4, 16\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    q = torch.randn(sum(LENGTHS), HEADS, DIM)
    with pytest.raises(UserError, match=message):
        ops.attention(q, q, q, CU_SEQLENS, CU_SEQLENS, 70, 70, **changes)


def test_grouped_heads_that_do_not_divide_are_named() -> None:
    q, k = torch.randn(3, 4, 8), torch.randn(3, 3, 8)
    cu_seqlens = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(UserError, match="q has 4 heads, k and v 3"):
        ops.attention(q, k, k, cu_seqlens, cu_seqlens, 3, 3)


def test_without_heads_or_tokens_there_are_no_results() -> None:
    cu_seqlens = torch.tensor([0, 3], dtype=torch.int32)
    headless = torch.randn(3, 0, 8)
    assert ops.attention(headless, headless, headless, cu_seqlens, cu_seqlens, 3, 3, window=1).shape == (3, 0, 8)
    q, empty = torch.randn(0, 4, 8, requires_grad=True), torch.tensor([0, 0], dtype=torch.int32)
    bias = torch.randn(4, 1, requires_grad=True)
    for backend in ("eager", "native"):
        arguments = AttentionArguments(
            q, q, q, empty, empty, 0, 0, False, 0.0, None, 0, None, 1.0, False, window=1, distance_bias=bias
        )
        operation = ATTENTION.backend(backend)
        with torch.no_grad():
            out, lse = operation.forward(arguments)
            gradients = operation.backward(arguments, out, lse, out, WantedGradients(distance_bias=True))
        assert gradients.q.shape == q.shape, backend
        assert torch.equal(gradients.distance_bias, torch.zeros(4, 1)), backend
