"""The linear layer on the native backend with gradients: native matmuls forward and backward."""

import importlib
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from matmuls import BF16, DTYPES, FP32, LEVELS, drawn
from sweeps import sweep
from torch import Tensor
from torch.nn import functional as F

from fastbert import ops
from fastbert.errors import UserError
from fastbert.ops.dispatch import use_backend
from fastbert.ops.linear.arguments import APPROXIMATIONS
from fastbert.ops.native import matmul, matmul_table, prepacked_weights

# Its package has a function of the same name.
module = importlib.import_module("fastbert.ops.linear.op")
ACTIVATIONS = [None, "gelu", "gelu_tanh"]
SHAPES = [
    pytest.param(0, 40, 48, id="no-rows"),
    pytest.param(1, 40, 48, id="one-row"),
    pytest.param(33, 77, 45, id="odd-widths"),
    pytest.param(65, 2, 64, id="two-outputs"),
    pytest.param(4097, 33, 35, id="4097-rows"),
]
Gradients = tuple[Tensor, ...]


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of native matmuls that ran."""
    names: list[str] = []
    for name in ("matmul", "weight_gradient"):
        original = getattr(matmul, name)

        def counted(*arguments: object, _name: str = name, _original: object = original, **options: object) -> object:
            names.append(_name)
            return _original(*arguments, **options)  # type: ignore[operator]

        monkeypatch.setattr(matmul, name, counted)
    return names


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def operands(seed: int, rows: int, columns: int, depth: int, dtype: torch.dtype = FP32) -> tuple[Tensor, ...]:
    x, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, columns, depth, dtype=dtype, scale=depth**-0.5)
    return x, weight, drawn(seed + 2, columns, dtype=dtype)


def run(
    tensors: tuple[Tensor, ...], upstream: Tensor, activation: str | None, by_fastbert: bool
) -> tuple[Tensor, Gradients]:
    """The result and the gradients, by fastbert's operation or by eager torch."""
    leaves = [torch.nn.Parameter(tensor.clone()) for tensor in tensors]
    if by_fastbert:
        y = ops.linear(*leaves, activation=activation)
    else:
        y = F.linear(*leaves)
        y = y if activation is None else F.gelu(y, approximate=APPROXIMATIONS[activation])
    return y, torch.autograd.grad(y, leaves, upstream.to(y.dtype))


@sweep("activation", ACTIVATIONS)
@sweep("dtype", DTYPES)
@sweep(("rows", "columns", "depth"), SHAPES)
def test_is_as_accurate_as_torch(
    level: str, rows: int, columns: int, depth: int, dtype: torch.dtype, activation: str | None, seed: int
) -> None:
    if cpu_kernels.in_software(level):
        rows = min(rows, 130)
    tensors, upstream = operands(seed, rows, columns, depth, dtype), drawn(seed + 3, rows, columns, dtype=dtype)
    with use_backend("native"):
        y, gradients = run(tensors, upstream, activation, True)
        again = run(tensors, upstream, activation, True)
    assert torch.equal(y, again[0])
    assert all(torch.equal(a, b) for a, b in zip(gradients, again[1], strict=True))
    eager, eager_gradients = run(tensors, upstream, activation, False)
    exact, exact_gradients = run(tuple(t.double() for t in tensors), upstream.double(), activation, False)
    assert_as_accurate(y, eager, exact.detach())
    for i, name in enumerate(("x", "weight", "bias")):
        assert_as_accurate(gradients[i], eager_gradients[i], exact_gradients[i], name)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_of_masters_are_never_rounded(activation: str | None, seed: int, used: list[str]) -> None:
    """Under autocast matmuls are in bf16, and gradients of fp32 weights are sums in fp32."""
    tensors, upstream = operands(seed, 301, 40, 70), drawn(seed + 3, 301, 40)
    with use_backend("native"), torch.autocast("cpu", BF16):
        y, gradients = run(tensors, upstream, activation, True)
    assert used == ["matmul", "matmul", "weight_gradient"]
    assert y.dtype == BF16
    assert [gradient.dtype for gradient in gradients] == [FP32] * 3
    with torch.autocast("cpu", BF16):
        eager, eager_gradients = run(tensors, upstream, activation, False)
    rounded = tuple(t.bfloat16().double() if t.dim() == 2 else t.double() for t in tensors)
    exact, exact_gradients = run(rounded, upstream.bfloat16().double(), activation, False)
    assert_as_accurate(y, eager, exact.detach())
    for i, name in enumerate(("x", "weight", "bias")):
        assert_as_accurate(gradients[i], eager_gradients[i], exact_gradients[i], name)
    # What is left without an activation are the roundings of sums alone.
    if activation is None:
        assert_as_accurate(gradients[1], exact_gradients[1].float(), exact_gradients[1], "weight, unrounded")


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (0, 1)], ids=str)
def test_only_what_is_wanted_is_computed(needed: tuple[int, ...], seed: int, used: list[str]) -> None:
    tensors, upstream = operands(seed, 20, 40, 50), drawn(seed + 3, 20, 40)
    leaves = [torch.nn.Parameter(tensor, i in needed) for i, tensor in enumerate(tensors)]
    with use_backend("native"):
        y = ops.linear(*leaves, activation="gelu")
    assert used == ["matmul"]
    actual = torch.autograd.grad(y, [leaves[i] for i in needed], upstream)
    assert used[1:] == ["matmul"] * (0 in needed) + ["weight_gradient"] * (1 in needed)
    _, eager = run(tensors, upstream, "gelu", False)
    _, exact = run(tuple(t.double() for t in tensors), upstream.double(), "gelu", False)
    for i, gradient in zip(needed, actual, strict=True):
        assert_as_accurate(gradient, eager[i], exact[i])


