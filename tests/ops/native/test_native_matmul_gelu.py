"""Matmuls with GELU in training: the input of the activation, and the gradient through it."""

from collections.abc import Iterator
from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from matmuls import BF16, ELEMENTS, FP32, LEVELS, drawn, same_bits
from sweeps import sweep
from torch import Tensor
from torch.nn import functional as F

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native.matmul import matmul, matmul_gelu_backward, prepack

ACTIVATIONS = ["gelu", "gelu_tanh"]
SHAPES = [
    pytest.param(0, 40, 40, id="no-rows"),
    pytest.param(1, 45, 64, id="one-row"),
    pytest.param(33, 77, 70, id="odd-widths"),
    pytest.param(29, 1, 50, id="one-column"),
    pytest.param(5, 40, 0, id="no-inputs"),
    pytest.param(70, 100, 130, id="several-blocks"),
]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def approximation(activation: str) -> str:
    return "tanh" if activation == "gelu_tanh" else "none"


def gelu_gradient(grad: Tensor, u: Tensor, activation: str) -> Tensor:
    u = u.clone().requires_grad_()
    (result,) = torch.autograd.grad(F.gelu(u, approximate=approximation(activation)), u, grad)
    return result


@sweep("activation", ACTIVATIONS)
@sweep(("element", "dtype"), ELEMENTS)
@sweep(("rows", "columns", "depth"), SHAPES)
def test_what_the_activation_is_computed_of(
    level: str, rows: int, columns: int, depth: int, element: str, dtype: torch.dtype, activation: str, seed: int
) -> None:
    x, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, columns, depth, dtype=dtype, scale=0.2)
    bias, packed = drawn(seed + 2, columns), prepack(weight, element)
    before = torch.full((rows, columns + 5), torch.nan, dtype=dtype)
    y = matmul(x, packed, bias, activation, pre_activation=before[:, 2 : columns + 2])
    u = before[:, 2 : columns + 2]
    assert before[:, :2].isnan().all()
    assert before[:, columns + 2 :].isnan().all()
    assert same_bits(u, matmul(x, packed, bias))
    # The activation is that of the rounded u.
    eager, exact = (F.gelu(u.to(kind), approximate=approximation(activation)) for kind in (dtype, torch.float64))
    assert_as_accurate(y, eager, exact)
    if dtype == FP32:
        assert same_bits(y, matmul(x, packed, bias, activation))


@sweep("activation", ACTIVATIONS)
@sweep(("element", "dtype"), ELEMENTS)
@sweep(("rows", "columns", "depth"), SHAPES)
def test_gradient_through_gelu(
    level: str, rows: int, columns: int, depth: int, element: str, dtype: torch.dtype, activation: str, seed: int
) -> None:
    """The sums are the gradient of GELU(u), as accurate as torch's matmul and torch's derivative."""
    grad, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, depth, columns, dtype=dtype, scale=0.2)
    u, packed = drawn(seed + 2, rows, columns, dtype=dtype, scale=2), prepack(weight, element, transposed=True)
    du, h = matmul_gelu_backward(grad, packed, u, activation == "gelu_tanh")
    eager = gelu_gradient(grad @ weight, u, activation)
    exact = gelu_gradient(grad.double() @ weight.double(), u.double(), activation)
    assert_as_accurate(du, eager, exact)
    # h is what the forward matmul stored: an identity gives it u once more.
    if rows:
        forward = matmul(u, prepack(torch.eye(columns), "fp32"), activation=activation)
        assert same_bits(h, forward)
    for name in ("out", "activation_out"):
        target = u.clone()
        into: dict[str, Any] = {name: target}
        again = matmul_gelu_backward(grad, packed, target, activation == "gelu_tanh", **into)
        assert same_bits(again[0], du)
        assert same_bits(again[1], h)
        assert again[name == "activation_out"] is target


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivative_at_every_bfloat16(level: str, activation: str) -> None:
    """Off by at most 5e-7 in fp32 at all finite numbers that bf16 has; a NaN stays one."""
    inputs = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(BF16).view(-1, 1)
    u = inputs[inputs.isfinite()].view(-1, 1).float()
    one = prepack(torch.ones(1, 1), "fp32", transposed=True)
    du, h = matmul_gelu_backward(torch.ones_like(u), one, u, activation == "gelu_tanh")
    # Beyond 100 float64 overflows in x^3.
    exact = gelu_gradient(torch.ones(u.shape, dtype=torch.float64), u.double().clamp(-100, 100), activation)
    assert float((du.double() - exact).abs().max()) <= 5e-7
    # But for the sign of a zero, which sums lose.
    assert torch.equal(h, matmul(u, prepack(torch.ones(1, 1), "fp32"), activation=activation))
    nan = inputs[inputs.isnan()].view(-1, 1).float()
    du, h = matmul_gelu_backward(torch.ones_like(nan), one, nan, activation == "gelu_tanh")
    assert du.isnan().all()
    assert h.isnan().all()


