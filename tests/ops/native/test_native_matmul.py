"""Native matmuls: every capability against eager torch and float64, and the bits of a row in any batch."""

import itertools
from collections.abc import Iterator

import cpu_kernels
import emulator
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
from fastbert.ops.native.matmul import matmul, prepack

SHAPES = [
    pytest.param(0, 64, 64, id="no-rows"),
    pytest.param(1, 96, 128, id="one-row"),
    pytest.param(15, 31, 33, id="odd-width-and-depth"),
    pytest.param(29, 50, 100, id="rows-of-three-panels"),
    pytest.param(64, 1, 7, id="one-column"),
    pytest.param(7, 40, 1, id="one-input"),
    pytest.param(5, 40, 0, id="no-inputs"),
    pytest.param(5, 0, 40, id="no-columns"),
    pytest.param(4097, 33, 65, id="4097-rows"),
    pytest.param(300, 768, 768, id="base-width"),
    pytest.param(20, 70, 3072, id="long-sums"),
]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel, in software where this processor lacks it."""
    with cpu_kernels.running(request.param):
        yield request.param


def operands(seed: int, rows: int, columns: int, depth: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    weight = drawn(seed + 1, columns, depth, dtype=dtype, scale=max(depth, 1) ** -0.5)
    return drawn(seed, rows, depth, dtype=dtype), weight, drawn(seed + 2, columns, dtype=dtype)


def fewer(rows: int, level: str) -> int:
    """As many rows as the emulator multiplies in a second or two."""
    return min(rows, 61) if level == "avx512-bf16" and cpu_kernels.in_software(level) else rows


@sweep(("element", "dtype"), ELEMENTS)
@sweep(("rows", "columns", "depth"), SHAPES)
def test_products_are_as_accurate_as_torch(
    level: str, rows: int, columns: int, depth: int, element: str, dtype: torch.dtype, seed: int
) -> None:
    x, weight, bias = operands(seed, fewer(rows, level), columns, depth, dtype)
    counted = cpu_kernels.in_software(level) and element == "bf16" and x.numel() * weight.numel() > 0
    executed = emulator.executed() if counted else 0
    actual = matmul(x, prepack(weight, element), bias)
    if counted:
        assert emulator.executed() > executed, "the kernel's own instructions never ran"
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert_as_accurate(actual, F.linear(x, weight, bias), exact)


@sweep(("element", "dtype"), ELEMENTS)
@sweep("activation", [None, "gelu", "gelu_tanh"])
@sweep("with_residual", [False, True])
@sweep("with_norm", [False, True])
def test_what_follows_the_sums(
    level: str,
    element: str,
    dtype: torch.dtype,
    activation: str | None,
    with_residual: bool,
    with_norm: bool,
    seed: int,
) -> None:
    rows, columns, depth = 37, 77, 100
    x, weight, bias = operands(seed, rows, columns, depth, dtype)
    residual, scale, shift = drawn(seed + 3, rows, columns, dtype=dtype), drawn(seed + 4, columns), drawn(seed, columns)

    def eager(kind: torch.dtype) -> Tensor:
        y = F.linear(x.to(kind), weight.to(kind), bias.to(kind))
        if activation is not None:
            y = F.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")
        if with_residual:
            y = y + residual.to(kind)
        return F.layer_norm(y, (columns,), scale.to(kind), shift.to(kind), 1e-12) if with_norm else y

    actual = matmul(
        x,
        prepack(weight, element),
        bias,
        activation,
        residual if with_residual else None,
        (scale, shift, 1e-12) if with_norm else None,
    )
    assert_as_accurate(actual, eager(dtype), eager(torch.float64))


@sweep("mixed", list(itertools.product([BF16, FP32], repeat=3)), ids=str)
def test_dtypes_mix(level: str, mixed: tuple[torch.dtype, ...], seed: int) -> None:
    """x, residual and result in any dtypes, for both elements: what x is rounded to is the element's affair."""
    of_x, of_residual, of_out = mixed
    x, weight, bias = operands(seed, 31, 45, 70, FP32)
    x, residual = x.to(of_x), drawn(seed + 3, 31, 45, dtype=of_residual)
    for element, inner in (("bf16", BF16), ("fp32", FP32)):
        operand, factor = x.to(inner), weight.to(inner)
        exact = F.linear(operand.double(), factor.double(), bias.double()) + residual.double()
        eager = (F.linear(operand.float(), factor.float(), bias) + residual.float()).to(of_out)
        actual = matmul(x, prepack(weight, element), bias, None, residual, None, of_out)
        assert_as_accurate(actual, eager, exact, element)


def test_norm_without_bias(level: str, seed: int) -> None:
    x, weight, _ = operands(seed, 9, 50, 20, FP32)
    scale = drawn(seed, 50)
    actual = matmul(x, prepack(weight, "fp32"), norm=(scale, None, 1e-5))
    eager = F.layer_norm(F.linear(x, weight), (50,), scale, None, 1e-5)
    exact = F.layer_norm(F.linear(x.double(), weight.double()), (50,), scale.double(), None, 1e-5)
    assert_as_accurate(actual, eager, exact)


