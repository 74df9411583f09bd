"""The gradient of the C++ GELU of CPUs at every dispatch level."""

import math
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from rowwise_kernels import DTYPES, LEVELS, Draw
from sweeps import sweep

from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.gelu.native import Native as Gelu


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has."""
    with cpu_kernels.running(request.param):
        yield request.param


@sweep("approximate", ["none", "tanh"])
@sweep("dtype", DTYPES)
def test_slope_of_a_dense_grid(approximate: str, dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-16.0, 16.0, 2**16 + 1), torch.tensor([-1e30, -200.0, 200.0, 1e30])]).to(dtype)
    actual = Gelu().backward(BiasGeluArguments(x, None, approximate == "tanh"), torch.ones_like(x), False)[0]
    leaf = x.double().clamp(-100.0, 100.0).requires_grad_()
    torch.nn.functional.gelu(leaf, approximate=approximate).sum().backward()
    assert float((actual.double() - leaf.grad).abs().max()) < (1e-6 if dtype == torch.float32 else 4.5e-3)
    infinite = torch.tensor([-math.inf, math.inf, math.nan], dtype=dtype)
    arguments = BiasGeluArguments(infinite, None, approximate == "tanh")
    slopes = Gelu().backward(arguments, torch.ones_like(infinite), False)[0]
    assert slopes[:2].tolist() == pytest.approx([0.0, 1.0], abs=1e-6)
    assert slopes[2].isnan()


@sweep("tanh", [False, True])
@sweep("biased", [False, True])
@sweep("dtype", DTYPES)
def test_sums_are_those_of_the_gradient(tanh: bool, biased: bool, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    x, grad, bias = draw.normal(130, 75, dtype=dtype), draw.normal(130, 75, dtype=dtype), draw.normal(75)
    bias = bias if biased else None
    dx, sums = Gelu().backward(BiasGeluArguments(x, bias, tanh), grad, True)
    alone, none = Gelu().backward(BiasGeluArguments(x, bias, tanh), grad, False)
    assert torch.equal(alone, dx)
    assert none is None
    torch.testing.assert_close(sums, dx.double().sum(0).float(), rtol=0.0, atol=2e-5 if dtype.itemsize == 4 else 0.1)
