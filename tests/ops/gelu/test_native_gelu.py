"""The C++ GELU of CPUs at every dispatch level, for every bf16 and on a dense grid of fp32."""

import math
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from rowwise_kernels import LEVELS
from torch import Tensor

from fastbert import ops, use_backend


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has, without gradients."""
    with cpu_kernels.running(request.param), torch.no_grad():
        yield request.param


def bits(x: Tensor) -> Tensor:
    """bf16 numbers as integers in the order of the numbers."""
    whole = x.view(torch.int16).int()
    return torch.where(whole < 0, -(whole & 0x7FFF), whole)


def exact_gelu(x: Tensor, approximate: str) -> Tensor:
    """In float64, without cancellation far below zero; the limit 0 at -infinity."""
    x = x.double()
    if approximate == "none":
        y = x * torch.special.erfc(-x / math.sqrt(2.0)) / 2.0
    else:
        y = x / (1.0 + torch.exp(-2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    return torch.where(x == -math.inf, 0.0, y)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_every_bf16(approximate: str) -> None:
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    with use_backend("native"):
        y = ops.bias_gelu(x, None, approximate)
        also = ops.bias_gelu(x[:, None], torch.zeros(1), approximate)[:, 0]
    exact = exact_gelu(x, approximate).bfloat16()
    assert torch.equal(y.isnan(), x.isnan())
    number = ~x.isnan()
    assert torch.equal(also[number], y[number])
    assert int((bits(y[number]) - bits(exact[number])).abs().max()) <= 1


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_a_dense_grid(approximate: str) -> None:
    x = torch.linspace(-16.0, 16.0, 2**18 + 1)
    with use_backend("native"):
        y = ops.bias_gelu(x, None, approximate)
    assert float((y.double() - exact_gelu(x, approximate)).abs().div(x.abs().clamp(min=1.0)).max()) < 5e-7
