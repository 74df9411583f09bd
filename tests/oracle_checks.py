"""Checks shared by the tests of operations over rows: shapes, dtypes, and a comparison with the oracle."""

import pytest
import torch
from accuracy import assert_as_accurate

SHAPES = [
    pytest.param(1, 1, id="single"),
    pytest.param(0, 8, id="empty"),
    pytest.param(127, 768, id="base-width"),
    pytest.param(33, 1023, id="odd-width"),
]
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]


def check(operation, eager, oracle, tensors: list[torch.Tensor], dtype: torch.dtype, seed: int) -> None:
    """Values and gradients of `ours` are as close to the oracle in float64 as eager torch's in the same dtype."""
    generator = torch.Generator().manual_seed(seed)
    exact_in = [tensor.to(dtype).double() for tensor in tensors]
    upstream = torch.randn(oracle(*exact_in).shape, generator=generator).to(dtype)
    results = []
    for function, kind in ((operation, dtype), (eager, dtype), (oracle, torch.float64)):
        leaves = [tensor.to(kind).requires_grad_() for tensor in exact_in]
        output = function(*leaves)
        results.append([output, *torch.autograd.grad(output, leaves, upstream.to(output.dtype))])
    for number, (mine, expected, exact) in enumerate(zip(*results)):
        assert_as_accurate(mine, expected, exact, "output" if number == 0 else f"gradient of input {number}")
