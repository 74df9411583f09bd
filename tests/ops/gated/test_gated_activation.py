"""Gated activations: every backend against the oracle and eager torch, values and gradients."""

import contextlib
from collections.abc import Callable
from typing import Any

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from guards import Guarded
from oracle_checks import check
from rowwise_kernels import LEVELS, NAMES, Draw
from torch import Tensor
from torch.nn import functional as F

from fastbert import _C, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.gated.arguments import ACTIVATIONS, GatedArguments
from fastbert.ops.gated.native import Native

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
TRITON = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
BACKENDS = [*LEVELS, pytest.param("triton", marks=TRITON)]
SHAPES = [(1, 1), (0, 8), (127, 96), (33, 1023), (200, 17)]
PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu
}  # fmt: skip


@contextlib.contextmanager
def running(backend: str) -> Any:
    """Run on Triton's kernels, or on native ones of a level."""
    if backend == "triton":
        pytest.importorskip("triton", reason="needs triton")
        with use_backend("triton"):
            yield
    else:
        with cpu_kernels.running(backend), use_backend("native"):
            yield


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_as_accurate_as_torch(backend: str, activation: str, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    for rows, width in SHAPES:
        x, bias = draw.normal(rows, 2 * width) * 2, draw.normal(2 * width)

        def ours(x: Tensor, *bias: Tensor) -> Tensor:
            with running(backend):
                return ops.gated_activation(x, bias[0] if bias else None, activation)

        def eager(x: Tensor, bias: Any = 0.0) -> Tensor:
            gate, value = (x + bias).chunk(2, -1)
            return PLAIN[activation](gate) * value

        def oracle(x: Tensor, bias: Any = 0.0) -> Tensor:
            return reference.gated_activation(x + bias, activation)

        for tensors in ([x], [x, bias]):
            check(ours, eager, oracle, [tensor.to(DEVICE) for tensor in tensors], dtype, seed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_gates_and_rows_of_any_strides(backend: str, seed: int) -> None:
    edges = torch.tensor([-1e15, -1e4, -120.0, -90.0, -15.0, -0.0, 0.0, 1e-30, 15.0, 90.0, 1e4, 1e15])
    x = torch.cat((edges, torch.full_like(edges, 0.5))).to(DEVICE).requires_grad_()
    for activation in ACTIVATIONS:
        with running(backend):
            y = ops.gated_activation(x, None, activation)
            (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
        exact = x.detach().double().requires_grad_()
        plain = PLAIN[activation](exact[:12]) * exact[12:]
        (expected,) = torch.autograd.grad(plain, exact, torch.ones_like(plain))
        torch.testing.assert_close(y.double(), plain, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(dx.double(), expected, rtol=1e-5, atol=1e-6)
        with running(backend):
            nan = ops.gated_activation(torch.tensor([torch.nan, 1.0, 1.0, torch.nan], device=DEVICE), None, activation)
        assert nan.isnan().all()
    rows = torch.randn(9, 3, 60, generator=Draw(seed).generator).to(DEVICE)
    with running(backend):
        whole = ops.gated_activation(rows, None, "silu")
        assert whole.shape == (9, 3, 30)
        assert torch.equal(ops.gated_activation(rows.transpose(0, 1), None, "silu"), whole.transpose(0, 1))
        assert torch.equal(ops.gated_activation(rows[:, 1, :], None, "silu"), whole[:, 1])
        assert torch.equal(ops.gated_activation(rows[2:3], None, "silu"), whole[2:3])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bias_may_be_fp32_and_its_gradient_has_the_same_bits(backend: str, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    x, grad = (draw.normal(300, width, dtype=dtype).to(DEVICE) for width in (64, 32))
    bias = draw.normal(64).to(DEVICE)
    results = []
    for _ in range(2):
        leaves = [x.requires_grad_(), bias.requires_grad_()]
        with running(backend):
            y = ops.gated_activation(*leaves, "gelu")
            results.append([y, *torch.autograd.grad(y, leaves, grad)])
    assert [tensor.dtype for tensor in results[0]] == [dtype, dtype, torch.float32]
    assert all(torch.equal(one, other) for one, other in zip(*results))
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    y = reference.gated_activation(exact[0] + exact[1], "gelu")
    expected = [y, *torch.autograd.grad(y, exact, grad.double())]
    assert_as_accurate(results[0][2], expected[2].float(), expected[2], "dbias")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("behind", [True, False], ids=["behind", "before"])
def test_native_kernels_touch_nothing_outside(level: str, behind: bool, seed: int) -> None:
    draw, rows = Draw(seed), 5
    for dtype in (torch.float32, torch.bfloat16):
        for width in (1, 7, 33, 48, 771):
            x, dx = (Fenced(draw.normal(rows, 2 * width, dtype=dtype), behind) for _ in range(2))
            grad, y = (Fenced(draw.normal(rows, width, dtype=dtype), behind) for _ in range(2))
            bias, sums = Fenced(draw.normal(2 * width, dtype=dtype), behind), Fenced(draw.normal(2 * width), behind)
            head = (rows, width, NAMES[dtype])
            with running(level):
                for activation in ACTIVATIONS:
                    rest = (x.address, 2 * width, bias.address, NAMES[dtype], activation)
                    _C.gated_activation(*head, *rest, y.address)
                    _C.gated_activation_backward(*head, grad.address, width, *rest, dx.address, sums.address)
                    arguments = GatedArguments(x.tensor, bias.tensor, activation)
                    assert torch.equal(y.tensor, Native().forward(arguments))
                    expected = Native().backward(arguments, grad.tensor, True)
                    assert torch.equal(dx.tensor, expected[0])
                    assert torch.equal(sums.tensor, expected[1])
    with pytest.raises(ValueError, match="activation must be gelu, gelu_tanh, relu or silu, not tanh"):
        _C.gated_activation(*head, *rest[:-1], "tanh", y.address)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.skipif(not INTERPRETED, reason="a GPU's memory checks belong to other tools")
def test_triton_kernels_write_every_element_and_nothing_around(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton")
    from fastbert.kernels.gated import gated_activation as kernels

    draw, guards, empty = Draw(seed), [], torch.empty

    def guarded(*size: Any, **options: Any) -> Tensor:
        guards.append(Guarded(empty(*size, **options).fill_(torch.nan), torch.device("cpu")))
        tensor: Tensor = guards[-1].tensor
        return tensor

    for rows, width in ((3, 33), (70, 300)):
        x, grad, bias = draw.normal(rows, 2 * width), draw.normal(rows, width), draw.normal(2 * width)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", guarded)
            kernels.forward(x, bias, "silu")
            kernels.backward(grad, x, bias, "silu", True)
            kernels.backward(grad, x, None, "gelu", False)
    assert len(guards) >= 10
    for guard in guards:
        guard.check()
        assert guard.tensor.isfinite().all()


def test_compiles_keeps_the_operators_promises_and_refuses_by_name(seed: int) -> None:
    x, bias = Draw(seed).normal(6, 40).requires_grad_(), Draw(seed + 1).normal(40).requires_grad_()
    compiled = torch.compile(lambda: ops.gated_activation(x, bias, "gelu"), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(), ops.gated_activation(x, bias, "gelu"))
    operators, grad = torch.ops.fastbert, torch.randn(6, 20)
    for given in (bias, None):
        torch.library.opcheck(operators.gated_activation.default, (x, given, "silu", "native"))
        plain = None if given is None else given.detach()
        arguments = (grad, x.detach(), plain, "silu", given is not None, "native")
        torch.library.opcheck(operators.gated_activation_backward.default, arguments)
    with pytest.raises(UserError, match="x has 3 columns: there must be as many values as gates"):
        ops.gated_activation(torch.ones(2, 3), None, "gelu")
    with pytest.raises(UserError, match="activation='tanh' must be one of 'gelu', 'gelu_tanh', 'relu', 'silu'"):
        ops.gated_activation(torch.ones(2, 4), None, "tanh")
    with pytest.raises(UserError, match=r"bias must be floating of shape \(4,\)"):
        ops.gated_activation(torch.ones(2, 4), torch.ones(2), "gelu")
    assert ops.gated_activation(torch.ones(2, 0), None, "gelu").shape == (2, 0)
