"""Inputs for tests of the Triton LayerNorms, and their comparison with float64."""

import pytest
import torch
from accuracy import assert_as_accurate

from fastbert import ops, use_backend
from fastbert.ops.dropout.arguments import TokenDropout

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
SITE = 259

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]


def random(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(spread).to(DEVICE)


def token_dropout(rows: int, seed: int, p: float = 0.2) -> TokenDropout:
    """Return the dropout of sequences with 7 tokens."""
    generator = torch.Generator().manual_seed(seed)
    key = torch.randint(-(2**63), 2**63 - 1, (rows // 7 + 1,), generator=generator).to(DEVICE)
    token = torch.arange(rows, device=DEVICE)
    return TokenDropout(p, key, token // 7, token % 7, SITE)


def inputs(rows: int, width: int, dtype: torch.dtype, seed: int, weights: torch.dtype | None = None) -> dict:
    """x, residual, x_bias, weight and bias, those of the norm in `weights`."""
    return {
        "x": random((rows, width), seed, 2.0).add(0.5).to(dtype),
        "residual": random((rows, width), seed + 1).to(dtype),
        "x_bias": random((width,), seed + 2).to(weights or dtype),
        "weight": random((width,), seed + 3).add(1.0).to(weights or dtype),
        "bias": random((width,), seed + 4).to(weights or dtype),
    }


def alone(x, weight, bias, residual=None, x_bias=None):
    return (ops.layer_norm(x, weight, bias, 1e-5),)


def of_gelu(x, weight, bias, x_bias=None, residual=None, approximate="none"):
    return (ops.gelu_layer_norm(x, x_bias, weight, bias, 1e-5, approximate),)


def of_sum(x, residual, weight, bias, x_bias=None, dropout=None):
    return ops.dropout_add_layer_norm(x, residual, weight, bias, 1e-5, dropout, x_bias=x_bias, return_sum=True)


def run(backend: str, function, tensors: dict, upstream: list, dtype: torch.dtype | None = None, **options) -> dict:
    """Results and gradients by name, computed on `backend`; with `dtype`, of inputs in that dtype."""
    leaves = {name: x.detach().to(dtype or x.dtype).requires_grad_() for name, x in tensors.items()}
    with use_backend(backend):
        results = function(**leaves, **options)
        reached = [(y, g.to(y.dtype)) for y, g in zip(results, upstream) if g is not None]
        used = [y for y, _ in reached]
        gradients = torch.autograd.grad(used, list(leaves.values()), [g for _, g in reached], allow_unused=True)
    actual = dict(zip(("y", "sum"), results)) | {f"d{name}": g for name, g in zip(leaves, gradients)}
    return {name: x for name, x in actual.items() if x is not None}


def check(function, tensors: dict, upstream: list, **options) -> dict:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    # As all of them get it: rounded before, and not on the way into the result's dtype.
    upstream = [None if g is None else g.to(tensors["x"].dtype) for g in upstream]
    actual = run("triton", function, tensors, upstream, **options)
    expected = run("eager", function, tensors, upstream, **options)
    exact = run("eager", function, tensors, upstream, torch.float64, **options)
    assert actual.keys() == exact.keys()
    x = tensors["x"]
    # Among few elements all of eager torch's roundings can be small by luck: half a unit of the last place is allowed.
    floor = max(1e-5, torch.finfo(x.dtype).eps / 2) if x.numel() < 1000 else 1e-5
    for name, truth in exact.items():
        assert_as_accurate(actual[name], expected[name], truth, name, floor=floor)
    return actual
