"""The row-wise C++ kernels of CPUs at every dispatch level, against float64 and eager torch."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import DTYPES, LEVELS, NAMES, Draw, apart, check, wide
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.errors import UserError

SHAPES = [
    pytest.param(0, 64, id="no-row"),
    pytest.param(1, 1, id="one-element"),
    pytest.param(300, 1, id="width-1"),
    pytest.param(1, 768, id="one-row"),
    pytest.param(37, 7, id="width-7"),
    pytest.param(37, 33, id="width-33"),
    pytest.param(128, 768, id="base-width"),
    pytest.param(5, 1023, id="odd-width"),
    pytest.param(4097, 17, id="4097-rows"),
    pytest.param(1, 50_003, id="a-row-beyond-the-near-caches"),
]
WEIGHTS = [
    pytest.param((torch.float32, torch.float32), id="fp32-weights"),
    pytest.param((torch.bfloat16, torch.bfloat16), id="bf16-weights"),
    pytest.param((torch.bfloat16, torch.float32), id="mixed-weights"),
]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has, without gradients."""
    with cpu_kernels.running(request.param), torch.no_grad():
        yield request.param


def arguments(operation: str, rows: int, width: int, dtype: torch.dtype, seed: int, *weights: torch.dtype) -> list[Any]:
    """Tensors for `call`: first what has rows, then vectors; softmax takes a mask instead."""
    draw = Draw(seed)
    first, second = weights or (torch.float32, torch.float32)
    x, other = draw.normal(rows, width, dtype=dtype), draw.normal(rows, width, dtype=dtype)
    weight, bias, x_bias = (draw.normal(width, dtype=kind) for kind in (first, second, second))
    match operation:
        case "layer_norm":
            return [x, weight, bias]
        case "dropout_add_layer_norm":
            return [x, other, weight, bias, x_bias]
        case "bias_gelu" | "bias_gelu_tanh":
            return [2 * x, x_bias]
        case "gelu_layer_norm":
            return [x, x_bias, weight, bias]
    return [x[None, None], other[None, None] > -1.0]


def call(operation: str, operands: list[Any]) -> tuple[Tensor, ...]:
    match operation:
        case "layer_norm":
            return (ops.layer_norm(*operands),)
        case "dropout_add_layer_norm":
            return ops.dropout_add_layer_norm(*operands[:4], x_bias=operands[4], return_sum=True)
        case "bias_gelu":
            return (ops.bias_gelu(*operands),)
        case "bias_gelu_tanh":
            return (ops.bias_gelu(*operands, "tanh"),)
        case "gelu_layer_norm":
            return (ops.gelu_layer_norm(*operands),)
    return (ops.softmax(*operands, scale=0.7),)


OPERATIONS = ["layer_norm", "dropout_add_layer_norm", "bias_gelu", "bias_gelu_tanh", "gelu_layer_norm", "softmax"]
ROWWISE = OPERATIONS[:-1]


def forced(operation: str, operands: list[Any], backend: str = "native") -> tuple[Tensor, ...]:
    with use_backend(backend):  # type: ignore[arg-type]
        return call(operation, operands)


@sweep("operation", OPERATIONS)
@sweep("dtype", DTYPES)
@sweep(("rows", "width"), SHAPES)
def test_is_as_accurate_as_torch(operation: str, dtype: torch.dtype, rows: int, width: int, seed: int) -> None:
    operands = arguments(operation, rows, width, dtype, seed)
    results = (
        forced(operation, operands),
        forced(operation, operands, "eager"),
        forced(operation, wide(operands), "eager"),
    )
    for actual, eager, exact in zip(*results, strict=True):
        check(actual, eager, exact, operation)


@sweep("operation", ROWWISE)
@sweep("dtype", DTYPES)
@sweep("kinds", WEIGHTS)
def test_weights_of_any_dtype(operation: str, dtype: torch.dtype, kinds: Any, seed: int) -> None:
    operands = arguments(operation, 40, 65, dtype, seed, *kinds)
    alike = [operands[0], *(x if x.dim() > 1 else x.float() for x in operands[1:])]
    # The same numbers in fp32 are the same call.
    for one, other in zip(forced(operation, operands), forced(operation, alike), strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, other)