@sweep("behind", [True, False], ids=["page-behind", "page-before"])
@sweep(("element", "dtype"), ELEMENTS)
@sweep(("rows", "columns", "depth"), [(1, 1, 1), (15, 31, 33), (37, 47, 40)])
def test_nothing_beyond_the_ends_is_touched(
    level: str, rows: int, columns: int, depth: int, element: str, dtype: torch.dtype, behind: bool, seed: int
) -> None:
    grad, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, columns, depth, dtype=dtype)
    u, packed = drawn(seed + 2, rows, columns, dtype=dtype), prepack(weight, element)
    expected = matmul_gelu_backward(grad, packed, u, False)
    fenced = [Fenced(tensor, behind) for tensor in (grad, u, u, u)]
    actual = matmul_gelu_backward(
        fenced[0].tensor, packed, fenced[1].tensor, False, out=fenced[2].tensor, activation_out=fenced[3].tensor
    )
    for result, reference in zip(actual, expected, strict=True):
        assert same_bits(result, reference)
    matmul(fenced[0].tensor, packed, activation="gelu", pre_activation=fenced[2].tensor, out=fenced[3].tensor)
    assert same_bits(fenced[2].tensor, matmul(grad, packed))


def test_wrong_arguments_are_refused_by_name(seed: int) -> None:
    x, weight, u = drawn(seed, 6, 10), drawn(seed, 8, 10), drawn(seed, 6, 8)
    packed, out = prepack(weight, "fp32"), torch.zeros(6, 8)
    with pytest.raises(UserError, match="pre_activation needs an activation"):
        matmul(x, packed, pre_activation=u)
    with pytest.raises(UserError, match="pre_activation needs an activation, and no norm"):
        matmul(x, packed, None, "gelu", norm=(torch.ones(8), None, 1e-5), pre_activation=u)
    with pytest.raises(UserError, match=r"pre_activation has shape \(6, 7\)"):
        matmul(x, packed, None, "gelu", pre_activation=u[:, :7])
    with pytest.raises(UserError, match=r"pre_activation has dtype torch\.float32: it must be torch\.bfloat16"):
        matmul(x, packed, None, "gelu", out_dtype=BF16, pre_activation=u)
    for other, arguments in (("x", {"pre_activation": x[:, :8]}), ("out", {"pre_activation": out, "out": out})):
        with pytest.raises(UserError, match=f"pre_activation overlaps {other}"):
            matmul(x, packed, None, "gelu", **arguments)
    with pytest.raises(UserError, match="pre_activation overlaps residual"):
        matmul(x, packed, None, "gelu", residual=u, pre_activation=u)
    with pytest.raises(UserError, match="packed holds int8"):
        matmul_gelu_backward(x, prepack(weight, "int8"), u, False)
    with pytest.raises(UserError, match=r"u has shape \(6, 7\)"):
        matmul_gelu_backward(x, packed, u[:, :7], False)
    with pytest.raises(UserError, match=r"u has dtype torch\.bfloat16, x torch\.float32"):
        matmul_gelu_backward(x, packed, u.bfloat16(), False)
    with pytest.raises(UserError, match="activation_out has dtype"):
        matmul_gelu_backward(x, packed, u, False, activation_out=u.bfloat16())
    with pytest.raises(UserError, match="activation_out overlaps out"):
        matmul_gelu_backward(x, packed, u, False, out=out, activation_out=out)
    memory = torch.zeros(6, 20)
    with pytest.raises(UserError, match="out overlaps u"):
        matmul_gelu_backward(x, packed, memory[:, :8], False, out=memory[:, 4:12])
    address, target = (x.data_ptr(), "fp32", 10), (out.data_ptr(), "fp32", 8)
    with pytest.raises(ValueError, match="activation_out is required for gradients"):
        _C.matmul(address, 6, packed, target, activation="gelu_gradient", pre_activation=(u.data_ptr(), "fp32", 8))
    with pytest.raises(ValueError, match="pre_activation requires GELU"):
        _C.matmul(address, 6, packed, target, activation="gelu_gradient", activation_out=(u.data_ptr(), "fp32", 8))
    with pytest.raises(ValueError, match="pre_activation must have the dtype of out"):
        _C.matmul(address, 6, packed, target, activation="gelu", pre_activation=(u.data_ptr(), "bf16", 8))


def test_denormals_are_kept_outside_of_matmuls(level: str, seed: int) -> None:
    """The epilogue of tiles flushes them, GELU of -13.5 among them, and leaves the thread as it was."""
    x = drawn(seed, 33, 64, dtype=torch.bfloat16)
    weight, bias = drawn(seed + 1, 64, 64, dtype=torch.bfloat16) * 0, torch.full((64,), -13.5)
    actual = matmul(x, prepack(weight, "bf16"), bias, activation="gelu")
    assert actual.float().abs().max() < 1.2e-38
    tiny = torch.tensor([1e-38])
    assert (tiny * 0.1).item() > 0
