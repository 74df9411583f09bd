"""LayerNorms against the oracle, with random upstream gradients."""

import pytest
import torch
from accuracy import assert_as_accurate
from oracle_checks import DTYPES, SHAPES, check
from sweeps import sweep
from torch.nn import functional as F

import fastbert
from fastbert import ops
from fastbert.ops import reference


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(rows, width) * 3 + 1, torch.randn(width), torch.randn(width)]
    check(
        lambda x, w, b: ops.layer_norm(x, w, b, 1e-5),
        lambda x, w, b: F.layer_norm(x, (width,), w, b, 1e-5),
        lambda x, w, b: reference.layer_norm(x, w, b, 1e-5),
        tensors,
        dtype,
        seed,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_and_norms_without_a_bias(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    for rows, width in ((1, 1), (0, 8), (127, 768), (33, 1023)):
        tensors = [torch.randn(rows, width) * 3 + 1, torch.randn(width)]
        for operation, eager, oracle in (
            (
                lambda x, w: ops.rms_norm(x, w, 1e-6),
                lambda x, w: F.rms_norm(x, w.shape, w, 1e-6),
                lambda x, w: reference.rms_norm(x, w, 1e-6),
            ),
            (
                lambda x, w: ops.layer_norm(x, w, eps=1e-5),
                lambda x, w: F.layer_norm(x, w.shape, w, None, 1e-5),
                lambda x, w: reference.layer_norm(x, w, 0.0, 1e-5),
            ),
        ):
            check(operation, eager, oracle, tensors, dtype, seed)
    x, weight = tensors[0].to(dtype), tensors[1]
    mixed, wide = ops.rms_norm(x, weight), ops.rms_norm(x.double(), weight.double())
    assert mixed.dtype == dtype
    assert_as_accurate(mixed, wide.to(dtype), wide)


@sweep("rows", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@sweep("weights", [torch.float32, torch.bfloat16, torch.float16])
@sweep("biases", [torch.float32, torch.bfloat16])
def test_layer_norm_of_any_dtypes_rounds_no_rows(
    rows: torch.dtype, weights: torch.dtype, biases: torch.dtype, seed: int
) -> None:
    if rows == weights == biases:
        pytest.skip("torch's own kernel")
    torch.manual_seed(seed)
    tensors = (torch.randn(5, 40).to(rows), torch.randn(40).to(weights), torch.randn(40).to(biases))
    kinds = (rows, torch.float32, torch.float32)
    results = []
    with fastbert.use_backend("eager"):
        for form in (kinds, (torch.float64,) * 3, (rows, weights, biases)):
            leaves = [tensor.to(kind).requires_grad_() for tensor, kind in zip(tensors, form)]
            result = ops.layer_norm(*leaves)
            assert result.dtype == form[0]
            results.append([result, *torch.autograd.grad(result, leaves[0], torch.ones_like(result).cumsum(1))])
    for expected, exact, mine in zip(*results):
        assert_as_accurate(mine, expected, exact)


def test_dropout_add_layer_norm_is_its_parts(seed: int) -> None:
    torch.manual_seed(seed)
    x, residual = torch.randn(5, 24), torch.randn(5, 24)
    weight, bias = torch.randn(24), torch.randn(24)
    dropout = ops.TokenDropout(0.2, torch.tensor([3]), torch.zeros(5).long(), torch.arange(5), 1)
    together = ops.dropout_add_layer_norm(x, residual, weight, bias, 1e-12, dropout)
    parts = reference.layer_norm(ops.dropout(x, dropout) + residual, weight, bias, 1e-12)
    torch.testing.assert_close(together, parts)
    x_bias = torch.randn(24)
    together, total = ops.dropout_add_layer_norm(
        x, residual, weight, bias, 1e-12, dropout, x_bias=x_bias, return_sum=True
    )
    torch.testing.assert_close(total, ops.dropout(x + x_bias, dropout) + residual)
    torch.testing.assert_close(together, reference.layer_norm(total, weight, bias, 1e-12))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_layer_norm_is_its_parts(approximate: str, seed: int) -> None:
    torch.manual_seed(seed)
    x, bias, weight, norm_bias = torch.randn(5, 24), torch.randn(24), torch.randn(24), torch.randn(24)
    together = ops.gelu_layer_norm(x, bias, weight, norm_bias, 1e-12, approximate)
    parts = reference.layer_norm(reference.gelu(x + bias, approximate), weight, norm_bias, 1e-12)
    torch.testing.assert_close(together, parts)


def test_layer_norm_keeps_bf16_rows_and_fp32_weights_apart_under_autocast(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    weight, bias = torch.randn(64), torch.randn(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.layer_norm(x, weight, bias)
    assert y.dtype == torch.bfloat16
    exact = reference.layer_norm(x.double(), weight.double(), bias.double(), 1e-12)
    assert_as_accurate(y, exact.to(torch.bfloat16), exact)


def test_layer_norm_adds_weight_gradients_up_in_fp32(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, grad = (torch.randn(2000, 16, generator=generator).bfloat16() for _ in range(2))
    results = []
    for dtype in (torch.float32, torch.float64):
        weight, bias = torch.ones(16, dtype=dtype).requires_grad_(), torch.zeros(16, dtype=dtype).requires_grad_()
        y = ops.layer_norm(x if dtype == torch.float32 else x.double(), weight, bias)
        results.append(torch.autograd.grad(y, (weight, bias), grad.to(y.dtype)))
    for actual, exact in zip(*results):
        torch.testing.assert_close(actual.double(), exact, rtol=1e-4, atol=1e-3)
