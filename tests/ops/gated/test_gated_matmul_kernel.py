"""The Triton matmuls with a gated activation against float64 and eager torch: on a GPU, or interpreted."""

import itertools

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.reference import gated_activation

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.columns import unreduced
from fastbert.kernels.gated import matmul as kernels

INTERPRETED = not torch.cuda.is_available()
# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"
# Rows, depth, width: several tiles and rests, whole tiles, one row, none.
SHAPES = [(70, 80, 144), (64, 64, 64), (1, 48, 16), (0, 48, 32)]


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype, spread: float = 1.0) -> Tensor:
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape))).mul(spread)
    return Guarded(numbers.to(DEVICE, dtype), torch.device(DEVICE)).tensor


def test_forward_and_backward(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[Guarded] = []
    empty, empty_like = torch.empty, torch.empty_like

    def guarded(values: Tensor) -> Tensor:
        if not values.is_floating_point():
            return values
        results.append(Guarded(values.fill_(torch.nan), values.device))
        tensor: Tensor = results[-1].tensor
        return tensor

    cases = itertools.product(SHAPES, ((torch.bfloat16, "gelu"), (torch.float16, "silu")))
    for (rows, depth, width), (dtype, activation) in cases:
        x, bias = random((rows, depth), seed, dtype), random((2 * width,), seed + 1, torch.float32)
        weight = random((2 * width, depth), seed + 2, dtype, depth**-0.5)
        behind, grad = random((depth, width), seed + 3, dtype, 0.1), random((rows, depth), seed + 4, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", lambda *size, **options: guarded(empty(*size, **options)))
            patch.setattr(torch, "empty_like", lambda *size, **options: guarded(empty_like(*size, **options)))
            y, u = kernels.linear_gated(x, weight, bias, activation, True)
            quick, nothing = kernels.linear_gated(x, weight, bias, activation, False)
            du, h, sums = kernels.linear_gated_backward(grad, behind, u, activation)
        assert torch.equal(quick, y)
        assert nothing.shape == (0, 2 * width)
        exact_u = F.linear(x.double(), weight.double(), bias.double())
        assert_as_accurate(u, F.linear(x, weight, bias.to(dtype)), exact_u, "u")
        assert_as_accurate(y, gated_activation(u, activation), gated_activation(u.double(), activation), "y")
        assert torch.equal(h, y)
        expected = []
        for kind in (dtype, torch.float64):
            leaf = u.detach().to(kind).requires_grad_()
            dh = (grad.double() @ behind.double()).to(kind)
            expected += torch.autograd.grad(gated_activation(leaf, activation), leaf, dh)
        assert_as_accurate(du, *expected, "du")
        assert_as_accurate(sums, expected[0].float().sum(0), expected[1].sum(0), "sums")
        for backend_free in (None, bias):
            up, kept = kernels.up_projection(x, weight, backend_free, activation, True)
            assert (up.shape, kept.shape) == ((rows, width), (rows, 2 * width))
    for result in results:
        result.check()
        assert result.tensor.isfinite().all()


@pytest.mark.parametrize("fused", [True, False])
def test_projections_of_a_layer_are_fused_or_passes(fused: bool, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes where the configurations prefer them, for few rows, for fp32 and for sizes that are no multiples of 16."""
    if not fused:
        monkeypatch.setattr(kernels, "fuses", lambda *_: False)
    for rows, dtype, width in ((300, torch.bfloat16, 32), (30, torch.bfloat16, 32), (300, torch.float32, 33)):
        x, weight = random((rows, 48), seed, dtype), random((2 * width, 48), seed + 1, dtype, 0.2)
        behind, grad = random((48, width), seed + 2, dtype, 0.2), random((rows, 48), seed + 3, dtype)
        suits = rows > 256 and dtype == torch.bfloat16
        for kernel in (kernels.matmul_gated, kernels.matmul_gated_backward):
            assert kernels.fuses(kernel, x, weight, width) == (fused and suits)
        h, u = kernels.up_projection(x, weight, None, "gelu", True)
        du, again, sums = kernels.down_projection_backward(grad, behind, u, "gelu")
        partial = kernels.down_projection_backward(grad, behind, u, "gelu", unreduced)[2]
        close = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        leaf = u.float().requires_grad_()
        product = gated_activation(leaf, "gelu")
        (expected,) = torch.autograd.grad(product, leaf, (grad.float() @ behind.float()))
        torch.testing.assert_close(h.float(), product, **close)
        assert torch.equal(again, h)
        torch.testing.assert_close(du.float(), expected, **close)
        torch.testing.assert_close(sums, partial.sum(0))
        torch.testing.assert_close(sums, du.float().sum(0), rtol=2e-2, atol=0.2)