@sweep("operation", OPERATIONS)
@sweep("dtype", DTYPES)
def test_same_bits_on_every_run_and_any_threads(operation: str, dtype: torch.dtype, seed: int) -> None:
    operands = arguments(operation, 333, 769, dtype, seed)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, again = forced(operation, operands), forced(operation, operands)
        torch.set_num_threads(1)
        alone = forced(operation, operands)
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@sweep("operation", ROWWISE)
@sweep("dtype", DTYPES)
def test_a_row_knows_nothing_of_its_neighbours(operation: str, dtype: torch.dtype, seed: int) -> None:
    operands = arguments(operation, 9, 131, dtype, seed)
    together = forced(operation, operands)
    spoilt = [x.clone() for x in operands]
    spoilt[0][3] = torch.nan
    spoilt[0][5, 7] = math.inf
    for whole, partly in zip(together, forced(operation, spoilt), strict=True):
        selected = [0, 1, 2, 4, 6, 7, 8]
        assert torch.equal(whole[selected], partly[selected])
        assert partly[3].isnan().all()
    for row in range(9):
        alone = forced(operation, [x[row : row + 1] if x.dim() == 2 else x for x in operands])
        for whole, part in zip(together, alone, strict=True):
            assert torch.equal(whole[row : row + 1], part)


def batched(x: Tensor) -> Tensor:
    padded = torch.full((2, x.shape[0], x.shape[1]), torch.nan, dtype=x.dtype)
    padded[:, :-1] = x[:-1]
    return padded[:, :-1]


LAYOUTS = [
    pytest.param(apart, id="rows-apart"),
    pytest.param(lambda x: x.t().contiguous().t(), id="elements-apart"),
    pytest.param(lambda x: x[:1].expand_as(x), id="one-row-many-times"),
    pytest.param(lambda x: x.flatten().as_strided(x.shape, (3, 1)), id="rows-inside-each-other"),
    pytest.param(batched, id="batches-apart"),
    pytest.param(lambda x: x[0], id="one-dimension"),
]


@sweep("operation", ROWWISE)
@sweep("layout", LAYOUTS)
def test_rows_of_any_strides(operation: str, layout: Callable[[Tensor], Tensor], seed: int) -> None:
    operands = [layout(x) if x.dim() == 2 else x for x in arguments(operation, 11, 37, torch.bfloat16, seed)]
    for strided, plain in zip(
        forced(operation, operands), forced(operation, [x.clone() for x in operands]), strict=True
    ):
        assert strided.is_contiguous()
        assert torch.equal(strided, plain)


def test_arguments_may_share_memory(seed: int) -> None:
    x = Draw(seed).normal(12, 12)
    operands = [x, x, x[3], x[:, 4], x[0]]
    for actual, expected in zip(
        forced("dropout_add_layer_norm", operands),
        forced("dropout_add_layer_norm", [operand.clone() for operand in operands]),
    ):
        assert torch.equal(actual, expected)


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", DTYPES)
@sweep("vectors", DTYPES)
@sweep("width", [1, 7, 15, 33, 48, 771])
def test_nothing_outside_is_touched(
    behind: bool, dtype: torch.dtype, vectors: torch.dtype, width: int, seed: int
) -> None:
    draw, rows = Draw(seed), 5
    x, residual, y, total = (Fenced(draw.normal(rows, width, dtype=dtype), behind) for _ in range(4))
    weight, bias, x_bias = (Fenced(draw.normal(width, dtype=vectors), behind) for _ in range(3))
    mean, rstd = (Fenced(torch.zeros(rows), behind) for _ in range(2))
    head, norm = (rows, width, NAMES[dtype]), (weight.address, bias.address, NAMES[vectors], 1e-12)
    statistics = (mean.address, rstd.address)

    def expect(*names: Tensor) -> None:
        for fenced, values in zip((y, total), names):
            assert torch.equal(fenced.tensor, values)

    with use_backend("native"):
        _C.layer_norm(*head, x.address, width, *norm, False, y.address, *statistics)
        expect(ops.layer_norm(x.tensor, weight.tensor, bias.tensor))
        _C.dropout_add_layer_norm(
            *head,
            x.address,
            width,
            residual.address,
            width,
            x_bias.address,
            *norm,
            False,
            None,
            total.address,
            y.address,
            *statistics,
        )
        expect(*call("dropout_add_layer_norm", [fenced.tensor for fenced in (x, residual, weight, bias, x_bias)]))
        for tanh in (False, True):
            gelu = (*head, x.address, width, x_bias.address)
            _C.bias_gelu(*gelu, NAMES[vectors], tanh, y.address)
            expect(ops.bias_gelu(x.tensor, x_bias.tensor, "tanh" if tanh else "none"))
            _C.gelu_layer_norm(*gelu, *norm, tanh, y.address, *statistics)
            expect(
                ops.gelu_layer_norm(
                    x.tensor, x_bias.tensor, weight.tensor, bias.tensor, 1e-12, "tanh" if tanh else "none"
                )
            )
        mask = Fenced(draw.normal(rows, width) > -0.5, behind)
        sizes = (1, 1, rows, width)
        _C.softmax(
            sizes,
            NAMES[dtype],
            x.address,
            mask.tensor[None, None].stride(),
            mask.address,
            (0, 0, width, 1),
            0.5,
            None,
            y.address,
        )
        expect(ops.softmax(x.tensor[None, None], mask.tensor, scale=0.5)[0, 0])


