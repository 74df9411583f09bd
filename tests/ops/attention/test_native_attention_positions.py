"""The native backend of attention with windows, rotary embeddings, biases by distance, relative positions and grouped
heads, at every level: as accurate as eager torch, the same bits in every batch, nothing read or written outside."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from torch import Tensor

from fastbert import ops, use_backend

LEVELS = ["portable", "avx2", "avx512", "avx512-bf16", "amx"]
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
TABLES = ("distance_bias", "position_keys", "position_queries")
# Features, heads of keys, window, causal, buckets in any order, dropout: every path of the kernels at least once.
CASES: list[tuple[set[str], int, int | None, bool, bool, float]] = [
    ({"rotary"}, 2, 3, False, False, 0.0),
    ({"rotary"}, 1, 70, True, False, 0.2),
    ({"distance_bias"}, 2, None, False, False, 0.2),
    ({"position_keys"}, 2, None, False, False, 0.0),
    ({"position_queries", "distance_bias"}, 1, 20, False, True, 0.0),
    ({"position_keys", "position_queries"}, 2, None, True, True, 0.2),
    ({"position_keys", "position_queries", "rotary", "distance_bias"}, 2, 40, False, False, 0.0),
]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way to multiply; in software where this processor lacks its instructions."""
    with cpu_kernels.running(request.param):
        yield request.param


def rotary_table(width: int, positions: int) -> Tensor:
    angles = torch.arange(positions)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.cat((angles.cos(), angles.sin()), 1)


def buckets(length: int, span: int) -> Tensor:
    """Return rows that fall with the distance: one each near the query, shared ones far from it."""
    distance = -torch.arange(1 - length, length)
    near, far = span // 2, (distance.abs() / (span // 2)).clamp(min=1).log2().ceil().long()
    return (
        torch.where(distance.abs() < near, distance, distance.sign() * (near + far)).clamp(1 - span, span - 1) + span
    ).int()


def case(index: int, lengths: list[int], dim: int, seed: int) -> tuple[list[Tensor], dict[str, Any]]:
    """Return q, k, v and the options of a case, float64."""
    features, groups, window, causal, shuffled, dropout = CASES[index]
    generator = torch.Generator().manual_seed(seed)
    heads, rows, length = 2, 24, max(lengths) + 3

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tensors = [drawn(sum(lengths), count, dim) for count in (heads, groups, groups)]
    options: dict[str, Any] = {"window": window, "causal": causal}
    if dropout:
        options |= {"dropout_p": dropout, "dropout_key": torch.arange(len(lengths)) * 77 + 5, "dropout_site": 3}
    made = {
        "rotary": lambda: rotary_table(dim - 4, length),
        "distance_bias": lambda: drawn(heads, 2 * length - 1),
        "position_keys": lambda: drawn(rows, heads, dim),
        "position_queries": lambda: drawn(rows, heads, dim),
    }
    options |= {name: make() for name, make in made.items() if name in features}
    if {"position_keys", "position_queries"} & features:
        options["buckets"] = buckets(length, rows // 2)
        if shuffled:
            order = torch.randperm(rows, generator=generator)
            options["buckets"] = order[options["buckets"].long()].int()
    return tensors, options


def run(
    backend: str, tensors: list[Tensor], options: dict[str, Any], lengths: list[int], dtype: torch.dtype, grad: Tensor
) -> dict[str, Tensor]:
    """Return the output and the gradients."""
    cu_seqlens, longest = torch.tensor([0, *lengths]).cumsum(0).int(), max(lengths)
    leaves = {name: x.to(dtype).requires_grad_() for name, x in zip("qkv", tensors, strict=True)}
    leaves |= {name: options[name].to(dtype).requires_grad_() for name in TABLES if name in options}
    q, k, v = (leaves[name] for name in "qkv")
    others = {**options, **{name: leaf for name, leaf in leaves.items() if name in options}}
    with use_backend(backend):  # type: ignore[arg-type]
        out = ops.attention(q, k, v, cu_seqlens, cu_seqlens, longest, longest, **others)
    gradients = torch.autograd.grad(out, list(leaves.values()), grad.to(dtype))
    return {"out": out, **dict(zip(leaves, gradients, strict=True))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_is_as_accurate_as_eager(level: str, dtype: torch.dtype, seed: int) -> None:
    """Sequences within a tile, of several tiles, and beyond a block of queries and of keys."""
    for index in range(len(CASES)):
        for lengths, dim in (([5, 33, 1, 0, 70], 20), ([300, 2], 32)):
            tensors, options = case(index, lengths, dim, seed)
            grad = torch.randn(sum(lengths), 2, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
            exact = run("eager", tensors, options, lengths, torch.float64, grad)
            eager = run("eager", tensors, options, lengths, dtype, grad)
            actual = run("native", tensors, options, lengths, dtype, grad)
            for name, value in actual.items():
                assert_as_accurate(value, eager[name], exact[name], f"{name} of case {index}, lengths {lengths}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_in_every_batch(level: str, dtype: torch.dtype, seed: int) -> None:
    lengths = [40, 17, 1, 400, 33]
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for index in range(len(CASES)):
        tensors, options = case(index, lengths, 32, seed)
        grad = torch.randn(sum(lengths), 2, 32, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        together = run("native", tensors, options, lengths, dtype, grad)
        for i, (begin, end) in enumerate(pairwise(ends)):
            one = dict(options)
            if "dropout_key" in one:
                one["dropout_key"] = one["dropout_key"][i : i + 1]
            alone = run("native", [x[begin:end] for x in tensors], one, [end - begin], dtype, grad[begin:end])
            for name in ("out", "q", "k", "v"):
                assert torch.equal(together[name][begin:end], alone[name]), f"{name} of sequence {i}, case {index}"


@pytest.mark.parametrize("behind", [False, True], ids=["wall-before", "wall-behind"])
def test_reads_nothing_outside(level: str, behind: bool, seed: int) -> None:
    lengths, names = [7, 33], ("rotary", "rotary_positions", "buckets", *TABLES)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    tensors, options = case(6, lengths, 20, seed)
    tensors = [x.float() for x in tensors]
    options = {name: x.float() if name in TABLES else x for name, x in options.items()}
    options["rotary_positions"] = torch.cat([torch.arange(length) for length in lengths])
    with use_backend("native"):
        expected = ops.attention(*tensors, cu_seqlens, cu_seqlens, 33, 33, **options)
        fenced = [Fenced(x, behind) for x in tensors]
        tables = {name: Fenced(options[name], behind) for name in names}
        inside = options | {name: fence.tensor for name, fence in tables.items()}
        actual = ops.attention(*[fence.tensor for fence in fenced], cu_seqlens, cu_seqlens, 33, 33, **inside)
    assert torch.equal(actual, expected)