def test_an_empty_batch_may_have_any_strides(seed: int) -> None:
    _, weight, bias = operands(seed, 1, 40, 50)
    x = torch.zeros(0, 1).expand(0, 50)
    with use_backend("native"):
        y, gradients = run((x, weight, bias), torch.zeros(0, 40), "gelu", True)
    assert y.shape == (0, 40)
    assert not gradients[1].any()


@pytest.mark.parametrize("shape", [(50,), (3, 50), (2, 3, 50), (2, 0, 50)], ids=str)
def test_x_of_any_shape_and_strides(shape: tuple[int, ...], seed: int) -> None:
    _, weight, bias = operands(seed, 1, 40, 50)
    wide = drawn(seed, *shape[:-1], 60)
    upstream = drawn(seed + 3, *shape[:-1], 40)
    for x in (wide[..., 5:55], wide[..., 5:55].movedim(-1, 0).contiguous().movedim(0, -1)):
        with use_backend("native"):
            y, gradients = run((x, weight, bias), upstream, "gelu", True)
        eager, eager_gradients = run((x, weight, bias), upstream, "gelu", False)
        torch.testing.assert_close(y, eager, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, eager_gradients, rtol=1e-4, atol=1e-4)


def test_gradients_of_any_strides(seed: int) -> None:
    """A sum's gradient is one number, expanded; a transposed one's columns lie together."""
    tensors = operands(seed, 20, 40, 50)
    for upstream in (torch.ones(()).expand(20, 40), drawn(seed + 3, 40, 20).T):
        for activation in ACTIVATIONS:
            with use_backend("native"):
                _, gradients = run(tensors, upstream, activation, True)
            _, eager = run(tensors, upstream, activation, False)
            torch.testing.assert_close(gradients, eager, rtol=1e-4, atol=1e-4)


