"""LayerNorm, GELU, embeddings, matmuls and the loss against the oracle, with random upstream gradients."""

import pytest
import torch
from accuracy import assert_as_accurate
from torch.nn import functional as F

import fastbert
from fastbert import ops
from fastbert.errors import UserError
from fastbert.ops import dispatch, reference
from fastbert.ops.operation import operations

SHAPES = [
    pytest.param(1, 1, id="single"),
    pytest.param(0, 8, id="empty"),
    pytest.param(127, 768, id="base-width"),
    pytest.param(33, 1023, id="odd-width"),
]
DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]


def check(ours, eager, oracle, tensors: list[torch.Tensor], dtype: torch.dtype, seed: int) -> None:
    """Values and gradients of `ours` are as close to the oracle in float64 as eager torch's in the same dtype."""
    generator = torch.Generator().manual_seed(seed)
    exact_in = [tensor.to(dtype).double() for tensor in tensors]
    upstream = torch.randn(oracle(*exact_in).shape, generator=generator).to(dtype)
    results = []
    for function, kind in ((ours, dtype), (eager, dtype), (oracle, torch.float64)):
        leaves = [tensor.to(kind).requires_grad_() for tensor in exact_in]
        output = function(*leaves)
        results.append([output, *torch.autograd.grad(output, leaves, upstream.to(output.dtype))])
    for number, (mine, theirs, exact) in enumerate(zip(*results)):
        assert_as_accurate(mine, theirs, exact, "output" if number == 0 else f"gradient of input {number}")


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


@pytest.mark.parametrize("rows", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("biases", [torch.float32, torch.bfloat16])
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
    for theirs, exact, mine in zip(*results):
        assert_as_accurate(mine, theirs, exact)


@pytest.mark.parametrize(("rows", "width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_bias_gelu(rows: int, width: int, dtype: torch.dtype, approximate: str, seed: int) -> None:
    torch.manual_seed(seed)
    tensors = [torch.randn(rows, width) * 2, torch.randn(width)]
    check(
        lambda x, b: ops.bias_gelu(x, b, approximate),
        lambda x, b: F.gelu(x + b, approximate=approximate),
        lambda x, b: reference.gelu(x + b, approximate),
        tensors,
        dtype,
        seed,
    )


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


def test_embedding_layer_norm_is_the_sum_of_three_tables(seed: int) -> None:
    torch.manual_seed(seed)
    tables = tuple(torch.randn(size, 16, dtype=torch.float64) for size in (50, 10, 2))
    ids = tuple(torch.randint(size, (7,)) for size in (50, 10, 2))
    weight, bias = torch.randn(16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    words, positions, types = ids
    expected = reference.layer_norm(reference.embed(words, types, positions, tables), weight, bias, 1e-12)
    torch.testing.assert_close(ops.embedding_layer_norm(ids, tables, weight, bias, 1e-12), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
def test_linear_cross_entropy(smoothing: float, z_loss: float, seed: int) -> None:
    torch.manual_seed(seed)
    x, weight, bias = torch.randn(9, 16).double(), torch.randn(40, 16).double(), torch.randn(40).double()
    labels = torch.randint(40, (9,))
    labels[[2, 5]] = -100
    actual = ops.linear_cross_entropy(x, weight, bias, labels, label_smoothing=smoothing, z_loss=z_loss)
    labelled = labels != -100
    logits = x @ weight.T + bias
    expected = reference.cross_entropy(logits[labelled], labels[labelled], smoothing).sum()
    expected = expected + z_loss * logits[labelled].logsumexp(-1).square().sum()
    torch.testing.assert_close(actual.loss_sum.double(), expected, rtol=1e-5, atol=1e-5)
    assert actual.count == 7
    assert actual.correct == int((logits.argmax(-1) == labels).sum())


def test_layer_norm_keeps_bf16_rows_and_fp32_weights_apart_under_autocast(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(4, 64, dtype=torch.bfloat16)
    weight, bias = torch.randn(64), torch.randn(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ops.layer_norm(x, weight, bias)
    assert y.dtype == torch.bfloat16
    exact = reference.layer_norm(x.double(), weight.double(), bias.double(), 1e-12)
    assert_as_accurate(y, exact.to(torch.bfloat16), exact)


def test_use_backend_holds_inside_its_block_and_names_what_it_cannot_serve() -> None:
    x = torch.randn(2, 8)
    with (
        fastbert.use_backend("native"),
        pytest.raises(UserError, match=r"'native' does not support 'layer_norm' here: a tensor has .*float64"),
    ):
        ops.layer_norm(x.double(), torch.ones(8), torch.zeros(8))
    ops.layer_norm(x, torch.ones(8), torch.zeros(8))
    fastbert.use_backend("triton")
    fastbert.use_backend(None)
    ops.layer_norm(x, torch.ones(8), torch.zeros(8))
    with pytest.raises(UserError, match="unknown backend 'cuda'"):
        fastbert.use_backend("cuda")  # type: ignore[arg-type]


def test_report_names_every_operation_with_a_reason() -> None:
    choices = dispatch.report(torch.device("cpu"))
    assert [choice.operation for choice in choices] == list(operations())
    assert all(choice.backend in dispatch.BACKENDS and choice.reason for choice in choices)


def test_layer_norm_adds_weight_gradients_up_in_fp32(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, grad = (torch.randn(2000, 16, generator=generator).bfloat16() for _ in range(2))
    results = []
    for dtype in (torch.float32, torch.float64):
        weight, bias = torch.ones(16, dtype=dtype).requires_grad_(), torch.zeros(16, dtype=dtype).requires_grad_()
        y = ops.layer_norm(x if dtype == torch.float32 else x.double(), weight, bias)
        results.append(torch.autograd.grad(y, (weight, bias), grad.to(y.dtype)))
    for ours, exact in zip(*results):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-3)
