"""Matmuls too deep for one sum in registers, at every level."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from sweeps import sweep

from fastbert.ops.native import matmul


@pytest.fixture(params=[name for name in cpu_kernels.HERE if name != "avx512-vnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


@sweep("depth", [8193, 10240, 12301])
@sweep("element", ["fp32", "bf16"])
def test_slices_add_up(level: str, element: str, depth: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if element == "fp32" else torch.bfloat16
    x, weight = (torch.randn(rows, depth, generator=generator).to(dtype) * 0.1 for rows in (17, 37))
    bias, residual = torch.randn(37, generator=generator), torch.randn(17, 37, generator=generator).to(dtype)
    packed = matmul.prepack(weight, element)
    actual = matmul.matmul(x, packed, bias, residual=residual)
    exact = x.double() @ weight.double().t() + bias + residual
    expected = torch.nn.functional.linear(x, weight, bias.to(dtype)) + residual
    assert_as_accurate(actual, expected, exact, floor=1e-5 if element == "fp32" else 5e-3)
    assert torch.equal(actual[3:5], matmul.matmul(x[3:5], packed, bias, residual=residual[3:5]))
