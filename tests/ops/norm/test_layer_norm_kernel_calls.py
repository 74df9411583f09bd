"""The Triton LayerNorms as they are called: rows of any strides, operators, compiled, configured, refused."""

import math

import pytest
import torch
from norm_kernels import DEVICE, INTERPRETED, SITE, alone, inputs, of_gelu, of_sum, random, run, token_dropout
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.dropout.arguments import TokenDropout, flatten
from fastbert.ops.dropout.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs import norm as shipped_norm
from fastbert.kernels.norm import gelu_layer_norm, layer_norm
from fastbert.kernels.tuning import tables

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]


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
        actual = run("triton", function, tensors, wide)
        same = run("triton", function, tensors, [g.contiguous() for g in wide])
        assert all(torch.equal(actual[name], same[name]) for name in same)


def test_leading_axes(seed: int) -> None:
    tensors, upstream = inputs(24, 40, torch.float32, seed), [random((24, 40), seed + i) for i in (5, 6)]
    deep = tensors | {name: tensors[name].view(2, 3, 4, 40) for name in ("x", "residual")}
    for function in (alone, of_gelu, of_sum):
        flat = run("triton", function, tensors, upstream)
        actual = run("triton", function, deep, [g.view(2, 3, 4, 40) for g in upstream])
        assert actual["y"].shape == (2, 3, 4, 40)
        assert all(torch.equal(actual[name].flatten(), flat[name].flatten()) for name in flat)
    with use_backend("triton"):
        (row,) = alone(tensors["x"][3], tensors["weight"], tensors["bias"])
        (rows,) = alone(tensors["x"], tensors["weight"], tensors["bias"])
    assert torch.equal(row, rows[3])


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
        kept = ops.dropout_add_layer_norm(leaf, residual, weight, bias, 1e-5, x_bias=x_bias)
    assert torch.equal(quick, outputs[0])
    assert torch.equal(kept, quick)
    assert kept.requires_grad
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
        torch.library.opcheck(operators.layer_norm.default, (x, weight, bias, 1e-5, False, True, "triton"))
        arguments = (grad, bare[0], mean, rstd, bare[2], True, False, "triton")
        torch.library.opcheck(operators.layer_norm_backward.default, arguments)
    dropout = flatten(token_dropout(5, seed) if with_all else None)
    optional = x_bias if with_all else None
    for norm_bias, rms in ((bias, False), (None, False), (None, True)):
        middle = mean[:0] if rms else mean
        arguments = (x, optional, residual, weight, norm_bias, 1e-5, *dropout, rms, True, "triton")
        torch.library.opcheck(operators.dropout_add_layer_norm.default, arguments)
        flags = (norm_bias is not None, with_all, rms)
        arguments = (
            grad, grad if with_all else None, bare[0], middle, rstd, bare[2], *dropout, *flags, "triton"
        )  # fmt: skip
        torch.library.opcheck(operators.dropout_add_layer_norm_backward.default, arguments)
    arguments = (x, optional, weight, bias, 1e-5, with_all, True, "triton")
    torch.library.opcheck(operators.gelu_layer_norm.default, arguments)
    arguments = (grad, bare[0], bare[1] if with_all else None, mean, rstd, bare[2], with_all, True, "triton")
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
