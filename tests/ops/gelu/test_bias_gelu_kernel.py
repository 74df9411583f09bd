"""The Triton GELU with a bias against float64 and eager torch: compiled on a GPU, or in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.gelu import bias_gelu as kernels

INTERPRETED = not torch.cuda.is_available()
# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"

SHAPES = [
    pytest.param((1, 1), id="single"),
    pytest.param((0, 8), id="no-row"),
    pytest.param((3, 0), id="no-column"),
    pytest.param((1, 768), id="one-row"),
    pytest.param((127, 96), id="127-rows"),
    pytest.param((33, 1023), id="odd-width"),
    pytest.param((2, 3, 5, 64), id="four-axes"),
]
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]


def random(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(spread).to(DEVICE)


def run(
    backend: str, x: torch.Tensor, bias: torch.Tensor | None, gradient: torch.Tensor, approximate: str = "none"
) -> list[torch.Tensor]:
    """The result, and the gradients of x and bias."""
    leaves = [tensor.detach().requires_grad_() for tensor in (x, bias) if tensor is not None]
    with use_backend(backend):
        result = ops.bias_gelu(leaves[0], leaves[1] if bias is not None else None, approximate)
        return [result, *torch.autograd.grad(result, leaves, gradient.to(result.dtype))]


def check(x: torch.Tensor, bias: torch.Tensor | None, seed: int, approximate: str = "none") -> list[torch.Tensor]:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    gradient = random(tuple(x.shape), seed + 1).to(x.dtype)
    actual = run("triton", x, bias, gradient, approximate)
    expected = run("eager", x, bias, gradient, approximate)
    exact = run("eager", x.double(), None if bias is None else bias.double(), gradient.double(), approximate)
    for name, mine, other, truth in zip(("y", "dx", "dbias"), actual, expected, exact):
        assert mine.is_contiguous()
        assert_as_accurate(mine, other, truth, name)
    return actual


@contextmanager
def guarded_results(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Guarded]]:
    """Within the block, memory that is allocated for results has guards around it; checked at its end."""
    results: list[Guarded] = []
    empty = torch.empty

    def guarded(*size, **options):
        values = empty(*size, **options)
        if not values.is_floating_point():
            return values
        results.append(Guarded(values.fill_(torch.nan), values.device))
        return results[-1].tensor

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", guarded)
        yield results
    for result in results:
        result.check()
        assert result.tensor.isfinite().all()


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize("shape", [(5, 96), (9, 1023), (17, 129), (1, 1)], ids=str)
@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "bias"])
def test_writes_every_element_and_nothing_around(
    shape: tuple[int, int], with_bias: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, gradient = (Guarded(random(shape, seed + i), torch.device(DEVICE)).tensor for i in range(2))
    bias = Guarded(random(shape[1:], seed + 2), torch.device(DEVICE)).tensor if with_bias else None
    with guarded_results(monkeypatch) as actual:
        y = kernels.forward(x, bias, False)
        dx, dbias = kernels.backward(gradient, x, bias, False)
    assert len(actual) == (4 if with_bias else 2)
    expected = run("eager", x, bias, gradient)
    for mine, reference in zip((y, dx, dbias), expected):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_is_as_accurate_as_torch(shape: tuple[int, ...], dtype: torch.dtype, approximate: str, seed: int) -> None:
    check(random(shape, seed).to(dtype), random(shape[-1:], seed + 2).to(dtype), seed, approximate)


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (7, 1023), (33, 768)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_bias(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    check(random(shape, seed, 3.0).to(dtype), None, seed)


def test_the_widest_rows(seed: int) -> None:
    x, bias = random((3, 16384), seed), random((16384,), seed + 2)
    with use_backend("triton"), torch.no_grad():
        y = ops.bias_gelu(x, bias)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x + bias), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_in_fp32_has_a_gradient_in_fp32(dtype: torch.dtype, seed: int) -> None:
    x, bias = random((50, 96), seed).to(dtype), random((96,), seed + 2)
    _, _, dbias = check(x, bias, seed)
    assert dbias.dtype == torch.float32


def test_far_from_zero_and_what_is_not_a_number() -> None:
    x = torch.tensor([[-1e30, -50.0, -0.0, 0.0, 50.0, 1e30, torch.nan, 1.0]], device=DEVICE)
    y, dx = run("triton", x, None, torch.ones_like(x))
    assert y[0].tolist()[:6] == [0.0, 0.0, 0.0, 0.0, 50.0, x[0, 5]]
    assert dx[0].tolist()[:6] == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0]
    assert y[0].isnan().tolist() == dx[0].isnan().tolist() == [False] * 6 + [True, False]


def test_rows_are_independent_and_results_the_same_every_time(seed: int) -> None:
    x, bias, gradient = random((70, 200), seed), random((200,), seed + 2), random((70, 200), seed + 1)
    first, second = (run("triton", x, bias, gradient) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    alone = run("triton", x[41:44], bias, gradient[41:44])
    assert all(torch.equal(a[41:44], b) for a, b in zip(first[:2], alone[:2]))


def test_rows_that_lie_apart_and_an_expanded_gradient(seed: int) -> None:
    x, bias = random((96, 20), seed).t(), random((96,), seed + 2)
    gradient = random((20, 1), seed + 1).expand(20, 96)
    actual = run("triton", x, bias, gradient)
    same = run("triton", x.contiguous(), bias, gradient.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(actual, same))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_a_bias_whose_elements_lie_apart_or_on_each_other(approximate: str, seed: int) -> None:
    x, gradient = random((20, 96), seed), random((20, 96), seed + 1)
    for bias in (random((192,), seed + 2)[::2], random((1,), seed + 2).expand(96), random((97,), seed + 2)[1:]):
        actual = run("triton", x, bias, gradient, approximate)
        same = run("triton", x, bias.contiguous(), gradient, approximate)
        assert all(torch.equal(a, b) for a, b in zip(actual, same))


def test_no_gradient_is_computed_of_a_bias_that_wants_none(seed: int) -> None:
    x = random((4, 64), seed).requires_grad_()
    with use_backend("triton"):
        y = ops.bias_gelu(x, random((64,), seed + 2))
    y.backward(random((4, 64), seed + 1))
    assert x.grad is not None
    dx, total = torch.ops.fastbert.bias_gelu_backward(y.detach(), x.detach(), None, False, True, "triton")
    torch.testing.assert_close(total, dx.sum(0))


@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "bias"])
def test_the_operators_keep_their_promises(with_bias: bool, seed: int) -> None:
    x = random((5, 40), seed).requires_grad_()
    bias = random((40,), seed + 2).requires_grad_() if with_bias else None
    torch.library.opcheck(torch.ops.fastbert.bias_gelu.default, (x, bias, False, "triton"))
    arguments = (random((5, 40), seed + 1), x.detach(), bias.detach() if with_bias else None, True, with_bias, "triton")
    torch.library.opcheck(torch.ops.fastbert.bias_gelu_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_rows(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, bias):
        return ops.bias_gelu(x * 2.0, bias, "tanh") + 1.0

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for rows in (3, 4, 7):
            leaves = [random((rows, 33), seed).requires_grad_(), random((33,), seed + 2).requires_grad_()]
            results = [f(*leaves) for f in (compiled, function)]
            gradients = [torch.autograd.grad(result, leaves, random((rows, 33), seed + 1)) for result in results]
            assert torch.equal(*results)
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1


def test_refuses_what_it_does_not_serve(seed: int) -> None:
    x, bias = random((2, 8), seed), random((8,), seed)
    with use_backend("triton"):
        with pytest.raises(UserError, match=r"x has dtype torch.float64.*use_backend\('eager'\) does"):
            ops.bias_gelu(x.double(), None)
        with pytest.raises(UserError, match=r"bias has dtype torch.float16, x torch.float32"):
            ops.bias_gelu(x, bias.half())
        with pytest.raises(UserError, match="no forward-mode derivative"):
            torch.func.jvp(lambda x: ops.bias_gelu(x, bias), (x,), (x,))
    with pytest.raises(UserError, match="approximate='erf' must be 'none' or 'tanh'"):
        ops.bias_gelu(x, bias, "erf")
    with pytest.raises(UserError, match=r"bias must be floating of shape \(8,\).*\(7,\)"):
        ops.bias_gelu(x, bias[:7])
    with pytest.raises(UserError, match=r"x must be floating of shape \(\.\.\., width\), not torch.int64"):
        ops.bias_gelu(torch.zeros(2, 3, dtype=torch.int64), None)


@pytest.mark.parametrize("shape", [(1, 8), (130, 1000), (0, 16)], ids=str)
def test_backward_can_give_the_result_again(shape: tuple[int, int], seed: int) -> None:
    x, grad = random(shape, seed), random(shape, seed + 1)
    dx, y, sums = kernels.backward_with_output(grad, x, False)
    assert torch.equal(y, kernels.forward(x, None, False))
    expected = kernels.backward(grad, x, None, False, sums=True)
    assert torch.equal(dx, expected[0])
    assert torch.equal(sums, expected[1])
