"""Matmuls of gated weights: the layout of their copies, the product in the epilogue, and the gradient through it."""

import itertools
from collections.abc import Iterator
from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from matmuls import BF16, ELEMENTS, FP32, LEVELS, drawn, same_bits
from torch import Tensor, nn

from fastbert import _C, ops
from fastbert.errors import UserError
from fastbert.ops.native import matmul as matmuls
from fastbert.ops.native import prepacked_weights
from fastbert.ops.native.matmul import GATED_ACTIVATIONS, matmul, matmul_gated_backward, prepack, repack
from fastbert.ops.reference import gated_activation
from fastbert.training.optimizer import AdamW

# Rows, outputs (gates), inputs: nothing, one row, odd widths, one output, no inputs, several blocks.
SHAPES = [(0, 16, 40), (1, 16, 64), (33, 45, 70), (29, 1, 50), (5, 40, 0), (70, 176, 130)]
INT8_LEVELS = [name for name in cpu_kernels.KERNELS if name != "avx512-bf16"]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def padded(weight: Tensor) -> Tensor:
    """The rows of a gated weight in the order of its copy: 16 gates, their 16 values, and so on, zeros at the end."""
    width = len(weight) // 2
    halves = [torch.nn.functional.pad(half, (0, 0, 0, -width % 16)) for half in weight.split(width)]
    return torch.stack([half.unflatten(0, (-1, 16)) for half in halves], 1).flatten(0, 2)


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS)
def test_a_copy_is_that_of_interleaved_rows(level: str, element: str, dtype: torch.dtype, seed: int) -> None:
    for width, depth in ((1, 1), (16, 70), (45, 33), (176, 128), (200, 5)):
        for kind in (FP32, BF16):
            weight = drawn(seed, 2 * width, depth, dtype=kind)
            packed, expected = prepack(weight, element, gated=True), prepack(padded(weight), element)
            assert bytes(packed) == bytes(expected)
            assert (packed.gated_width, packed.columns, expected.gated_width) == (width, expected.columns, 0)
            # Rows that are written later, in parts that end anywhere, as an optimizer does.
            later = _C.PrepackedWeight.empty(2 * width, depth, element, True)
            stops = sorted({0, 1, width // 3, width, min(width + 5, 2 * width), 2 * width - 1, 2 * width})
            for first, last in itertools.pairwise(stops):
                repack(later, weight, first, last)
            assert bytes(later) == bytes(expected)
            gates, values = weight[:width].clone(), weight[width:].clone()
            repack(later, torch.zeros(width, depth), 0, width, offset=width)
            repack(later, values, 0, width, offset=width)
            repack(later, gates, 0, width)
            assert bytes(later) == bytes(expected)


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS)
def test_the_product(level: str, element: str, dtype: torch.dtype, seed: int) -> None:
    for (rows, width, depth), (activation, name) in itertools.product(SHAPES, GATED_ACTIVATIONS.items()):
        x, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, 2 * width, depth, dtype=dtype, scale=0.2)
        bias, packed = drawn(seed + 2, 2 * width), prepack(weight, element, gated=True)
        before = torch.full((rows, 2 * width + 5), torch.nan, dtype=dtype)
        u = before[:, 2 : 2 * width + 2]
        out = torch.zeros(rows, width, dtype=dtype)
        fence = Fenced(out, True) if rows else None
        y = matmul(x, packed, bias, name, out=out if fence is None else fence.tensor, pre_activation=u)
        assert before[:, :2].isnan().all()
        assert before[:, 2 * width + 2 :].isnan().all()
        # u has the bits of a matmul without gates, and the product is that of the rounded u.
        assert same_bits(u, matmul(x, prepack(weight, element), bias))
        assert_as_accurate(y, gated_activation(u, activation), gated_activation(u.double(), activation))
        assert same_bits(matmul(x, packed, None, name), matmul(x, packed, torch.zeros(2 * width), name))
        if dtype == FP32:
            assert same_bits(y, matmul(x, packed, bias, name))
        if rows > 1:
            assert same_bits(matmul(x[1:2], packed, bias, name, pre_activation=u[1:2].clone()), y[1:2])
        wide = matmul(x, packed, bias, name, out_dtype=FP32)
        exact = gated_activation(x.double() @ weight.double().T + bias, activation)
        torch.testing.assert_close(wide.double(), exact, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS)
