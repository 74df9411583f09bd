"""The Triton LayerNorms against float64 and eager torch: compiled on a GPU, or interpreted (TRITON_INTERPRET=1)."""

import math

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import TokenDropout, flatten
from fastbert.ops.dropout.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs import norm as shipped_norm
from fastbert.kernels.norm import gelu_layer_norm, layer_norm
from fastbert.kernels.tuning import tables

INTERPRETED = not torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"
SITE = 259

DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]
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


def random(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(spread).to(DEVICE)


def token_dropout(rows: int, seed: int, p: float = 0.2) -> TokenDropout:
    """Of sequences with 7 tokens."""
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
    result = dict(zip(("y", "sum"), results)) | {f"d{name}": g for name, g in zip(leaves, gradients)}
    return {name: x for name, x in result.items() if x is not None}


def check(function, tensors: dict, upstream: list, **options) -> dict:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    # As all of them get it: rounded before, and not on the way into the result's dtype.
    upstream = [None if g is None else g.to(tensors["x"].dtype) for g in upstream]
    ours = run("triton", function, tensors, upstream, **options)
    theirs = run("eager", function, tensors, upstream, **options)
    exact = run("eager", function, tensors, upstream, torch.float64, **options)
    assert ours.keys() == exact.keys()
    x = tensors["x"]
    # Among few elements all of eager torch's roundings can be small by luck: half a unit of the last place is allowed.
    floor = max(1e-5, torch.finfo(x.dtype).eps / 2) if x.numel() < 1000 else 1e-5
    for name, truth in exact.items():
        assert_as_accurate(ours[name], theirs[name], truth, name, floor=floor)
    return ours


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
    ours = check(of_sum, tensors, upstream, dropout=token_dropout(20, seed) if dropped else None)
    if not reached[0]:
        assert not {"dweight", "dbias"} & ours.keys()


@pytest.mark.parametrize("rows_dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_weights_and_residual_may_have_other_dtypes(rows_dtype: torch.dtype, seed: int) -> None:
    tensors = inputs(40, 96, rows_dtype, seed, weights=torch.float32)
    tensors["residual"] = tensors["residual"].float()
    upstream = [random((40, 96), seed + i) for i in (5, 6)]
    ours = check(of_sum, tensors, upstream, dropout=token_dropout(40, seed))
    for name, tensor in tensors.items():
        assert ours[f"d{name}"].dtype == tensor.dtype
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
    ours = run("triton", of_sum, tensors, upstream, dropout=token_dropout(10, seed, 0.0))
    same = run("triton", of_sum, tensors, upstream)
    assert all(torch.equal(ours[name], same[name]) for name in same)


def gap(x: torch.Tensor) -> torch.Tensor:
    """The same rows as a slice of a wider tensor that is NaN elsewhere."""
    room = torch.full((x.shape[0], x.shape[1] + 40), math.nan, dtype=x.dtype, device=x.device)
    return room[:, 8 : 8 + x.shape[1]].copy_(x)


FORMS = [
    pytest.param(gap, id="slice"),
    pytest.param(lambda x: x.T.contiguous().T, id="transposed"),
    pytest.param(lambda x: x.repeat_interleave(2, 1)[:, ::2], id="every-other"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("function", [alone, of_gelu, of_sum])
def test_rows_and_gradients_may_lie_anyhow(form, function, seed: int) -> None:
    tensors, gradients = inputs(20, 96, torch.float32, seed), [random((20, 96), seed + i) for i in (5, 6)]
    scattered = tensors | {name: form(tensors[name]) for name in ("x", "residual")}
    assert scattered["x"].stride() != tensors["x"].stride()
    leaves = {name: x.requires_grad_() for name, x in scattered.items()}
    with use_backend("triton"):
        results = function(**leaves)
        used = list(leaves.values())
        actual = torch.autograd.grad(results, used, [form(g) for g, _ in zip(gradients, results)], allow_unused=True)
    expected = run("triton", function, tensors, gradients)
    assert torch.equal(results[0], expected["y"])
    for name, gradient in zip(leaves, actual):
        assert gradient is None or torch.equal(gradient, expected[f"d{name}"])


@pytest.mark.parametrize("function", [alone, of_gelu, of_sum])
def test_expanded_gradients(function, seed: int) -> None:
    tensors = inputs(20, 96, torch.float32, seed)
    for narrow in ((1, 96), (20, 1), (1, 1)):
        wide = [random(narrow, seed + i).expand(20, 96) for i in (5, 6)]
        ours = run("triton", function, tensors, wide)
        same = run("triton", function, tensors, [g.contiguous() for g in wide])
        assert all(torch.equal(ours[name], same[name]) for name in same)


def test_leading_axes(seed: int) -> None:
    tensors, upstream = inputs(24, 40, torch.float32, seed), [random((24, 40), seed + i) for i in (5, 6)]
    deep = tensors | {name: tensors[name].view(2, 3, 4, 40) for name in ("x", "residual")}
    for function in (alone, of_gelu, of_sum):
        flat = run("triton", function, tensors, upstream)
        ours = run("triton", function, deep, [g.view(2, 3, 4, 40) for g in upstream])
        assert ours["y"].shape == (2, 3, 4, 40)
        assert all(torch.equal(ours[name].flatten(), flat[name].flatten()) for name in flat)
    with use_backend("triton"):
        (row,) = alone(tensors["x"][3], tensors["weight"], tensors["bias"])
        (rows,) = alone(tensors["x"], tensors["weight"], tensors["bias"])
    assert torch.equal(row, rows[3])


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


def test_nothing_is_left_behind_where_no_gradient_is_asked_for(seed: int) -> None:
    x, residual, x_bias, weight, bias = inputs(5, 64, torch.float32, seed).values()
    outputs = layer_norm.forward(x, x_bias, residual, weight, bias, 1e-5, None, False)
    assert [tuple(tensor.shape) for tensor in outputs] == [(5, 64), (0,), (0,), (0,)]
    assert [len(tensor) for tensor in gelu_layer_norm.forward(x, x_bias, weight, bias, 1e-5, True, False)] == [
        5, 0, 0,
    ]  # fmt: skip
    with use_backend("triton"):
        quick = ops.dropout_add_layer_norm(x, residual, weight, bias, 1e-5, x_bias=x_bias)
        with torch.no_grad():
            leaf = x.clone().requires_grad_()
            assert torch.equal(ops.dropout_add_layer_norm(leaf, residual, weight, bias, 1e-5, x_bias=x_bias), quick)
        retained = ops.dropout_add_layer_norm(leaf, residual, weight, bias, 1e-5, x_bias=x_bias)
    assert torch.equal(quick, outputs[0])
    assert torch.equal(retained, quick)
    assert retained.requires_grad
    assert not quick.requires_grad


def test_without_dropout_x_and_residual_share_one_gradient(seed: int) -> None:
    x, residual, _, weight, bias = inputs(5, 64, torch.float32, seed).values()
    _, total, mean, rstd = layer_norm.forward(x, None, residual, weight, bias, 1e-5, None, True)
    shared, nothing, sums = layer_norm.backward(x, None, total, mean, rstd, weight, None, x_bias=False, residual=True)
    assert nothing is None
    assert sums.shape == (2, 64)
    dropout = kernel_inputs(token_dropout(5, seed))
    dx, dresidual, sums = layer_norm.backward(x, None, total, mean, rstd, weight, dropout, x_bias=True, residual=True)
    assert torch.equal(dresidual, shared)
    assert not torch.equal(dx, dresidual)
    assert sums.shape == (3, 64)
    assert sums.dtype == torch.float32


@pytest.mark.parametrize("with_all", [False, True], ids=["bare", "bias-and-dropout"])
def test_the_operators_keep_their_promises(with_all: bool, seed: int) -> None:
    x, residual, x_bias, weight, bias = (
        tensor.requires_grad_() for tensor in inputs(5, 40, torch.float32, seed).values()
    )
    grad, mean, rstd = random((5, 40), seed + 5), random((5,), seed + 6), random((5,), seed + 7)
    operators = torch.ops.fastbert
    bare = [tensor.detach() for tensor in (x, x_bias, weight)]
    if not with_all:
        torch.library.opcheck(operators.layer_norm.default, (x, weight, bias, 1e-5, True, "triton"))
        torch.library.opcheck(operators.layer_norm_backward.default, (grad, bare[0], mean, rstd, bare[2], "triton"))
    dropout = flatten(token_dropout(5, seed) if with_all else None)
    optional = x_bias if with_all else None
    arguments = (x, optional, residual, weight, bias, 1e-5, *dropout, True, "triton")
    torch.library.opcheck(operators.dropout_add_layer_norm.default, arguments)
    arguments = (grad, grad if with_all else None, bare[0], mean, rstd, bare[2], *dropout, with_all, "triton")
    torch.library.opcheck(operators.dropout_add_layer_norm_backward.default, arguments)
    arguments = (x, optional, weight, bias, 1e-5, with_all, True, "triton")
    torch.library.opcheck(operators.gelu_layer_norm.default, arguments)
    arguments = (grad, bare[0], bare[1] if with_all else None, mean, rstd, bare[2], with_all, "triton")
    torch.library.opcheck(operators.gelu_layer_norm_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_rows(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, residual, x_bias, weight, bias, key, sequence_ids, offsets):
        dropout = TokenDropout(0.1, key, sequence_ids, offsets, SITE)
        y, total = of_sum(x * 2.0, residual, weight, bias, x_bias, dropout)
        # Said, because torch compiles twice for a default that is a number with a fraction.
        z = ops.dropout_add_layer_norm(y, total, weight, bias, 1e-5)
        return of_gelu(*alone(z, weight, bias), weight, bias, x_bias)[0] + total

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for rows in (30, 44, 71):
            leaves = [x.requires_grad_() for x in inputs(rows, 40, torch.float32, seed).values()]
            dropout = token_dropout(rows, seed)
            arguments = (*leaves, dropout.key, dropout.sequence_ids, dropout.offsets)
            results = [f(*arguments) for f in (compiled, function)]
            upstream = random((rows, 40), seed + 5)
            gradients = [torch.autograd.grad(result, leaves, upstream) for result in results]
            assert torch.equal(*results)
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1


def test_every_width_has_a_configuration() -> None:
    for target in tables.DEFAULTS:
        for dtype in (torch.float32, torch.bfloat16):
            for width in (1, 32, 33, 768, 1024, 1025, shipped_norm.WIDEST):
                shape = tables.shape_class(dtype, False, max(width, shipped_norm.NARROWEST))
                for kernel in ("norm_forward", "norm_backward", "gelu_norm_forward", "gelu_norm_backward"):
                    assert tables.lookup(kernel, shape, target).constants["BLOCK_N"] >= width


WRONG = [
    pytest.param({"x": torch.ones(4, 8).long()}, r"x must be floating of shape \(\.\.\., width\)", id="x-dtype"),
    pytest.param({"weight": torch.ones(9)}, r"weight must be floating of shape \(8,\)", id="weight-shape"),
    pytest.param({"bias": torch.ones(8).bool()}, r"bias must be .* not torch\.bool", id="bias-dtype"),
    pytest.param({"x_bias": torch.ones(4, 8)}, r"x_bias must be floating of shape \(8,\)", id="x_bias-shape"),
    pytest.param({"residual": torch.ones(4, 1)}, r"residual must be .* shape of x, \(4, 8\)", id="residual-shape"),
    pytest.param({"eps": math.nan}, "eps=nan must be a finite number", id="eps"),
    pytest.param({"weight": torch.ones(8, device="meta")}, "weight is on meta, x on cpu", id="device"),
    pytest.param({"key": torch.ones(2)}, r"token_dropout\.key must be int64 \(sequences,\)", id="key"),
    pytest.param({"ids": torch.ones(3).long()}, r"token_dropout\.sequence_ids must be .* \(4,\)", id="ids"),
    pytest.param({"offsets": torch.ones(4)}, r"token_dropout\.offsets must be int64 or int32", id="offsets"),
    pytest.param({"p": 1.0}, r"token_dropout\.p=1\.0 must be", id="p"),
    pytest.param({"x": torch.ones(2, 4, 8), "residual": torch.ones(2, 4, 8)}, r"\(tokens, width\)", id="axes"),
]


@pytest.mark.parametrize("backend", ["triton", "eager"])
@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_named(change: dict, message: str, backend: str) -> None:
    good = {
        "x": torch.ones(4, 8), "residual": torch.ones(4, 8), "weight": torch.ones(8), "bias": torch.ones(8),
        "eps": 1e-12, "x_bias": torch.ones(8), "p": 0.1, "key": torch.ones(2).long(), "ids": torch.ones(4).long(),
        "offsets": torch.ones(4).long(),
    }  # fmt: skip
    named = good | change
    dropout = TokenDropout(*(named.pop(name) for name in ("p", "key", "ids", "offsets")), SITE)
    with use_backend(backend), pytest.raises(UserError, match=message):
        ops.dropout_add_layer_norm(**named, token_dropout=dropout)


def test_refuses_what_it_does_not_serve(seed: int) -> None:
    tensors = inputs(2, 8, torch.float64, seed)
    wide = torch.ones(2, 8193, device=DEVICE)
    with use_backend("triton"):
        for function in (alone, of_gelu, of_sum):
            with pytest.raises(UserError, match=r"float64, not bfloat16, .*use_backend\('eager'\) does"):
                function(**tensors)
        with pytest.raises(UserError, match="x has 8193 columns, not 1 to 8192"):
            ops.layer_norm(wide, wide[0], wide[0])
        with pytest.raises(UserError, match="approximate='erf' must be 'none' or 'tanh'"):
            of_gelu(**tensors, approximate="erf")
        weight, bias = tensors["weight"].float(), tensors["bias"].float()
        with pytest.raises(UserError, match="layer_norm has no forward-mode derivative"):
            torch.func.jvp(lambda x: ops.layer_norm(x, weight, bias), (random((2, 8), seed),), (random((2, 8), 1),))
