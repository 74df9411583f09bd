"""The C++ LayerNorm of CPUs at every dispatch level: rows far from zero, and rows of one value."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from rowwise_kernels import DTYPES, LEVELS, Draw

from fastbert import ops, use_backend


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has, without gradients."""
    with cpu_kernels.running(request.param), torch.no_grad():
        yield request.param


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_far_from_zero_keep_their_digits(dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    x = (draw.normal(64, 768) + 1e4).to(dtype)
    weight, bias = draw.normal(768), draw.normal(768)
    with use_backend("native"):
        actual = ops.layer_norm(x, weight, bias)
    with use_backend("eager"):
        exact = ops.layer_norm(x.double(), weight.double(), bias.double())
    assert_as_accurate(actual, exact.to(dtype), exact)


def test_rows_of_one_value_give_the_bias(seed: int) -> None:
    values = torch.tensor([0.0, 1.0, -3.1, 1e4, 123456.7, 1e-20])
    bias = Draw(seed).normal(771)
    with use_backend("native"):
        y = ops.layer_norm(values[:, None].repeat(1, 771), torch.ones(771), bias)
    assert torch.equal(y, bias.expand_as(y))
