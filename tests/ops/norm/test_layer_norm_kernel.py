"""The Triton LayerNorms against float64 and eager torch: compiled on a GPU, or interpreted (TRITON_INTERPRET=1)."""

import math

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from norm_kernels import (
    DEVICE,
    DTYPES,
    INTERPRETED,
    SITE,
    alone,
    check,
    inputs,
    of_gelu,
    of_sum,
    random,
    run,
    token_dropout,
)

from fastbert import ops, use_backend
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.dropout.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs import norm as shipped_norm
from fastbert.kernels.norm import gelu_layer_norm, layer_norm

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]

CASES = [
    pytest.param(0, 64, torch.bfloat16, id="no-row"),
    pytest.param(1, 1, torch.float32, id="one-element"),
    pytest.param(1, 96, torch.float16, id="one-row"),
    pytest.param(37, 768, torch.bfloat16, id="base-width"),
    *(
        pytest.param(rows, width, dtype.values[0], id=f"width-{width}-{dtype.id}")
        for rows, width in ((300, 96), (9, 33), (200, 129))
        for dtype in DTYPES
    ),
]
# Gradients reach the norm, the sum, or both.
REACHED = [pytest.param((True, False), id="y"), pytest.param((False, True), id="sum")]


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize(("rows", "width"), [(5, 33), (270, 96), (3, 300)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_every_element_and_nothing_around(
    rows: int, width: int, dtype: torch.dtype, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards: list[Guarded] = []

    def guarded(tensor: torch.Tensor) -> torch.Tensor:
        guards.append(Guarded(tensor, torch.device(DEVICE)))
        return guards[-1].tensor

    def empty(shape, **options) -> torch.Tensor:
        return guarded(torch.full(shape if isinstance(shape, tuple) else (shape,), torch.nan, **options))

    x, residual, x_bias, weight, bias = map(guarded, inputs(rows, width, dtype, seed).values())
    gradient, other = (guarded(random((rows, width), seed + i).to(dtype)) for i in (5, 6))
    monkeypatch.setattr(torch, "empty", empty)
    for dropout in (None, token_dropout(rows, seed)):
        drops = kernel_inputs(dropout)
        y, total, mean, rstd = layer_norm.forward(x, x_bias, residual, weight, bias, 1e-5, drops, True)
        flags = {"x_bias": True, "residual": True}
        layer_norm.backward(gradient, other, total, mean, rstd, weight, drops, **flags)
    y, total, mean, rstd = layer_norm.forward(x, None, None, weight, bias, 1e-5, None, True)
    assert total is x
    assert y.shape == x.shape
    layer_norm.backward(gradient, None, total, mean, rstd, weight, None, x_bias=False, residual=False)
    y, mean, rstd = gelu_layer_norm.forward(x, x_bias, weight, bias, 1e-5, False, True)
    gelu_layer_norm.backward(gradient, x, x_bias, mean, rstd, weight, False)
    monkeypatch.undo()
    assert len(guards) > 30
    for guard in guards:
        guard.check()
        assert guard.tensor.isfinite().all()


@pytest.mark.parametrize(("rows", "width", "dtype"), CASES)
def test_layer_norm_is_as_accurate_as_torch(rows: int, width: int, dtype: torch.dtype, seed: int) -> None:
    tensors = inputs(rows, width, dtype, seed)
    del tensors["residual"], tensors["x_bias"]
    check(alone, tensors, [random((rows, width), seed + 5)])


@pytest.mark.parametrize(("rows", "width", "dtype"), CASES)
@pytest.mark.parametrize("dropped", [False, True], ids=["", "dropout"])
def test_norm_of_a_sum_is_as_accurate_as_torch(
    rows: int, width: int, dtype: torch.dtype, dropped: bool, seed: int
) -> None:
    upstream = [random((rows, width), seed + i) for i in (5, 6)]
    dropout = token_dropout(rows, seed) if dropped else None
    check(of_sum, inputs(rows, width, dtype, seed), upstream, dropout=dropout)


@pytest.mark.parametrize(("rows", "width", "dtype"), CASES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_norm_of_a_gelu_is_as_accurate_as_torch(
    rows: int, width: int, dtype: torch.dtype, approximate: str, seed: int
) -> None:
    tensors = inputs(rows, width, dtype, seed)
    del tensors["residual"]
    if width == 33:
        del tensors["x_bias"]
    check(of_gelu, tensors, [random((rows, width), seed + 5)], approximate=approximate)


@pytest.mark.parametrize("function", [alone, of_gelu, of_sum])
def test_the_widest_rows(function, seed: int) -> None:
    tensors = inputs(3, shipped_norm.WIDEST, torch.float16, seed)
    results = []
    for backend, dtype in (("triton", torch.float16), ("eager", torch.float16), ("eager", torch.float64)):
        with use_backend(backend):
            results.append(function(**{name: x.to(dtype) for name, x in tensors.items()}))
    for mine, other, exact in zip(*results):
        assert_as_accurate(mine, other, exact)


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize("dropped", [False, True], ids=["", "dropout"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "x_bias"])
def test_either_result_may_take_the_gradient(
    reached: tuple[bool, bool], dropped: bool, biased: bool, seed: int
) -> None:
    tensors = inputs(20, 96, torch.float32, seed)
    if not biased:
        del tensors["x_bias"]
    upstream = [random((20, 96), seed + i) if used else None for i, used in zip((5, 6), reached)]
    actual = check(of_sum, tensors, upstream, dropout=token_dropout(20, seed) if dropped else None)
    if not reached[0]:
        assert not {"dweight", "dbias"} & actual.keys()


@pytest.mark.parametrize("rows_dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_weights_and_residual_may_have_other_dtypes(rows_dtype: torch.dtype, seed: int) -> None:
    tensors = inputs(40, 96, rows_dtype, seed, weights=torch.float32)
    tensors["residual"] = tensors["residual"].float()
    upstream = [random((40, 96), seed + i) for i in (5, 6)]
    actual = check(of_sum, tensors, upstream, dropout=token_dropout(40, seed))
    for name, tensor in tensors.items():
        assert actual[f"d{name}"].dtype == tensor.dtype
    del tensors["residual"]
    assert check(of_gelu, tensors, upstream[:1])["dx_bias"].dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropped", [False, True], ids=["", "dropout"])
def test_the_norm_is_that_of_the_returned_sum(dtype: torch.dtype, dropped: bool, seed: int) -> None:
    tensors = inputs(21, 200, dtype, seed)
    with use_backend("triton"):
        y, total = of_sum(**tensors, dropout=token_dropout(21, seed) if dropped else None)
        (again,) = alone(total, tensors["weight"], tensors["bias"])
    assert total.dtype == dtype
    assert torch.equal(y, again)


@pytest.mark.parametrize("width", [33, 768])
@pytest.mark.parametrize("p", [1e-5, 0.1, 0.9])
def test_drops_what_the_oracle_drops(width: int, p: float, seed: int) -> None:
    dropout = token_dropout(30, seed, p)
    x = torch.ones(30, width, device=DEVICE, requires_grad=True)
    zeros, ones = torch.zeros(30, width, device=DEVICE), torch.ones(width, device=DEVICE)
    expected = reference.token_dropout_mask(width, p, dropout.key, dropout.sequence_ids, dropout.offsets, SITE)
    with use_backend("triton"):
        _, total = of_sum(x, zeros, ones, ones, dropout=dropout)
        (dx,) = torch.autograd.grad(total, x, torch.ones_like(x))
    torch.testing.assert_close(total.double(), expected, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(dx.double(), expected, rtol=1e-6, atol=0.0)


def test_dropout_of_nothing_is_no_dropout(seed: int) -> None:
    tensors, upstream = inputs(10, 64, torch.float32, seed), [random((10, 64), seed + 5), None]
    actual = run("triton", of_sum, tensors, upstream, dropout=token_dropout(10, seed, 0.0))
    same = run("triton", of_sum, tensors, upstream)
    assert all(torch.equal(actual[name], same[name]) for name in same)


@pytest.mark.parametrize("value", [0.0, 3.0, -200.0])
def test_constant_rows_become_the_bias(value: float, seed: int) -> None:
    x = torch.full((3, 768), value, device=DEVICE)
    weight, bias = random((768,), seed), random((768,), seed + 1)
    leaf = x.requires_grad_()
    with use_backend("triton"):
        y = ops.layer_norm(leaf, weight, bias)
        (dx,) = torch.autograd.grad(y, leaf, random((3, 768), seed + 2))
    assert torch.equal(y, bias.expand(3, 768))
    assert dx.isfinite().all()


def test_large_means_do_not_cancel(seed: int) -> None:
    """A variance from the mean square would have nothing left of it."""
    tensors = inputs(20, 96, torch.float32, seed)
    tensors["x"] = tensors["x"] + 4096.0
    check(alone, {name: tensors[name] for name in ("x", "weight", "bias")}, [random((20, 96), seed + 5)])


@pytest.mark.parametrize("function", [alone, of_gelu, of_sum])
def test_rows_do_not_depend_on_their_neighbours(function, seed: int) -> None:
    tensors, upstream = inputs(50, 96, torch.float32, seed), [random((50, 96), seed + i) for i in (5, 6)]
    some = slice(17, 24)
    options, part = {}, {}
    if function is of_sum:
        whole = token_dropout(50, seed)
        options["dropout"] = whole
        part["dropout"] = TokenDropout(whole.p, whole.key, whole.sequence_ids[some], whole.offsets[some], SITE)
    together = run("triton", function, tensors, upstream, **options)
    fewer = tensors | {name: tensors[name][some] for name in ("x", "residual")}
    apart = run("triton", function, fewer, [g[some] for g in upstream], **part)
    for name in {"y", "sum", "dx", "dresidual"} & together.keys():
        assert torch.equal(together[name][some], apart[name]), name
    for name in ("x", "residual"):  # what dropout takes away leaves no trace
        tensors[name] = tensors[name].clone()
        tensors[name][3, 5], tensors[name][7, 6] = math.nan, math.inf
    marked = run("triton", function, tensors, upstream, **options)
    assert marked["y"][[3, 7]].isnan().all()
    for name in ("y", "dx"):
        assert torch.equal(marked[name][8:], together[name][8:]), name


@pytest.mark.parametrize("function", [alone, of_gelu, of_sum])
def test_the_same_bits_on_every_run(function, seed: int) -> None:
    tensors, upstream = inputs(100, 96, torch.bfloat16, seed), [random((100, 96), seed + i) for i in (5, 6)]
    first, second = (run("triton", function, tensors, upstream) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