def test_without_a_bias(seed: int) -> None:
    x, weight, _ = operands(seed, 20, 40, 50)
    upstream = drawn(seed + 3, 20, 40)
    with use_backend("native"):
        _, gradients = run((x, weight), upstream, "gelu_tanh", True)
    _, eager = run((x, weight), upstream, "gelu_tanh", False)
    torch.testing.assert_close(gradients, eager, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("native", [True, False], ids=["ours", "torch"])
def test_the_table_chooses(native: bool, seed: int, used: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Matmuls are native for parameters where the table prefers that, but not for a few outputs."""
    monkeypatch.setattr(matmul_table, "prefers_native", lambda *arguments: native)
    x, weight, bias = operands(seed, 20, 40, 50)
    for kind, outputs, is_native in (
        (torch.nn.Parameter, 40, native),
        (torch.nn.Parameter, 31, False),
        (Tensor.clone, 40, False),
    ):
        used.clear()
        parameter = kind(weight[:outputs]).requires_grad_()
        y = ops.linear(x, parameter, bias[:outputs])
        torch.autograd.grad(y, parameter, drawn(seed, 20, outputs))
        assert used == (["matmul", "weight_gradient"] if is_native else [])


def test_copies_are_used_until_a_step_changes_the_weight(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward each use one copy of the parameter however often it is multiplied, and never a stale one."""
    packs = []
    pack = prepacked_weights._pack_in_place
    monkeypatch.setattr(prepacked_weights, "_pack_in_place", lambda *a: packs.append(a[3]) or pack(*a))
    weight = torch.nn.Parameter(drawn(seed, 40, 50))
    x, upstream = drawn(seed, 20, 50).requires_grad_(), drawn(seed, 20, 40)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with use_backend("native"):
        for step in range(3):
            y = ops.linear(x, weight)
            (dx,) = torch.autograd.grad(y, x, upstream, retain_graph=True)
            torch.autograd.grad(ops.linear(x, weight), x, upstream)
            if step == 0:
                assert packs == [False, True]
            now = weight.detach()
            assert_as_accurate(y, F.linear(x, now), F.linear(x.double(), now.double()).detach())
            assert_as_accurate(dx, upstream @ now, upstream.double() @ now.double())
            y.backward(upstream)
            optimizer.step()


def test_a_second_derivative_is_refused(seed: int) -> None:
    leaves = [torch.nn.Parameter(tensor) for tensor in operands(seed, 20, 40, 50)]
    with use_backend("native"):
        y = ops.linear(*leaves, activation="gelu")
    for leaf in leaves:
        (gradient,) = torch.autograd.grad(y, leaf, drawn(seed, 20, 40), create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            torch.autograd.grad(gradient.square().sum(), leaf)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_operators_keep_torchs_rules(activation: str | None, seed: int) -> None:
    x, weight, bias = operands(seed, 20, 40, 50)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(torch.ops.fastbert.linear_native.default, (*leaves, activation), test_utils=tests)
    y, u = module._linear_native(*leaves, activation)
    arguments = (torch.randn_like(y), u.detach(), x.detach(), weight.detach(), bias.detach(), activation)
    for needed in ([True, True, True], [False, True, False], [True, False, True]):
        backward = torch.ops.fastbert.linear_native_backward.default
        torch.library.opcheck(backward, (*arguments, needed), test_utils=("test_schema", "test_faketensor"))


def test_compiled_code_gets_torchs_matmuls_unless_the_native_ones_are_forced(seed: int, used: list[str]) -> None:
    tensors, upstream = operands(seed, 20, 40, 50), drawn(seed + 3, 20, 40)
    leaves = [torch.nn.Parameter(tensor) for tensor in tensors]
    compiled = torch.compile(
        lambda *arguments: ops.linear(*arguments, activation="gelu"), backend="aot_eager", fullgraph=True
    )
    expected = run(tensors, upstream, "gelu", False)[1]
    for backend, matmuls in ((None, []), ("native", ["matmul", "matmul", "weight_gradient"])):
        used.clear()
        with use_backend(backend):
            result = torch.autograd.grad(compiled(*leaves), leaves, upstream)
        assert used == matmuls
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def test_a_forced_backend_compiles_for_any_number_and_order_of_rows(seed: int) -> None:
    x, weight, bias = operands(seed, 20, 40, 50)
    leaves = [torch.nn.Parameter(weight), torch.nn.Parameter(bias)]
    compiled = torch.compile(ops.linear, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (x[:8], x[:1], x[:0], x[:8].t().contiguous().t()):
        with use_backend("native"):
            y = compiled(rows, *leaves)
        gradients = torch.autograd.grad(y.square().sum(), leaves)
        torch.testing.assert_close(y, F.linear(rows, *leaves), rtol=1e-4, atol=1e-4)
        expected = torch.autograd.grad(F.linear(rows, *leaves).square().sum(), leaves)
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-3)


def test_what_is_not_served_is_said(seed: int) -> None:
    x, weight, bias = (tensor.requires_grad_() for tensor in operands(seed, 20, 40, 50))
    with use_backend("native"):
        with pytest.raises(UserError, match=r"'linear' here: a tensor has dtype torch\.float64"):
            ops.linear(x.double(), weight.double(), bias.double())
        with pytest.raises(UserError, match="torch transforms the call"):
            torch.func.grad(lambda arguments: ops.linear(arguments, weight, bias).sum())(x)
        with (
            pytest.raises(UserError, match="linear has no forward-mode derivative"),
            torch.autograd.forward_ad.dual_level(),
        ):
            ops.linear(x, weight, bias)
