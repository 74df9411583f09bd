"""Gradients of the row-wise C++ kernels of CPUs at every dispatch level, against float64 and eager torch.

One file: all operations share the inputs, shapes, levels and checks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import DTYPES, LEVELS, NAMES, Draw, apart, check
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout, quantized
from fastbert.ops.gelu.arguments import BiasGeluArguments
from fastbert.ops.gelu.native import Native as Gelu
from fastbert.ops.norm.arguments import LayerNormArguments
from fastbert.ops.norm.native import GeluLayerNorm, LayerNorm

SITE = 259
SHAPES = [
    pytest.param(0, 64, id="no-row"),
    pytest.param(1, 1, id="one-element"),
    pytest.param(65, 1, id="width-1"),
    pytest.param(1, 768, id="one-row"),
    pytest.param(130, 33, id="width-33"),
    pytest.param(128, 768, id="base-width"),
    pytest.param(5, 1023, id="odd-width"),
    pytest.param(4097, 17, id="4097-rows"),
]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has."""
    with cpu_kernels.running(request.param):
        yield request.param


def dropping(rows: int, seed: int, p: float = 0.2) -> TokenDropout:
    """Return the dropout of sequences with 7 tokens; ids of both dtypes."""
    key = torch.randint(-(2**63), 2**63 - 1, (rows // 7 + 1,), generator=torch.Generator().manual_seed(seed))
    token = torch.arange(rows)
    return TokenDropout(p, key, token // 7, (token % 7).int(), SITE)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.layer_norm(x, weight, bias),)


def of_sum(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    return ops.dropout_add_layer_norm(x, residual, weight, bias, x_bias=x_bias, return_sum=True)


def of_dropped(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    dropout = dropping(x.shape[0], x.shape[1])
    return ops.dropout_add_layer_norm(x, residual, weight, bias, token_dropout=dropout, x_bias=x_bias, return_sum=True)


def gelu(x: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.bias_gelu(x, x_bias),)


def gelu_tanh(x: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.bias_gelu(x, x_bias, "tanh"),)


def gelu_alone(x: Tensor) -> tuple[Tensor, ...]:
    return (ops.bias_gelu(x, None),)


def gelu_norm(x: Tensor, weight: Tensor, bias: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.gelu_layer_norm(x, x_bias, weight, bias),)


def gelu_norm_alone(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.gelu_layer_norm(x, None, weight, bias, approximate="tanh"),)


def dropout(x: Tensor) -> tuple[Tensor, ...]:
    return (ops.dropout(x, dropping(x.shape[0], x.shape[1])),)


def norm_unbiased(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (ops.layer_norm(x, weight, None),)


def norm_unbiased_of_dropped(x: Tensor, residual: Tensor, weight: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    dropout = dropping(x.shape[0], x.shape[1])
    return ops.dropout_add_layer_norm(x, residual, weight, None, 1e-5, dropout, x_bias=x_bias, return_sum=True)


def gelu_norm_unbiased(x: Tensor, weight: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    return (ops.gelu_layer_norm(x, x_bias, weight),)


def rms_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return (ops.rms_norm(x, weight),)


def rms_norm_of_sum(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return ops.dropout_add_rms_norm(x, residual, weight, return_sum=True)


def rms_norm_of_dropped(x: Tensor, residual: Tensor, weight: Tensor, x_bias: Tensor) -> tuple[Tensor, ...]:
    dropout = dropping(x.shape[0], x.shape[1])
    return ops.dropout_add_rms_norm(x, residual, weight, token_dropout=dropout, x_bias=x_bias, return_sum=True)


UNBIASED = [norm_unbiased, norm_unbiased_of_dropped, gelu_norm_unbiased, rms_norm, rms_norm_of_sum, rms_norm_of_dropped]
WITH_SUM = (of_sum, of_dropped, norm_unbiased_of_dropped, rms_norm_of_sum, rms_norm_of_dropped)
FUNCTIONS = [
    layer_norm, of_sum, of_dropped, gelu, gelu_tanh, gelu_alone, gelu_norm, gelu_norm_alone, dropout, *UNBIASED
]  # fmt: skip
Function = Callable[..., tuple[Tensor, ...]]


def inputs(function: Function, rows: int, width: int, dtype: torch.dtype, seed: int, *kinds: torch.dtype) -> list[Any]:
    """Tensors by the names of the function's arguments; vectors of one dtype, or of two in turn."""
    draw = Draw(seed)
    made = {
        "x": draw.normal(rows, width).mul(2.0).add(0.5).to(dtype),
        "residual": draw.normal(rows, width, dtype=dtype),
        "weight": draw.normal(width).add(1.0),
        "bias": draw.normal(width),
        "x_bias": draw.normal(width),
    }
    vectors = [name for name, x in made.items() if x.dim() == 1]
    for i, name in enumerate(vectors):
        made[name] = made[name].to((kinds or (dtype,))[i % len(kinds or (dtype,))])
    return [made[name] for name in function.__annotations__ if name != "return"]


def upstream(function: Function, rows: int, width: int, dtype: torch.dtype, seed: int) -> list[Tensor]:
    draw = Draw(seed + 1)
    return [draw.normal(rows, width, dtype=dtype) for _ in range(2 if function in WITH_SUM else 1)]


def run(
    function: Function, operands: list[Tensor], grads: list[Tensor], backend: str | None = "native"
) -> list[Tensor]:
    """Results, then gradients of all arguments."""
    leaves = [x.detach().requires_grad_() for x in operands]
    with use_backend(backend):  # type: ignore[arg-type]
        results = function(*leaves)
        actual = torch.autograd.grad(results, leaves, [g.to(y.dtype) for g, y in zip(grads, results)])
    return [*(y.detach() for y in results), *actual]


@sweep("function", FUNCTIONS)
@sweep("dtype", DTYPES)
@sweep(("rows", "width"), SHAPES)
def test_gradients_are_as_accurate_as_torchs(
    function: Function, dtype: torch.dtype, rows: int, width: int, seed: int
) -> None:
    if width == 1 and "norm" in function.__name__:
        pytest.skip("the norm of one element is constant, and eager torch's gradient is what rounding leaves")
    operands, grads = inputs(function, rows, width, dtype, seed), upstream(function, rows, width, dtype, seed)
    actual, eager = run(function, operands, grads), run(function, operands, grads, "eager")
    exact = run(function, [x.double() for x in operands], [g.double() for g in grads], "eager")
    for i, (a, b, c) in enumerate(zip(actual, eager, exact, strict=True)):
        check(a, b, c, f"{function.__name__}: result or gradient {i}")


@pytest.mark.parametrize("function", [of_dropped, gelu, gelu_norm])
def test_vectors_of_other_dtypes(function: Function, seed: int) -> None:
    kinds = (torch.float32, torch.bfloat16)
    operands = inputs(function, 70, 65, torch.bfloat16, seed, *kinds)
    grads = upstream(function, 70, 65, torch.bfloat16, seed)
    alike = [x if x.dim() > 1 else x.float() for x in operands]
    for x, one, other in zip(
        [*grads, *operands], run(function, operands, grads), run(function, alike, grads), strict=True
    ):
        assert one.dtype == x.dtype
        # The same numbers in fp32 are the same call, but for the dtype of the vectors' gradients.
        assert torch.equal(one, other.to(one.dtype))


@sweep("function", FUNCTIONS)
@sweep("dtype", DTYPES)
def test_same_bits_on_every_run_and_any_threads(function: Function, dtype: torch.dtype, seed: int) -> None:
    operands, grads = inputs(function, 333, 769, dtype, seed), upstream(function, 333, 769, dtype, seed)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, again = run(function, operands, grads), run(function, operands, grads)
        torch.set_num_threads(1)
        alone = run(function, operands, grads)
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


LAYOUTS = [
    pytest.param(apart, id="rows-apart"),
    pytest.param(lambda x: x.t().contiguous().t(), id="elements-apart"),
    pytest.param(lambda x: x[:1].expand_as(x), id="one-row-many-times"),
    pytest.param(lambda x: x[:1, :1].expand_as(x), id="one-element-many-times"),
]


@sweep("function", FUNCTIONS)
@sweep("layout", LAYOUTS)
def test_rows_and_gradients_of_any_strides(function: Function, layout: Callable[[Tensor], Tensor], seed: int) -> None:
    operands = inputs(function, 71, 37, torch.bfloat16, seed)
    grads = [layout(g) for g in upstream(function, 71, 37, torch.bfloat16, seed)]
    strided = [layout(x) if x.dim() == 2 else x for x in operands]
    plain = run(function, [x.clone(memory_format=torch.contiguous_format) for x in strided], [g.clone() for g in grads])
    for one, other in zip(run(function, strided, grads), plain, strict=True):
        assert torch.equal(one, other)


@sweep("function", FUNCTIONS)
def test_a_row_knows_nothing_of_its_neighbours(function: Function, seed: int) -> None:
    operands, grads = inputs(function, 9, 131, torch.float32, seed), upstream(function, 9, 131, torch.float32, seed)
    spoilt = [x.clone() for x in operands]
    spoilt[0][3] = torch.nan
    kept = [0, 1, 2, 4, 5, 6, 7, 8]
    rows = [i for i, x in enumerate([*grads, *operands]) if x.dim() == 2]
    whole, partly = run(function, operands, grads), run(function, spoilt, grads)
    for i in rows:
        assert torch.equal(whole[i][kept], partly[i][kept])


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_forward_keeps(dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    x, residual = draw.normal(40, 96, dtype=dtype), draw.normal(40, 96, dtype=dtype)
    weight, bias, x_bias = draw.normal(96), draw.normal(96), draw.normal(96)
    drops = dropping(40, seed)
    arguments = LayerNormArguments(x, x_bias, residual, weight, bias, 1e-5, drops)
    y, total, mean, rstd = LayerNorm().forward_rows(arguments, True)
    _, keep = quantized(drops.p)
    masked = (x.float() + x_bias) * (ops.dropout(torch.ones(40, 96), drops) != 0) * keep
    close = {"rtol": 1e-6 if dtype == torch.float32 else 1e-2, "atol": 1e-6}
    torch.testing.assert_close(total, (masked + residual.float()).to(dtype), **close)
    alone = LayerNormArguments(total, None, None, weight, bias, 1e-5, None)
    again, same, *statistics = LayerNorm().forward_rows(alone, True)
    assert torch.equal(y, again)
    assert same is total
    for one, other in zip((mean, rstd), statistics):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(mean, total.float().mean(1), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(rstd, (total.double().var(1, correction=0) + 1e-5).rsqrt().float(), rtol=1e-6, atol=0.0)
    quick = LayerNorm().forward_rows(arguments, False)
    assert torch.equal(quick[0], y)
    assert [len(x) for x in quick[1:]] == [0, 0, 0]


def test_without_dropout_the_gradients_of_x_and_residual_are_one(seed: int) -> None:
    draw = Draw(seed)
    grad, beside, total = (draw.normal(20, 33) for _ in range(3))
    mean, rstd, weight = draw.normal(20), draw.normal(20).abs(), draw.normal(33)
    dx, none, sums = LayerNorm().backward(grad, beside, total, mean, rstd, weight, None, x_bias=True, residual=True)
    assert none is None
    torch.testing.assert_close(sums[2], dx.sum(0))
    drops = dropping(20, seed)
    dropped, dresidual, _ = LayerNorm().backward(
        grad, beside, total, mean, rstd, weight, drops, x_bias=False, residual=True
    )
    assert torch.equal(dresidual, dx)
    assert torch.equal(dropped, ops.dropout(dx, drops))


@sweep("result", [0, 1])
@sweep("function", [of_sum, of_dropped])
def test_either_result_may_take_the_gradient(function: Function, result: int, seed: int) -> None:
    operands, grad = inputs(function, 20, 96, torch.float32, seed), Draw(seed + 1).normal(20, 96)

    def gradients(dtype: torch.dtype, backend: str) -> list[Tensor | None]:
        leaves = [x.to(dtype).requires_grad_() for x in operands]
        with use_backend(backend):  # type: ignore[arg-type]
            y = function(*leaves)[result]
            return list(torch.autograd.grad(y, leaves, grad.to(dtype), allow_unused=True))

    actual, eager, exact = (
        gradients(torch.float32, "native"), gradients(torch.float32, "eager"), gradients(torch.float64, "eager")
    )  # fmt: skip
    for a, b, c in zip(actual, eager, exact, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None and c is not None:
            check(a, b, c, "gradient")


def test_a_gradient_of_a_gradient_is_refused(seed: int) -> None:
    for function in (layer_norm, of_dropped, gelu, gelu_norm):
        leaves = [x.requires_grad_() for x in inputs(function, 5, 16, torch.float32, seed)]
        y = function(*leaves)[0]
        (dx,) = torch.autograd.grad(y, leaves[0], torch.ones_like(y), create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            torch.autograd.grad(dx.square().sum(), leaves[0])


@pytest.mark.parametrize("with_all", [False, True], ids=["bare", "bias-and-dropout"])
def test_the_operators_keep_their_promises(with_all: bool, level: str, seed: int) -> None:
    if level != "portable":
        pytest.skip("what is asked is of Python, so one level is enough")
    x, residual, weight, bias, x_bias = (x.requires_grad_() for x in inputs(of_sum, 5, 40, torch.float32, seed))
    draw, operators = Draw(seed), torch.ops.fastbert
    grad, mean, rstd = draw.normal(5, 40), draw.normal(5), draw.normal(5)
    bare = [tensor.detach() for tensor in (x, x_bias, weight)]
    drops = dropping(5, seed)
    parts = (
        (drops.p, drops.key, drops.sequence_ids, drops.offsets, drops.site) if with_all else (0.0, None, None, None, 0)
    )
    optional = x_bias if with_all else None
    for norm_bias, rms in ((bias, False), (None, False), (None, True)):
        has_bias, middle = norm_bias is not None, mean[:0] if rms else mean
        torch.library.opcheck(operators.layer_norm.default, (x, weight, norm_bias, 1e-5, rms, True, "native"))
        arguments = (grad, bare[0], middle, rstd, bare[2], has_bias, rms, "native")
        torch.library.opcheck(operators.layer_norm_backward.default, arguments)
        arguments = (x, optional, residual, weight, norm_bias, 1e-5, *parts, rms, True, "native")
        torch.library.opcheck(operators.dropout_add_layer_norm.default, arguments)
        arguments = (
            grad, grad if with_all else None, bare[0], middle, rstd, bare[2], *parts, has_bias, with_all, rms, "native"
        )  # fmt: skip
        torch.library.opcheck(operators.dropout_add_layer_norm_backward.default, arguments)
    arguments = (x, optional, weight, bias, 1e-5, with_all, True, "native")
    torch.library.opcheck(operators.gelu_layer_norm.default, arguments)
    arguments = (grad, bare[0], bare[1] if with_all else None, mean, rstd, bare[2], with_all, True, "native")
    torch.library.opcheck(operators.gelu_layer_norm_backward.default, arguments)
    torch.library.opcheck(operators.bias_gelu.default, (x, optional, with_all, "native"))
    torch.library.opcheck(
        operators.bias_gelu_backward.default,
        (grad, bare[0], bare[1] if with_all else None, with_all, with_all, "native"),
    )
    if with_all:
        torch.library.opcheck(operators.dropout.default, (x, *parts[1:4], drops.p, drops.site, "native"))


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", DTYPES)
@sweep("width", [1, 7, 15, 33, 48, 771])
def test_nothing_outside_is_touched(behind: bool, dtype: torch.dtype, width: int, seed: int) -> None:
    draw, rows = Draw(seed), 5
    x, grad, beside, dx, dresidual, y = (Fenced(draw.normal(rows, width, dtype=dtype), behind) for _ in range(6))
    weight, bias = (Fenced(draw.normal(width, dtype=dtype), behind) for _ in range(2))
    mean, rstd, sums, column = (
        Fenced(draw.normal(*shape).abs(), behind) for shape in ((rows,), (rows,), (3, width), (width,))
    )
    drops = dropping(rows, seed)
    key, sequence, offset = (Fenced(one, behind) for one in (drops.key, drops.sequence_ids, drops.offsets))
    threshold, keep = quantized(drops.p)
    dropout = (
        key.address, len(drops.key), sequence.address, True, offset.address, False, SITE, threshold, keep
    )  # fmt: skip
    head, statistics = (rows, width, NAMES[dtype]), (mean.address, rstd.address)
    _C.layer_norm_backward(
        *head, grad.address, width, beside.address, width, x.address, width, *statistics, weight.address,
        NAMES[dtype], dropout, dx.address, dresidual.address, True, True, False, sums.address,
    )  # fmt: skip
    expected = LayerNorm().backward(
        grad.tensor, beside.tensor, x.tensor, mean.tensor, rstd.tensor, weight.tensor, drops, x_bias=True, residual=True
    )
    assert all(torch.equal(one.tensor, two) for one, two in zip((dx, dresidual, sums), expected))
    _C.dropout(*head, x.address, width, dropout, y.address)
    assert torch.equal(y.tensor, ops.dropout(x.tensor, drops))
    for tanh in (False, True):
        _C.bias_gelu_backward(
            *head, grad.address, width, x.address, width, bias.address, NAMES[dtype], tanh,
            dx.address, y.address, column.address,
        )  # fmt: skip
        arguments = BiasGeluArguments(x.tensor, bias.tensor, tanh)
        expected = (*Gelu().backward(arguments, grad.tensor, True), Gelu().forward(arguments))
        assert all(torch.equal(one.tensor, two) for one, two in zip((dx, column, y), expected))
        _C.gelu_layer_norm_backward(
            *head, grad.address, width, x.address, width, bias.address, weight.address, NAMES[dtype], tanh,
            *statistics, dx.address, True, sums.address,
        )  # fmt: skip
        of_norm = GeluLayerNorm().backward(
            grad.tensor, x.tensor, bias.tensor, mean.tensor, rstd.tensor, weight.tensor, tanh, True
        )
        assert torch.equal(dx.tensor, of_norm[0])
        assert torch.equal(sums.tensor, of_norm[1])


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_sequence_without_a_key_is_named(wrong: int, seed: int) -> None:
    x, drops, unit = Draw(seed).normal(20, 8), dropping(20, seed), (torch.ones(8), torch.zeros(8))
    ids = drops.sequence_ids.clone()
    ids[17] = wrong
    bad = TokenDropout(drops.p, drops.key, ids, drops.offsets, SITE)
    for call in (
        lambda: ops.dropout(x, bad),
        lambda: ops.dropout_add_layer_norm(x, x, *unit, token_dropout=bad),
        lambda: ops.embedding_layer_norm([torch.zeros(20).long()], [x], *unit, token_dropout=bad),
    ):
        with pytest.raises(UserError, match=rf"token_dropout.sequence_ids\[17\]={wrong} has no key: .* below 3"):
            call()


@sweep("width", [1, 33, 768])
@sweep("dtype", DTYPES)
def test_drops_what_a_mask_drops(width: int, dtype: torch.dtype, seed: int) -> None:
    x, drops = Draw(seed).normal(30, width, dtype=dtype), dropping(30, seed)
    with use_backend("eager"):
        mask = ops.dropout(torch.ones(30, width), drops)
    assert torch.equal(ops.dropout(x, drops), (x.float() * mask).to(dtype))
    leaf = x.requires_grad_()
    y = ops.dropout(leaf, drops)
    (dx,) = torch.autograd.grad(y, leaf, torch.ones_like(y), create_graph=True)
    assert torch.equal(dx, mask.to(dtype))


@sweep("function", [of_dropped, gelu, gelu_norm, dropout])
def test_is_chosen_where_a_gradient_is_wanted(function: Function, seed: int) -> None:
    operands, grads = inputs(function, 33, 129, torch.bfloat16, seed), upstream(function, 33, 129, torch.bfloat16, seed)
    for chosen, native in zip(run(function, operands, grads, None), run(function, operands, grads), strict=True):
        assert torch.equal(chosen, native)


def test_backward_may_run_outside_of_the_backend_of_its_forward(seed: int) -> None:
    operands, grads = inputs(of_dropped, 20, 40, torch.float32, seed), upstream(of_dropped, 20, 40, torch.float32, seed)
    leaves = [x.requires_grad_() for x in operands]
    expected = run(of_dropped, operands, grads)[2:]
    for backward in ("eager", None):
        with use_backend("native"):
            results = of_dropped(*leaves)
        with use_backend(backward):  # type: ignore[arg-type]
            actual = torch.autograd.grad(results, leaves, grads)
        assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