def test_gradient_through_the_product(level: str, element: str, dtype: torch.dtype, seed: int) -> None:
    """The weight behind the activation is (depth, width): dh = grad weight."""
    for (rows, width, depth), (activation, name) in itertools.product(SHAPES, GATED_ACTIVATIONS.items()):
        grad, weight = drawn(seed, rows, depth, dtype=dtype), drawn(seed + 1, depth, width, dtype=dtype, scale=0.2)
        u, packed = drawn(seed + 2, rows, 2 * width, dtype=dtype), prepack(weight, element, transposed=True)
        fences = [Fenced(torch.zeros(rows, columns, dtype=dtype), True) for columns in (2 * width, width) if rows]
        targets = dict(zip(("out", "activation_out"), (fence.tensor for fence in fences)))
        du, h = matmul_gated_backward(grad, packed, u, name, **targets)
        dh = matmul(grad, packed, out_dtype=FP32)
        results = []
        for kind in (dtype, torch.float64):
            leaf = u.to(kind).requires_grad_()
            product = gated_activation(leaf, activation)
            results.append((*torch.autograd.grad(product, leaf, dh.to(kind)), product))
        for mine, eager, exact in zip((du, h), *results):
            assert_as_accurate(mine, eager, exact)
        # h has the bits of the forward product: of the identity as weight, where every sum is exact.
        identity = prepack(torch.eye(2 * width, dtype=dtype), element, gated=True)
        assert same_bits(h, matmul(u, identity, None, name, pre_activation=torch.empty_like(u)))
        memory = u.clone()
        again, same = matmul_gated_backward(grad, packed, memory, name, out=memory)
        assert same_bits(again, du)
        assert same_bits(same, h)


@pytest.mark.parametrize("int8_level", INT8_LEVELS)
def test_int8(int8_level: str, seed: int) -> None:
    with cpu_kernels.running(int8_level):
        for rows, width, depth in ((0, 16, 8), (1, 16, 64), (33, 45, 70), (70, 176, 130)):
            x, weight = drawn(seed, rows, depth), drawn(seed + 1, 2 * width, depth, scale=0.2)
            bias, packed = drawn(seed + 2, 2 * width), prepack(weight, "int8", gated=True)
            plain = prepack(weight, "int8")
            for (activation, name), dtype in itertools.product(GATED_ACTIVATIONS.items(), (FP32, BF16)):
                u = torch.empty(rows, 2 * width, dtype=dtype)
                y = matmul(x, packed, bias, name, out_dtype=dtype, pre_activation=u)
                assert same_bits(u, matmul(x, plain, bias, out_dtype=dtype))
                assert_as_accurate(y, gated_activation(u, activation), gated_activation(u.double(), activation))


def test_copies_of_gated_weights_follow_their_weights(seed: int) -> None:
    shapes = ((40, 24), (40, 24), (24, 40))
    # Small weights: the default tolerance suits sums whose terms are at most about one.
    gate, up, down = (nn.Parameter(drawn(seed + i, *shape, scale=0.2)) for i, shape in enumerate(shapes))
    x = drawn(seed + 3, 7, 24)

    def computed(element: str = "fp32") -> Tensor:
        packed = prepacked_weights.prepacked_group((gate, up, down), (2, 1), element, gated=(0,))
        assert [copy.gated_width for copy in packed] == [40, 0]
        assert prepacked_weights.prepacked_group((gate, up, down), (2, 1), element, gated=(0,)) is packed
        h = matmul(x, packed[0], None, "swiglu")
        return matmul(h, packed[1])

    def expected() -> Tensor:
        with torch.no_grad():
            return ops.gated_activation(torch.cat((x @ gate.T, x @ up.T), 1), None, "silu") @ down.T

    torch.testing.assert_close(computed(), expected())
    with torch.no_grad():
        up.mul_(2.0)
    torch.testing.assert_close(computed(), expected())
    assert (computed("int8") - expected()).abs().max() < 0.05 * expected().abs().max()
    for parameter in (gate, up, down):
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD([gate, up, down], lr=0.1).step()
    torch.testing.assert_close(computed(), expected())
    # A plain copy of the same weights is another copy; the transposed one is never interleaved.
    plain = prepacked_weights.prepacked_group((gate, up, down), (2, 1), "fp32")
    transposed = prepacked_weights.prepacked_group((gate, up, down), (2, 1), "fp32", transposed=True, gated=(0,))
    assert [copy.gated_width for copy in (*plain, *transposed)] == [0] * 4
    single = prepacked_weights.prepacked(torch.cat((gate, up)).detach(), "fp32", gated=True)
    out, u = torch.empty(7, 40), torch.empty(7, 80)
    matmuls.matmul_unchecked(x, single, out, activation="swiglu", pre_activation=u)
    assert same_bits(out, matmul(x, single, None, "swiglu", pre_activation=torch.empty(7, 80)))
    du, h = torch.empty(7, 80), torch.empty(7, 40)
    grad = drawn(seed + 4, 7, 24)
    matmuls.matmul_gated_backward_unchecked(grad, transposed[1], u, "swiglu", du, h)
    assert all(same_bits(*pair) for pair in zip((du, h), matmul_gated_backward(grad, transposed[1], u, "swiglu")))
    assert same_bits(h, out)


