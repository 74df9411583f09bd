"""The draws of attention's dropout: eight bits each, as random as Philox, and dropped as often as was asked for."""

import math

import pytest
import torch
from torch import Tensor

from fastbert import ops, use_backend
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import Site, quantized_attention
from fastbert.ops.dropout.masks import attention_mask

# Bounds are in standard deviations and keys are fixed: what passes once passes always.
SIGMAS = 5
KEY = torch.tensor([0x1F3D5B79A2C4E608, -77])


def test_p_is_rounded_to_a_256th_and_never_to_nothing() -> None:
    for p, threshold in {0.0: 0, 1e-9: 1, 1 / 512: 1, 0.05: 13, 0.1: 26, 0.3: 77, 0.5: 128, 1 - 1e-9: 255}.items():
        assert quantized_attention(p) == (threshold, 256 / (256 - threshold))
        assert reference.attention_dropout_threshold(p) == threshold
    for p in torch.linspace(1 / 512, 511 / 512, 4001, dtype=torch.float64).tolist():
        threshold, factor = quantized_attention(p)
        assert abs(threshold / 256 - p) <= 1 / 512
        assert factor == 256 / (256 - threshold)


def definition(head: int, query: int, key: int, site: int, sequence_key: int) -> int:
    """The draw of one probability, as docs/kernels.md defines it."""
    counter = (4 * (key // 64) + key % 8 // 2, query, head, site)
    words = reference.philox(tuple(map(torch.tensor, counter)), torch.tensor(sequence_key), 7)
    j = key % 64 // 8
    return int(words[j // 2]) >> 8 * (2 * (j % 2) + key % 2) & 0xFF


def test_the_oracle_draws_what_the_definition_says() -> None:
    site, sequence_key = Site.ATTENTION.of_layer(11), int(KEY[0])
    mask = reference.attention_dropout_mask(2, 3, 200, 0.3, torch.tensor(sequence_key), site)
    for key in [*range(66), 126, 127, 128, 199]:
        expected = definition(1, 2, key, site, sequence_key) >= 77
        assert float(mask[1, 2, key]) == (256 / (256 - 77) if expected else 0), f"key {key}"


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5])
def test_the_rate_and_the_expectation(p: float) -> None:
    mask = attention_mask((2, 4, 300, 500), p, KEY, Site.ATTENTION.of_layer(2), torch.float32).double()
    share = quantized_attention(p)[0] / 256
    deviation = math.sqrt(share * (1 - share) / mask.numel())
    assert abs(float((mask == 0).double().mean()) - share) < SIGMAS * deviation
    assert abs(float(mask.mean()) - 1) < SIGMAS * deviation / (1 - share)
    assert set(mask.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - share), dtype=torch.float32))}


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_the_mean_output_is_that_without_dropout(backend: str) -> None:
    copies, length = 1000, 12
    q, k, v = torch.randn(3, length, 2, 16, generator=torch.Generator().manual_seed(5)).unbind()
    keys = torch.randint(-(2**63), 2**63 - 1, (copies,), generator=torch.Generator().manual_seed(6))
    offsets = torch.arange(copies + 1, dtype=torch.int32) * length
    with use_backend(backend):  # type: ignore[arg-type]
        packed = [x.repeat(copies, 1, 1) for x in (q, k, v)]
        out = ops.attention(*packed, offsets, offsets, length, length, dropout_p=0.1, dropout_key=keys)
        expected = ops.attention(q, k, v, offsets[:2], offsets[:2], length, length)
    out = out.view(copies, *expected.shape).double()
    deviation = out.std(0) / math.sqrt(copies)
    assert float(((out.mean(0) - expected).abs() / deviation).max()) < SIGMAS


def blocks(sequence_key: int) -> Tensor:
    """The sixteen draws of each Philox block of 64 queries and four heads, (65536, 16)."""
    query, head = torch.arange(64)[None, :], torch.arange(4)[:, None]
    drawn = reference.draws(query, head, 257, torch.tensor(sequence_key).expand(4, 64), 256, bits=8)
    return drawn.reshape(-1, 16)


def test_draws_are_uniform_and_those_of_a_block_unrelated() -> None:
    drawn = blocks(int(KEY[0]))
    expected = len(drawn) / 256
    counts = torch.stack([torch.bincount(column, minlength=256) for column in drawn.unbind(1)]).double()
    chi_square = ((counts - expected) ** 2 / expected).sum(1)
    # Its distribution has 255 degrees of freedom: a mean of 255 and a variance of 510.
    assert float(((chi_square - 255) / math.sqrt(510)).abs().max()) < SIGMAS
    off_diagonal = drawn.double().T.corrcoef()[~torch.eye(16, dtype=torch.bool)]
    assert float(off_diagonal.abs().max()) < SIGMAS / math.sqrt(len(drawn))
    # Pairs of draws: the upper three bits of one and of the other fill 64 cells evenly.
    upper = drawn >> 5
    for i in range(16):
        for j in range(i):
            cells = torch.bincount(8 * upper[:, i] + upper[:, j], minlength=64).double()
            statistic = float(((cells - len(drawn) / 64) ** 2 / (len(drawn) / 64)).sum())
            assert abs(statistic - 63) < (SIGMAS + 1) * math.sqrt(2 * 63), f"draws {i} and {j}"


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_dropped_independently(p: float) -> None:
    masks = torch.stack(
        [attention_mask((2, 4, 256, 256), p, KEY, Site.ATTENTION.of_layer(n), torch.float32) for n in range(2)]
    )
    share = quantized_attention(p)[0] / 256
    dropped = ((masks == 0).double() - share) / math.sqrt(share * (1 - share))
    names = ("layers", "sequences", "heads", "queries", "keys")
    for axis, name in enumerate(names):
        for distance in (1, 2, 8, 16, 32, 64) if axis > 2 else (1,):
            count = dropped.shape[axis] - distance
            pairs = dropped.narrow(axis, 0, count) * dropped.narrow(axis, distance, count)
            assert abs(float(pairs.mean())) < SIGMAS / math.sqrt(pairs.numel()), f"{name}, {distance} apart"