REFUSED = [
    pytest.param(lambda: ops.layer_norm(torch.randn(3, 8).half(), *unit()), "float16", id="fp16"),
    pytest.param(lambda: ops.layer_norm(torch.randn(3, 8), *(v.double() for v in unit())), "float64", id="fp64-weight"),
    pytest.param(lambda: ops.layer_norm(torch.randn(3, 0), torch.ones(0), torch.ones(0)), "no element", id="width-0"),
    pytest.param(lambda: torch.func.vmap(lambda x: ops.layer_norm(x, *unit()))(torch.randn(3, 8)), "", id="vmap"),
    pytest.param(lambda: ops.bias_gelu(torch._neg_view(torch.randn(3)), None), "class", id="negated-view"),
]


def unit() -> tuple[Tensor, Tensor]:
    return torch.ones(8), torch.zeros(8)


@sweep(("function", "reason"), REFUSED)
def test_eager_torch_serves_the_rest_unless_native_was_forced(
    function: Callable[[], Tensor], reason: str, seed: int
) -> None:
    torch.manual_seed(seed)
    chosen = function()
    torch.manual_seed(seed)
    with use_backend("eager"):
        eager = function()
    torch.testing.assert_close(chosen, eager)
    assert chosen.requires_grad == eager.requires_grad
    with use_backend("native"), pytest.raises(UserError, match=f"native.*{reason}"):
        function()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace", "ignore::torch.jit.TracerWarning")
def test_negated_views_and_traces_are_right(seed: int) -> None:
    x = Draw(seed).normal(4, 8)
    torch.testing.assert_close(ops.bias_gelu(torch._neg_view(x), None), torch.nn.functional.gelu(-x))
    traced = torch.jit.trace(lambda x: ops.layer_norm(x, *unit()), (x,), check_trace=False)
    torch.testing.assert_close(traced(x + x.exp()), torch.nn.functional.layer_norm(x + x.exp(), (8,), *unit(), 1e-12))


@sweep("operation", OPERATIONS)
def test_is_chosen_where_no_gradient_is_wanted(operation: str, seed: int) -> None:
    operands = arguments(operation, 33, 129, torch.bfloat16, seed)
    for chosen, native in zip(call(operation, operands), forced(operation, operands), strict=True):
        assert torch.equal(chosen, native)
        assert not chosen.requires_grad


def test_compiled_calls_stay_with_torch(level: str, seed: int) -> None:
    if level != "portable":
        pytest.skip("no kernel runs, so one level is enough")
    operands = arguments("dropout_add_layer_norm", 5, 40, torch.bfloat16, seed)
    compiled = torch.compile(lambda: call("dropout_add_layer_norm", operands), backend="aot_eager", fullgraph=True)
    for one, eager in zip(compiled(), forced("dropout_add_layer_norm", operands, "eager"), strict=True):
        assert torch.equal(one, eager)


@sweep(
    ("change", "message"),
    [
        pytest.param({0: -1}, "rows=-1", id="rows"),
        pytest.param({1: 0}, "width=0", id="width"),
        pytest.param({2: "fp16"}, "'fp16' must be 'fp32' or 'bf16'", id="dtype"),
        pytest.param({3: 0}, "address", id="x"),
        pytest.param({5: 0}, "address", id="weight"),
        pytest.param({7: "int8"}, "'int8'", id="dtype-of-vectors"),
        pytest.param({10: 0}, "address", id="y"),
        pytest.param({11: 8}, "address of mean or rstd", id="mean-alone"),
    ],
)
def test_the_binding_refuses_what_would_crash(change: dict[int, Any], message: str) -> None:
    x, y, one = torch.zeros(2, 4), torch.zeros(2, 4), torch.ones(4)
    operands = [2, 4, "fp32", x.data_ptr(), 4, one.data_ptr(), one.data_ptr(), "fp32", 1e-12, False, y.data_ptr(), 0, 0]
    _C.layer_norm(*operands)
    for position, value in change.items():
        operands[position] = value
    with pytest.raises(ValueError, match=message):
        _C.layer_norm(*operands)


def test_tensors_of_another_device_are_refused_by_name() -> None:
    x, (weight, bias) = torch.randn(3, 8), unit()
    with pytest.raises(UserError, match="weight is on meta"):
        ops.layer_norm(x, weight.to("meta"), bias)
    with use_backend("native"), pytest.raises(UserError, match="meta"):
        ops.layer_norm(x.to("meta"), weight.to("meta"), bias.to("meta"))