def test_adamw_rewrites_gated_copies(seed: int) -> None:
    weight = nn.Parameter(drawn(seed, 90, 24))
    for element in ("fp32", "bf16"):
        prepacked_weights.prepacked(weight, element, gated=True)
    optimizer = AdamW([weight], lr=0.1)
    for _ in range(2):
        weight.grad = drawn(seed + 1, 90, 24)
        optimizer.step()
        for element in ("fp32", "bf16"):
            fresh = prepack(weight, element, gated=True)
            assert bytes(prepacked_weights.prepacked(weight, element, gated=True)) == bytes(fresh)


def test_wrong_arguments_are_refused_by_name(seed: int) -> None:
    x, weight, u = drawn(seed, 6, 10), drawn(seed, 8, 10), drawn(seed, 6, 8)
    gated, plain, out = prepack(weight, "fp32", gated=True), prepack(weight, "fp32"), torch.zeros(6, 8)
    wide = torch.zeros(6, 16)
    wrong: list[tuple[Any, str]] = [
        (lambda: prepack(weight[:7], "fp32", gated=True), "a gated weight has 7 rows"),
        (lambda: prepack(weight[:0], "fp32", gated=True), "a gated weight has 0 rows"),
        (lambda: prepack(weight, "fp32", transposed=True, gated=True), "a transposed copy is not interleaved"),
        (lambda: repack(gated, weight, 0, 8, transposed=True), "packed is gated, and thus not transposed"),
        (lambda: matmul(x, gated), "activation=None must be 'geglu' or .* for a gated weight"),
        (lambda: matmul(x, gated, None, "gelu"), "activation='gelu' must be 'geglu'"),
        (lambda: matmul(x, plain, None, "geglu"), "activation='geglu' must be 'gelu' or 'gelu_tanh', or None"),
        (lambda: matmul(x, gated, None, "geglu", residual=u[:, :4]), "a gated activation has no residual and no norm"),
        (lambda: matmul(x, gated, torch.ones(4), "geglu"), r"bias is .* must be floating, of shape \(8,\)"),
        (lambda: matmul(x, gated, None, "geglu", out=out), r"out has shape \(6, 8\): it must be \(6, 4\)"),
        (lambda: matmul(x, gated, None, "geglu", pre_activation=u[:, :4]), r"pre_activation has shape \(6, 4\)"),
        (lambda: matmul_gated_backward(x, gated, u, "geglu"), "packed is gated"),
        (lambda: matmul_gated_backward(x, plain, u, "geglu"), r"u has shape \(6, 8\): it must be \(6, 16\)"),
        (lambda: matmul_gated_backward(x, plain, u, "gelu"), "activation='gelu' must be 'geglu'"),
    ]
    for call, message in wrong:
        with pytest.raises(UserError, match=message):
            call()
    address, target = (x.data_ptr(), "fp32", 10), (wide.data_ptr(), "fp32", 16)
    for packed, activation, message in (
        (gated, None, "a gated activation is of a gated weight, and no other"),
        (plain, "reglu", "a gated activation is of a gated weight, and no other"),
        (plain, "reglu_gradient", "activation_out is required for gradients"),
        (plain, "glu", "activation must be gelu, gelu_tanh, geglu"),
    ):
        with pytest.raises(ValueError, match=message):
            _C.matmul(address, 6, packed, target, activation=activation)