def test_gelu_of_every_bfloat16(level: str) -> None:
    """GELU of all 65,536 numbers times one, denormals among them, is at most one rounding from the exact one."""
    inputs = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(BF16).view(-1, 1)
    actual = matmul(inputs, prepack(torch.ones(1, 1), "fp32"), activation="gelu")
    # x Phi(x) below zero by erfc, which does not cancel.
    x = inputs.double()
    exact = x * torch.special.erfc(-x / 2**0.5) / 2
    exact[x == -torch.inf] = 0.0
    assert torch.equal(actual.isnan(), inputs.isnan())
    assert torch.equal(actual.isinf(), exact.to(BF16).isinf())

    def rank(values: Tensor) -> Tensor:
        raw = values.view(torch.int16).to(torch.int32)
        return torch.where(raw < 0, -(raw & 0x7FFF), raw)

    number = ~inputs.isnan()
    assert int((rank(actual[number]) - rank(exact.to(BF16)[number])).abs().max()) <= 1


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS)
def test_a_row_has_the_same_bits_in_every_batch(
    level: str, element: str, dtype: torch.dtype, seed: int, threads: None
) -> None:
    rows, columns, depth = fewer(613, level), 200, 130
    x, weight, bias = operands(seed, rows, columns, depth, dtype)
    packed, residual = prepack(weight, element), drawn(seed + 3, rows, columns, dtype=dtype)
    norm = (drawn(seed + 4, columns), drawn(seed + 5, columns), 1e-12)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    for after in (None, norm):
        whole = matmul(x, packed, bias, "gelu", residual, after)
        for count, blocking in itertools.product((1, 2), [(0, 0), (14, 32), (100, 96)]):
            torch.set_num_threads(count)
            again = matmul(x, packed, bias, "gelu", residual, after, blocking=blocking)
            assert same_bits(again, whole), (count, blocking)
            mixed = matmul(x[order], packed, bias, "gelu", residual[order], after, blocking=blocking)
            assert same_bits(mixed, whole[order]), (count, blocking)
            for begin, end in ((0, 1), (rows - 1, rows), (5, 22), (1, 50), (rows // 6, rows // 2)):
                rows_alone = matmul(x[begin:end], packed, bias, "gelu", residual[begin:end], after, blocking=blocking)
                assert same_bits(rows_alone, whole[begin:end]), (count, blocking, begin, end)


def test_more_threads_than_cores(level: str, seed: int, threads: None) -> None:
    """Threads share rows and columns in every way that a grid of seven allows, and take many rows as they come."""
    x, weight, bias = operands(seed, 1700, 330, 64, FP32)
    packed, norm = prepack(weight, "fp32"), (drawn(seed, 330), None, 1e-5)
    torch.set_num_threads(1)
    expected = {rows: matmul(x[:rows], packed, bias, norm=norm) for rows in (3, 60, 150, 330, 1700)}
    for count, (rows, result) in itertools.product((3, 5, 7), expected.items()):
        torch.set_num_threads(count)
        for _ in range(3):
            assert same_bits(matmul(x[:rows], packed, bias, norm=norm, blocking=(28, 0)), result), (count, rows)


def test_rows_that_lie_apart(level: str, seed: int) -> None:
    x, weight, bias = operands(seed, 50, 45, 33, BF16)
    packed, residual = prepack(weight, "bf16"), drawn(seed + 3, 50, 45, dtype=BF16)
    wide_x, wide_residual = torch.full((50, 80), torch.nan, dtype=BF16), torch.full((50, 91), torch.nan, dtype=BF16)
    wide_x[:, 3:36], wide_residual[:, 7:52] = x, residual
    out = torch.full((50, 64), torch.nan, dtype=BF16)
    result = matmul(wide_x[:, 3:36], packed, bias, None, wide_residual[:, 7:52], out=out[:, 5:50])
    assert same_bits(result, matmul(x, packed, bias, None, residual))
    assert out[:, :5].isnan().all()
    assert out[:, 50:].isnan().all()
    strided = torch.full((45, 60), torch.nan, dtype=BF16)
    strided[:, :33] = weight
    assert same_bits(matmul(x, prepack(strided[:, :33], "bf16"), bias, None, residual), result)
    # In place of the residual.
    assert same_bits(matmul(x, packed, bias, None, residual, out=residual), result)


@pytest.mark.parametrize(("element", "dtype"), ELEMENTS)
def test_nan_stays_where_it_is(level: str, element: str, dtype: torch.dtype, seed: int) -> None:
    x, weight, bias = operands(seed, 40, 70, 50, dtype)
    clean = matmul(x, prepack(weight, element), bias, "gelu")
    x[17, 3], weight[69, 49] = torch.nan, torch.inf
    spoilt = matmul(x, prepack(weight, element), bias, "gelu")
    assert spoilt[17].isnan().all()
    rows = torch.arange(40) != 17
    assert same_bits(spoilt[rows][:, :69], clean[rows][:, :69])
    assert not spoilt[rows][:, 69].isfinite().logical_and(spoilt[rows][:, 69] != 0).any()


def test_integers_of_a_weight() -> None:
    weight = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3.0, torch.nan, 1.0], [1.0, -torch.inf, 1.0]])
    scales = torch.tensor(prepack(weight, "int8").scales)
    assert scales[0] == torch.tensor(2.0) / 127
    assert scales[1] == 0
    assert scales[2:].isnan().all()


