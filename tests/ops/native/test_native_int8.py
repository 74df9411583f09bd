"""int8 matmuls of CPUs with every kernel: exact sums, quantised rows, and nothing touched beyond an argument."""

from collections.abc import Callable, Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from sweeps import sweep
from torch import Tensor
from torch.nn import functional as F

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native.matmul import matmul, prepack, quantize_rows

SHAPES = [
    pytest.param(0, 64, 32, id="no-row"),
    pytest.param(1, 1, 1, id="one-element"),
    pytest.param(1, 768, 96, id="one-row"),
    pytest.param(15, 63, 31, id="just-below"),
    pytest.param(16, 64, 32, id="exact"),
    pytest.param(17, 65, 33, id="just-above"),
    pytest.param(33, 1023, 70, id="odd-widths"),
    pytest.param(4097, 5, 3, id="4097-rows"),
]


@pytest.fixture(params=cpu_kernels.KERNELS, autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every kernel that this machine has or emulates."""
    with cpu_kernels.running(request.param):
        yield request.param


def integers(generator: torch.Generator, rows: int, width: int, lowest: int = -127) -> Tensor:
    return torch.randint(lowest, 128, (rows, width), generator=generator, dtype=torch.int32).to(torch.int8)


def pack_integers(weight: Tensor) -> _C.PrepackedWeight:
    """A weight of integers whose scale is 1: each row has a 127."""
    packed = prepack(weight.float(), "int8")
    assert packed.scales == [1.0] * len(weight)
    return packed


def sums(x: Tensor, packed: _C.PrepackedWeight, out: Tensor | None = None) -> Tensor:
    """x weight^T in fp32, which holds integers below 2^24 exactly."""
    if out is None:
        out = torch.full((len(x), packed.columns), torch.nan)
    scales = torch.ones(max(1, len(x)))
    target = (out.data_ptr(), "fp32", packed.columns)
    _C.matmul((x.data_ptr(), "int8", packed.depth), len(x), packed, target, row_scales=scales.data_ptr())
    return out


def problem(rows: int, depth: int, columns: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = integers(generator, columns, depth)
    weight[:, -1] = 127
    # -128 never comes from a quantised row, but is an integer like others.
    return integers(generator, rows, depth, -128), weight


@sweep(("rows", "depth", "columns"), SHAPES)
def test_sums_are_exact(rows: int, depth: int, columns: int, seed: int) -> None:
    x, weight = problem(rows, depth, columns, seed)
    expected = x.int() @ weight.int().T
    assert torch.equal(sums(x, pack_integers(weight)), expected.float())


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integers_do_not_saturate(sign: int) -> None:
    depth = 1040  # 127 * 127 * 1040 is just below 2^24
    x = torch.full((20, depth), sign * 127, dtype=torch.int8)
    weight = torch.full((40, depth), 127, dtype=torch.int8)
    assert torch.equal(sums(x, pack_integers(weight)), torch.full((20, 40), sign * 127.0 * 127.0 * depth))


def test_every_pair_of_integers_is_summed_exactly() -> None:
    """Instructions that add two products in 16 bits saturate for some pairs."""
    numbers = torch.arange(-128, 128, dtype=torch.int32)
    x = torch.cartesian_prod(numbers, numbers).to(torch.int8).view(-1, 64)
    signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.int32)
    weight = torch.cat([torch.full((1, 64), 127, dtype=torch.int32), 127 * signs.repeat(1, 32)])
    weight[1:, -1] = 127
    assert torch.equal(sums(x, pack_integers(weight.to(torch.int8))), (x.int() @ weight.T).float())


def test_every_count_of_rows(seed: int) -> None:
    """Each has a block of its own in some kernel; a row's sums are the same in all."""
    x, weight = problem(40, 70, 33, seed)
    packed, expected = pack_integers(weight), (x.int() @ weight.int().T).float()
    for rows in range(1, 41):
        assert torch.equal(sums(x[:rows], packed), expected[:rows]), rows


@sweep("depth", [1, 15, 63, 64, 77])
def test_nothing_behind_an_argument_is_touched(depth: int, seed: int) -> None:
    x, weight = problem(19, depth, 37, seed)
    fenced = Fenced(x), Fenced(torch.full((19, 37), torch.nan))
    expected = (x.int() @ weight.int().T).float()
    assert torch.equal(sums(fenced[0].tensor, pack_integers(weight), fenced[1].tensor), expected)
    for dtype in (torch.float32, torch.bfloat16):
        rows = Fenced(x.to(dtype)).tensor
        whole, scales = Fenced(torch.zeros_like(x)).tensor, Fenced(torch.zeros(19)).tensor
        name = "fp32" if dtype == torch.float32 else "bf16"
        _C.quantize_rows((rows.data_ptr(), name, depth), 19, depth, whole.data_ptr(), scales.data_ptr())
        assert torch.equal(whole, quantize_rows(rows)[0])


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """The definition, in eager torch: integers and scales of finite rows."""
    x = x.float()
    peak = x.abs().amax(1, keepdim=True)
    # Not 127.0 / peak, for which torch multiplies by a reciprocal.
    factor = torch.where(peak > 0, torch.full_like(peak, 127.0) / peak, 0.0)
    return (x * factor).round().to(torch.int8), (peak / 127.0)[:, 0]


def quantized_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of weights: they are divided by the scale itself, which at a tie may round to the other side."""
    scale = weight.abs().amax(1, keepdim=True) / 127.0
    return (weight / scale).round().to(torch.int8), scale[:, 0]


@sweep("dtype", [torch.float32, torch.bfloat16])
@sweep("width", [1, 7, 16, 33, 768, 1023])
def test_rows_become_the_integers_of_the_definition(dtype: torch.dtype, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(70, width, generator=generator) * torch.logspace(-20, 20, 70)[:, None]
    x[5] = 0.0
    x = x.to(dtype)
    for actual, expected in zip(quantize_rows(x), quantized(x), strict=True):
        assert torch.equal(actual, expected)


def test_ties_go_to_even_and_strides_are_followed() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5]])
    assert quantize_rows(x)[0].tolist() == [[127, 0, 2, 2, 0, -2, -126]]
    wide = torch.randn(40, 90)
    for actual, expected in zip(quantize_rows(wide[::2, 3:70]), quantize_rows(wide[::2, 3:70].clone()), strict=True):
        assert torch.equal(actual, expected)


@sweep("position", [0, 20, 36])
@sweep("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_gives_nan_and_no_other(value: float, position: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(5, 37, generator=generator), torch.randn(9, 37, generator=generator)
    finite = matmul(x, prepack(weight, "int8"))
    x[2, position] = value
    whole, scales = quantize_rows(x)
    assert scales[2].isnan()
    assert not whole[2].any()
    broken = matmul(x, prepack(weight, "int8"))
    assert broken[2].isnan().all()
    others = torch.arange(5) != 2
    assert torch.equal(broken[others], finite[others])


def test_tiny_and_huge_rows_are_defined() -> None:
    x = torch.tensor([[0.0, -0.0], [1e-38, 1e-45], [3.4e38, -1.7e38]])
    whole, scales = quantize_rows(x)
    assert whole.tolist() == [[0, 0], [0, 0], [127, -64]]
    assert scales[:2].tolist() == [0.0, 0.0]
    assert scales[2].isfinite()


@sweep("dtype", [torch.float32, torch.bfloat16])
@sweep("activation", [None, "gelu", "gelu_tanh"])
def test_products_follow_the_definition(dtype: torch.dtype, activation: str | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, depth, columns = 37, 129, 70
    x = torch.randn(rows, depth, generator=generator).to(dtype)
    weight, bias = torch.randn(columns, depth, generator=generator), torch.randn(columns, generator=generator)
    residual = torch.randn(rows, columns, generator=generator).to(dtype)
    gain, shift = torch.randn(columns, generator=generator), torch.randn(columns, generator=generator)
    packed = prepack(weight, "int8")
    (x_q, x_scale), (w_q, w_scale) = quantized(x), quantized_weight(weight)
    exact = (x_q.double() @ w_q.double().T) * x_scale.double()[:, None] * w_scale.double() + bias.double()
    if activation:
        exact = F.gelu(exact, approximate="tanh" if activation == "gelu_tanh" else "none")
    exact = exact + residual.double()
    step = torch.finfo(dtype).eps
    actual = matmul(x, packed, bias, activation, residual)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual.double(), exact, rtol=max(step, 1e-5), atol=2e-5)
    actual = matmul(x, packed, bias, activation, residual, (gain, shift, 1e-12), torch.float32)
    exact = F.layer_norm(exact, (columns,), gain.double(), shift.double(), 1e-12)
    torch.testing.assert_close(actual.double(), exact, rtol=1e-5, atol=2e-5)


def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(75, 200, generator=generator), torch.randn(130, 200, generator=generator)
    packed, bias = prepack(weight, "int8"), torch.randn(130, generator=generator)
    whole = matmul(x, packed, bias, "gelu", out_dtype=torch.bfloat16)
    for first, last in ((0, 1), (7, 8), (3, 19), (20, 37), (20, 53), (1, 75)):
        assert torch.equal(matmul(x[first:last], packed, bias, "gelu", out_dtype=torch.bfloat16), whole[first:last])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(matmul(x, packed, bias, "gelu", out_dtype=torch.bfloat16), whole)
    finally:
        torch.set_num_threads(threads)


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("x has dtype", lambda: quantize_rows(torch.zeros(2, 3, dtype=torch.float16))),
    ("x has shape", lambda: quantize_rows(torch.zeros(3))),
    ("x has strides", lambda: quantize_rows(torch.zeros(3, 4).T)),
    ("x has shape", lambda: matmul(torch.zeros(2, 3), prepack(torch.zeros(4, 5), "int8"))),
    ("activation=", lambda: matmul(torch.zeros(2, 5), prepack(torch.zeros(4, 5), "int8"), None, "relu")),
    ("bias is", lambda: matmul(torch.zeros(2, 5), prepack(torch.zeros(4, 5), "int8"), torch.zeros(5))),
    ("out_dtype=", lambda: matmul(torch.zeros(2, 5), prepack(torch.zeros(4, 5), "int8"), out_dtype=torch.int8)),
]


@sweep(("message", "call"), REFUSED, ids=[f"{message} {i}" for i, (message, _) in enumerate(REFUSED)])
def test_wrong_arguments_are_refused_by_name(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(UserError, match=message):
        call()
