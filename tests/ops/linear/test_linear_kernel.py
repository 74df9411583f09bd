"""The Triton matmuls with GELU against float64 and eager torch: compiled on a GPU, or in Triton's interpreter."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F

from fastbert import ops, use_backend
from fastbert.errors import UserError

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels import launch
from fastbert.kernels.configs.linear import TABLES
from fastbert.kernels.gelu import bias_gelu
from fastbert.kernels.launch import architecture
from fastbert.kernels.linear import linear as kernels
from fastbert.kernels.tuning import tables

INTERPRETED = not torch.cuda.is_available()
# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"

# Rows, depth, columns: on a GPU's tiles of 128 x 128 and on the interpreter's of 32 x 64.
SHAPES = [
    pytest.param(70, 80, 144, id="several-tiles-and-rests"),
    pytest.param(64, 64, 128, id="whole-tiles"),
    pytest.param(1, 48, 16, id="one-row"),
    pytest.param(0, 48, 32, id="no-row"),
    pytest.param(300, 16, 16, id="many-rows"),
]
HALVES = [pytest.param(torch.float16, id="fp16"), pytest.param(torch.bfloat16, id="bf16")]
ACTIVATIONS = ["gelu", "gelu_tanh"]


def random(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(spread).to(DEVICE)


def operands(rows: int, depth: int, columns: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        random((rows, depth), seed),
        random((columns, depth), seed + 1, max(depth, 1) ** -0.5),
        random((columns,), seed + 2),
    )


def run(
    backend: str,
    tensors: tuple[torch.Tensor | None, ...],
    gradient: torch.Tensor,
    activation: str | None = "gelu",
    autocast: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """The result, and the gradients of x, weight and bias."""
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]
    with use_backend(backend), torch.autocast(DEVICE, autocast, enabled=autocast is not None):
        result = ops.linear(*leaves, activation=activation)
    needed = [leaf for leaf in leaves if leaf is not None]
    return [result, *torch.autograd.grad(result, needed, gradient.to(result.dtype))]


def check(
    tensors: tuple[torch.Tensor | None, ...],
    seed: int,
    activation: str | None = "gelu",
    autocast: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    dtype = autocast or tensors[0].dtype
    gradient = random((*tensors[0].shape[:-1], len(tensors[1])), seed + 3).to(dtype)
    actual = run("triton", tensors, gradient, activation, autocast)
    expected = run("eager", tensors, gradient, activation, autocast)
    exact_in = tuple(None if tensor is None else tensor.double() for tensor in tensors)
    exact = run("eager", exact_in, gradient.double(), activation)
    for name, mine, other, truth in zip(("y", "dx", "dweight", "dbias"), actual, expected, exact):
        assert_as_accurate(mine, other, truth, name)
    return actual


@contextmanager
def guarded_results(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
        yield
    assert results
    for result in results:
        result.check()
        assert result.tensor.isfinite().all()


def guarded(*tensors: torch.Tensor) -> list[torch.Tensor]:
    return [Guarded(tensor, torch.device(DEVICE)).tensor for tensor in tensors]


# The first tests: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize("size", [(70, 80, 144), (5, 48, 16), (33, 144, 48)], ids=str)
@pytest.mark.parametrize("keep", [False, True], ids=["", "keep"])
def test_forward_writes_every_element_and_nothing_around(
    size: tuple[int, int, int], keep: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = guarded(*(tensor.half() for tensor in operands(*size, seed)))
    with guarded_results(monkeypatch):
        y, u = kernels.linear_gelu(x, weight, bias, False, keep)
    projected = F.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(y.float(), F.gelu(projected), rtol=2e-3, atol=2e-3)
    assert u.shape == (size[0] if keep else 0, size[2])
    if keep:
        torch.testing.assert_close(u.float(), projected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("size", [(70, 80, 144), (5, 48, 16), (33, 144, 48)], ids=str)
def test_backward_writes_every_element_and_nothing_around(
    size: tuple[int, int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, depth, columns = size
    numbers = random((rows, depth), seed), random((depth, columns), seed + 1, 0.1), random((rows, columns), seed + 2)
    grad, weight, u = guarded(*(tensor.half() for tensor in numbers))
    with guarded_results(monkeypatch):
        du, h, dbias = kernels.linear_gelu_backward(grad, weight, u, False)
    exact = u.double().requires_grad_()
    (expected,) = torch.autograd.grad(F.gelu(exact), exact, grad.double() @ weight.double())
    torch.testing.assert_close(du.double(), expected, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(h.double(), F.gelu(exact).detach(), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(dbias.double(), expected.sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
def test_the_value_is_that_of_the_rounded_matmul_in_all_kernels(dtype: torch.dtype, tanh: bool, seed: int) -> None:
    x, weight, bias = (tensor.to(dtype) for tensor in operands(40, 48, 80, seed))
    y, u = kernels.linear_gelu(x, weight, bias.float(), tanh, True)
    _, h, _ = kernels.linear_gelu_backward(random((40, 32), seed).to(dtype), random((32, 80), seed).to(dtype), u, tanh)
    assert torch.equal(y, h)
    assert torch.equal(y, bias_gelu.forward(u, None, tanh))
    alone, empty = kernels.linear_gelu(x, weight, bias.float(), tanh, False)
    assert torch.equal(alone, y)
    assert not len(empty)


def test_no_rows() -> None:
    half = {"dtype": torch.float16, "device": DEVICE}
    y, u = kernels.linear_gelu(torch.ones(0, 32, **half), torch.ones(16, 32, **half), None, False, True)
    assert y.shape == u.shape == (0, 16)
    du, h, dbias = kernels.linear_gelu_backward(torch.ones(0, 32, **half), torch.ones(32, 16, **half), y, False)
    assert du.shape == h.shape == (0, 16)
    assert dbias.tolist() == [0.0] * 16


def test_descriptors_give_the_bits_of_pointers(seed: int) -> None:
    target = architecture(torch.device(DEVICE))
    if not INTERPRETED and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("needs a GPU with tensor descriptors")
    x, weight, bias = (tensor.half() for tensor in operands(70, 80, 144, seed))
    grad, second = random((70, 48), seed + 4).half(), random((48, 144), seed + 5).half()
    results = []
    for tma in (0, 1):
        with (
            use_configuration(kernels.matmul_gelu, "half-256", target, TMA=tma),
            use_configuration(kernels.matmul_gelu_backward, "half-256", target, TMA=tma),
        ):
            y, u = kernels.linear_gelu(x, weight, bias, False, True)
            results.append((y, u, *kernels.linear_gelu_backward(grad, second, u, False)))
    assert all(torch.equal(a, b) for a, b in zip(*results))


@contextmanager
def use_configuration(kernel, shape: str, target: str, **constants: int) -> Iterator[None]:
    present = tables.lookup(kernel.__name__, shape, target)
    other = dataclasses.replace(present, constants={**present.constants, **constants})
    with tables.overridden(kernel.__name__, shape, other):
        yield


def test_rows_are_independent_and_results_the_same_every_time(seed: int) -> None:
    x, weight, bias = (tensor.half() for tensor in operands(100, 48, 80, seed))
    grad, second = random((100, 32), seed + 4).half(), random((32, 80), seed + 5).half()
    results = []
    for _ in range(2):
        y, u = kernels.linear_gelu(x, weight, bias, False, True)
        results.append((y, u, *kernels.linear_gelu_backward(grad, second, u, False)))
    assert all(torch.equal(a, b) for a, b in zip(*results))
    y, u = kernels.linear_gelu(x[61:64], weight, bias, False, True)
    du, h, _ = kernels.linear_gelu_backward(grad[61:64], second, u, False)
    for alone, among, same_tiles in zip((y, u, du, h), results[0], (False, False, True, True)):
        # In NumPy a sum depends on a row's position in a tile; few rows forward have tiles of their own. Either way the
        # results differ by one rounding to half.
        if INTERPRETED or not same_tiles:
            torch.testing.assert_close(alone, among[61:64], rtol=2**-10, atol=2**-14)
        else:
            assert torch.equal(alone, among[61:64])


@pytest.mark.parametrize(("rows", "depth", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", HALVES)
def test_is_as_accurate_as_torch(rows: int, depth: int, columns: int, dtype: torch.dtype, seed: int) -> None:
    tensors = tuple(tensor.to(dtype) for tensor in operands(rows, depth, columns, seed))
    check(tensors, seed, ACTIVATIONS[seed % 2])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("fused", [0, 1], ids=["library", "fused"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["bare", "bias"])
def test_both_ways_of_the_table(activation: str, fused: int, with_bias: bool, seed: int) -> None:
    x, weight, bias = (tensor.half() for tensor in operands(40, 48, 80, seed))
    target = architecture(torch.device(DEVICE))
    with use_configuration(kernels.matmul_gelu, "half-256", target, FUSED=fused):
        assert kernels.prefers_fused(x) == bool(fused)
        check((x, weight, bias if with_bias else None), seed, activation)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("columns", [80, 33], ids=["fused", "odd-width"])
def test_gradients_reach_fp32_weights_under_autocast(dtype: torch.dtype, columns: int, seed: int) -> None:
    actual = check(operands(40, 48, columns, seed), seed, autocast=dtype)
    assert [tensor.dtype for tensor in actual] == [dtype, torch.float32, torch.float32, torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize(("depth", "columns"), [(33, 48), (48, 33), (0, 16)])
def test_calls_that_are_not_fused(dtype: torch.dtype, depth: int, columns: int, seed: int) -> None:
    check(tuple(tensor.to(dtype) for tensor in operands(20, depth, columns, seed)), seed)


def test_without_an_activation_it_is_torchs_matmul(seed: int) -> None:
    tensors = operands(20, 48, 80, seed)
    gradient = random((20, 80), seed + 3)
    actual, expected = (run(backend, tensors, gradient, None) for backend in ("triton", "eager"))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))


def test_rows_in_any_number_of_axes_and_any_order_in_memory(seed: int) -> None:
    x, weight, bias = (tensor.half() for tensor in operands(12, 48, 80, seed))
    flat = run("triton", (x, weight, bias), random((12, 80), seed + 3))
    apart = x.t().contiguous().t().view(12, 48).unflatten(0, (3, 4))
    shaped = run("triton", (apart, weight.t().contiguous().t(), bias), random((12, 80), seed + 3).view(3, 4, 80))
    assert shaped[0].shape == (3, 4, 80)
    assert torch.equal(shaped[0].flatten(0, 1), flat[0])
    assert torch.equal(shaped[3], flat[3])
    # PyTorch's matmuls, whose order of summation may differ.
    torch.testing.assert_close(shaped[1].flatten(0, 1), flat[1], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(shaped[2], flat[2], rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("fused", [0, 1], ids=["library", "fused"])
def test_a_bias_whose_elements_lie_apart(fused: int, seed: int) -> None:
    x, weight, _ = (tensor.half() for tensor in operands(20, 48, 32, seed))
    bias, gradient = random((64,), seed + 2).half()[::2], random((20, 32), seed + 3)
    with use_configuration(kernels.matmul_gelu, "half-256", architecture(x.device), FUSED=fused):
        actual = run("triton", (x, weight, bias), gradient)
        same = run("triton", (x, weight, bias.contiguous()), gradient)
    for value, expected in zip(actual, same):
        if fused or INTERPRETED:
            assert torch.equal(value, expected)
        else:  # on a GPU, PyTorch adds such a bias by another kernel
            torch.testing.assert_close(value, expected, rtol=2**-9, atol=2**-12)


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 256, 257])
def test_few_rows_have_tiles_of_their_own(rows: int, seed: int) -> None:
    """The shipped ones of sm_90, on any device; with more rows the others. Results are those of many rows."""
    x, weight, bias = (tensor.half() for tensor in operands(rows, 48, 80, seed))
    target, expected = architecture(torch.device(DEVICE)), {16: (16, 16), 64: (64, 32), 256: (64, 64)}
    most = next((limit for limit in expected if rows <= limit), None)
    few = {f"half-256-rows{limit}": TABLES["sm_90"]["matmul_gelu"][f"half-256-rows{limit}"] for limit in expected}
    many = kernels.linear_gelu(x[:1].expand(300, -1), weight, bias, False, True)
    table = {target: {"matmul_gelu": {**tables.effective(target)["matmul_gelu"], **few}}}
    with tables.pinned(table), launch.observing() as launches:
        actual = kernels.linear_gelu(x, weight, bias, False, True)
    sizes = launches[0].constants
    if most is not None:
        assert (sizes["BLOCK_M"], sizes["BLOCK_N"]) == expected[most]
    elif INTERPRETED:
        assert (sizes["BLOCK_M"], sizes["BLOCK_N"]) == (32, 64)
    for value, same in zip(actual, many):
        torch.testing.assert_close(value[:1], same[:1], rtol=2**-10, atol=2**-14)


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_sixteen_rows_use_every_multiprocessor(target: str) -> None:
    """One short query: a tile per program, each multiprocessor with more than 15 KB of the weight in flight."""
    multiprocessors = {"sm_80": 108, "sm_90": 132, "sm_100": 148}[target]
    for depth, columns in ((768, 3072), (1024, 4096)):
        config = TABLES[target]["matmul_gelu"]["half-1024-rows16"]
        sizes = config.constants
        programs = -(-16 // sizes["BLOCK_M"]) * (columns // sizes["BLOCK_N"])
        assert multiprocessors <= programs <= kernels.FEW_ROWS_PROGRAMS * multiprocessors
        in_flight = min(depth, sizes["BLOCK_K"] * (config.num_stages - 1)) * sizes["BLOCK_N"] * 2
        assert programs * in_flight >= 15_000 * multiprocessors
        assert sizes["FUSED"]
    assert target != "sm_80" or not TABLES[target]["matmul_gelu"]["half-1024-rows64"].constants["FUSED"]


@pytest.mark.parametrize("needed", [0, 1, 2], ids=["x", "weight", "bias"])
def test_a_second_derivative_is_refused(needed: int, seed: int) -> None:
    tensors = [tensor.half() for tensor in operands(4, 48, 32, seed)]
    leaf = tensors[needed].requires_grad_()
    with use_backend("triton"):
        result = ops.linear(*tensors, activation="gelu")
    (gradient,) = torch.autograd.grad(result, leaf, random((4, 32), seed).half(), create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        torch.autograd.grad(gradient.square().sum(), leaf)


def test_nothing_is_kept_where_no_gradient_is_wanted(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    forward = kernels.linear_gelu
    monkeypatch.setattr(kernels, "linear_gelu", lambda *arguments: asked.append(arguments[4]) or forward(*arguments))
    x, weight, bias = (tensor.half() for tensor in operands(4, 48, 16, seed))
    with use_backend("triton"):
        ops.linear(x, weight, bias, activation="gelu")
        ops.linear(x, weight.requires_grad_(), bias, activation="gelu")
        with torch.no_grad():
            ops.linear(x, weight, bias, activation="gelu")
    assert asked == [False, True, False]


@pytest.mark.parametrize("keep", [False, True], ids=["", "keep"])
def test_the_operator_keeps_its_promises(keep: bool, seed: int) -> None:
    x, weight, bias = (tensor.half().requires_grad_(keep) for tensor in operands(10, 48, 16, seed))
    torch.library.opcheck(torch.ops.fastbert.linear_gelu.default, (x, weight, bias, False, keep))
    torch.library.opcheck(torch.ops.fastbert.linear_gelu.default, (x, weight, None, True, keep))
    rows = (random((10, 16), seed).half(), random((10, 16), seed + 1).half(), x.detach(), weight.detach(), None)
    torch.library.opcheck(torch.ops.fastbert.linear_gelu_backward.default, (*rows, True, keep))


def test_compiles_whole_and_once_for_any_number_of_rows(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, weight, bias):
        return ops.linear(x * 2.0, weight, bias, activation="gelu") + 1.0

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    weights = [torch.nn.Parameter(tensor.half()) for tensor in operands(1, 48, 80, seed)[1:]]
    with use_backend("triton"):
        for rows in (3, 4, 7):
            x = random((rows, 48), seed).half().requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            leaves = [x, *weights]
            results = [f(*leaves) for f in (compiled, function)]
            gradients = [torch.autograd.grad(result, leaves, random((rows, 80), seed).half()) for result in results]
            assert torch.equal(*results)
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1


def test_refuses_what_is_wrong(seed: int) -> None:
    x, weight, bias = (tensor.half() for tensor in operands(4, 48, 16, seed))
    with pytest.raises(UserError, match="activation='relu' must be None, 'gelu' or 'gelu_tanh'"):
        ops.linear(x, weight, bias, activation="relu")
    with pytest.raises(UserError, match=r"weight has shape \(48, 16\): it must be \(out, in\)"):
        ops.linear(x, weight.t(), bias)
    with pytest.raises(UserError, match=r"bias has shape \(15,\): it must be \(16,\)"):
        ops.linear(x, weight, bias[:15])
    for backend in ("triton", "eager"):
        with use_backend(backend):
            for activation in (None, "gelu"):
                with pytest.raises(UserError, match=r"weight has dtype torch\.float32, x torch\.float16: cast one"):
                    ops.linear(x, weight.float(), bias, activation=activation)
                with pytest.raises(UserError, match=r"bias has dtype torch\.bfloat16, x torch\.float16: cast one"):
                    ops.linear(x, weight, bias.bfloat16(), activation=activation)
                with pytest.raises(UserError, match=r"weight is on meta, x on .*: move them to one device"):
                    ops.linear(x, weight.to("meta"), bias, activation=activation)
            with pytest.raises(UserError, match=r"x must be floating, not torch\.int64"):
                ops.linear(x.long(), weight.long())
    with use_backend("triton"):
        with pytest.raises(UserError, match="no forward-mode derivative"):
            torch.func.jvp(lambda x: ops.linear(x, weight, bias, activation="gelu"), (x,), (x,))
        with pytest.raises(UserError, match=r"torch.float64.*use_backend\('eager'\) does"):
            ops.linear(x.double(), weight.double(), bias.double(), activation="gelu")