@sweep("behind", [True, False], ids=["page-behind", "page-before"])
@sweep(("element", "dtype"), ELEMENTS)
@sweep(("rows", "columns", "depth"), [(1, 1, 1), (15, 31, 33), (30, 50, 100), (29, 96, 127)])
def test_nothing_beyond_the_ends_is_touched(
    level: str, element: str, dtype: torch.dtype, rows: int, columns: int, depth: int, behind: bool, seed: int
) -> None:
    values = [*operands(seed, rows, columns, depth, dtype), drawn(seed + 3, rows, columns, dtype=dtype)]
    values[2] = values[2].float()
    norm = [drawn(seed + 4, columns), drawn(seed + 5, columns)]
    fenced = [Fenced(tensor, behind) for tensor in (*values, *norm, values[3])]
    x, weight, bias, residual, scale, shift, out = (fence.tensor for fence in fenced)
    for after in (None, (scale, shift, 1e-5)):
        actual = matmul(x, prepack(weight, element), bias, "gelu", residual, after, out=out)
        plain = None if after is None else (*norm, 1e-5)
        assert same_bits(actual, matmul(values[0], prepack(values[1], element), values[2], "gelu", values[3], plain))
    # The other dtype is converted row by row.
    other = FP32 if dtype == BF16 else BF16
    cast = Fenced(values[0].to(other), behind)
    assert matmul(cast.tensor, prepack(weight, element), bias).isfinite().all()


def test_wrong_arguments_are_refused_by_name(seed: int) -> None:
    x, weight, bias = operands(seed, 6, 8, 10, BF16)
    packed = prepack(weight, "bf16")
    with pytest.raises(UserError, match="element='fp16'"):
        prepack(weight, "fp16")
    with pytest.raises(UserError, match=r"weight has dtype torch\.float16"):
        prepack(weight.half(), "bf16")
    with pytest.raises(UserError, match=r"weight has shape \(80,\)"):
        prepack(weight.flatten(), "bf16")
    with pytest.raises(UserError, match="weight has strides"):
        prepack(weight.T, "bf16")
    with pytest.raises(UserError, match="weight is on meta"):
        prepack(weight.to("meta"), "bf16")
    with pytest.raises(UserError, match=r"x has shape \(6, 9\): it must be \(6, 10\)"):
        matmul(x[:, :9], packed)
    with pytest.raises(UserError, match="x has strides"):
        matmul(x.T.contiguous().T, packed)
    with pytest.raises(UserError, match="x has strides"):
        matmul(x[:1].expand(6, 10), packed)
    with pytest.raises(UserError, match=r"x has dtype torch\.int8"):
        matmul(x.to(torch.int8), packed)
    with pytest.raises(UserError, match=r"bias is torch\.bfloat16"):
        matmul(x, packed, bias[:7])
    with pytest.raises(UserError, match="activation='relu'"):
        matmul(x, packed, bias, "relu")
    with pytest.raises(UserError, match="residual has shape"):
        matmul(x, packed, residual=x)
    with pytest.raises(UserError, match="norm's weight is"):
        matmul(x, packed, norm=(torch.ones(9), None, 1e-5))
    with pytest.raises(UserError, match=r"out_dtype=torch\.float16"):
        matmul(x, packed, out_dtype=torch.float16)
    with pytest.raises(UserError, match="out has dtype"):
        matmul(x, packed, out_dtype=FP32, out=torch.empty(6, 8, dtype=BF16))
    memory = torch.zeros(6, 20, dtype=BF16)
    with pytest.raises(UserError, match="out overlaps x"):
        matmul(memory[:, :10], packed, out=memory[:, 4:12])
    with pytest.raises(UserError, match="out overlaps residual"):
        matmul(x, packed, residual=memory[:, :8], out=memory[:, 4:12])
    with pytest.raises(UserError, match="blocking"):
        matmul(x, packed, blocking=(-1, 0))
    with pytest.raises(ValueError, match="null pointer"):
        _C.matmul((0, "bf16", 10), 6, packed, (memory.data_ptr(), "bf16", 20))
    with pytest.raises(ValueError, match="larger than the memory"):
        _C.matmul((x.data_ptr(), "bf16", 2**62), 6, packed, (memory.data_ptr(), "bf16", 20))
