"""Gradients of weights on the CPU, a^T b over the tokens, and of biases, sums of a's columns: every level."""

from collections.abc import Iterator

import cpu_kernels
import emulator
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from matmuls import BF16, DTYPES, LEVELS, drawn, same_bits
from sweeps import sweep

from fastbert import _C
from fastbert.errors import UserError
from fastbert.ops.native.matmul import weight_gradient

SHAPES = [
    pytest.param(0, 40, 33, id="no-tokens"),
    pytest.param(1, 64, 32, id="one-token"),
    pytest.param(2, 1, 1, id="one-element"),
    pytest.param(31, 17, 3, id="odd-tokens"),
    pytest.param(33, 3, 17, id="just-above"),
    pytest.param(65, 15, 49, id="tokens-of-two-parts"),
    pytest.param(127, 0, 5, id="no-rows"),
    pytest.param(127, 5, 0, id="no-columns"),
    pytest.param(129, 33, 100, id="odd-widths"),
    pytest.param(1025, 70, 1, id="one-column"),
    pytest.param(4097, 3, 17, id="4097-tokens"),
    pytest.param(200, 768, 2, id="base-width"),
    pytest.param(70, 2, 801, id="two-parts-of-b"),
]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


@sweep("dtype", DTYPES)
@sweep(("tokens", "rows", "columns"), SHAPES)
def test_is_as_accurate_as_torch(
    level: str, tokens: int, rows: int, columns: int, dtype: torch.dtype, seed: int
) -> None:
    a, b = drawn(seed, tokens, rows, dtype=dtype), drawn(seed + 1, tokens, columns, dtype=dtype)
    counted = cpu_kernels.in_software(level) and dtype == BF16 and tokens * rows * columns > 0
    executed = emulator.executed() if counted else 0
    gradient, sums = weight_gradient(a, b, sums=True)
    if counted:
        assert emulator.executed() > executed, "the kernel's own instructions never ran"
    # Sums of fp32, of bf16 too: eager torch may sum the same numbers in fp32.
    exact = a.double().T @ b.double()
    assert_as_accurate(gradient, a.float().T @ b.float(), exact, "gradient")
    assert sums is not None
    assert_as_accurate(sums, a.float().sum(0), a.double().sum(0), "sums")
    again, none = weight_gradient(a, b)
    assert none is None
    assert same_bits(again, gradient)


@pytest.mark.parametrize("dtype", DTYPES)
def test_integers_are_summed_exactly(level: str, dtype: torch.dtype, seed: int) -> None:
    """Small integers have one right answer: every token, row and column is in its place."""
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-9, 10, (201, n), generator=generator).to(dtype) for n in (77, 130))
    gradient, sums = weight_gradient(a, b, sums=True)
    assert torch.equal(gradient, a.float().T @ b.float())
    assert sums is not None
    assert torch.equal(sums, a.float().sum(0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_ranges_and_sums_of_two(level: str, dtype: torch.dtype, seed: int) -> None:
    """Operands that are columns of wider tensors, a result that is rows of a larger one, and a second batch on top."""
    wide_a, wide_b = (torch.full((90, 80), torch.nan, dtype=dtype) for _ in range(2))
    a, b = wide_a[:, 3:40], wide_b[:, 7:52]
    a.copy_(drawn(seed, 90, 37))
    b.copy_(drawn(seed + 1, 90, 45))
    plain, sums = weight_gradient(a.contiguous(), b.contiguous(), sums=True)
    memory = torch.full((60, 50), torch.nan)
    gradient, again = weight_gradient(a, b, sums=True, out=memory[11:48, 2:47])
    assert gradient.data_ptr() == memory[11:48, 2:47].data_ptr()
    assert same_bits(gradient, plain)
    assert same_bits(again, sums)
    outside = torch.ones_like(memory, dtype=torch.bool)
    outside[11:48, 2:47] = False
    assert memory[outside].isnan().all()
    weight_gradient(a[:51], b[:51], out=memory[11:48, 2:47])
    _, rest = weight_gradient(a[51:], b[51:], sums=True, out=memory[11:48, 2:47], accumulate=True)
    exact = a.double().T @ b.double()
    assert_as_accurate(gradient, (a[:51].float().T @ b[:51].float()) + (a[51:].float().T @ b[51:].float()), exact)
    # The sums are of this call's tokens alone.
    assert rest is not None
    assert_as_accurate(rest, a[51:].float().sum(0), a[51:].double().sum(0))
    before = memory.clone()
    _, none = weight_gradient(a[:0], b[:0], sums=True, out=memory[11:48, 2:47], accumulate=True)
    assert same_bits(memory, before)
    assert none is not None
    assert not none.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_do_not_depend_on_threads(level: str, dtype: torch.dtype, seed: int, threads: None) -> None:
    tokens = 300 if cpu_kernels.in_software(level) and dtype == BF16 else 2100
    shapes = ((70, 70), (1, 600), (600, 1))
    for rows, columns in shapes:
        a, b = drawn(seed, tokens, rows, dtype=dtype), drawn(seed + 1, tokens, columns, dtype=dtype)
        torch.set_num_threads(1)
        expected, total = weight_gradient(a, b, sums=True)
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            gradient, sums = weight_gradient(a, b, sums=True)
            assert same_bits(gradient, expected), (rows, columns, count)
            assert same_bits(sums, total), (rows, columns, count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_where_it_is(level: str, dtype: torch.dtype, seed: int) -> None:
    """Nor does what another matmul left in the cached memory come through the padding of an odd number of tokens."""
    a, b = drawn(seed, 65, 40, dtype=dtype), drawn(seed + 1, 65, 50, dtype=dtype)
    clean, sums = weight_gradient(a, b, sums=True)
    nan = torch.full((128, 64), torch.nan, dtype=dtype)
    assert weight_gradient(nan, nan)[0].isnan().all()
    again, total = weight_gradient(a, b, sums=True)
    assert same_bits(again, clean)
    assert same_bits(total, sums)
    a[64, 7], b[3, 49] = torch.nan, torch.inf
    spoilt, total = weight_gradient(a, b, sums=True)
    assert spoilt[7].isnan().all()
    assert not spoilt[:, 49].isfinite().any()
    rows = torch.arange(40) != 7
    assert same_bits(spoilt[rows][:, :49], clean[rows][:, :49])
    assert total is not None
    assert total.isnan().nonzero().tolist() == [[7]]


@sweep("behind", [True, False], ids=["page-behind", "page-before"])
@sweep("dtype", DTYPES)
@sweep(("tokens", "rows", "columns"), [(1, 1, 1), (31, 15, 33), (64, 32, 32), (67, 30, 49)])
def test_nothing_beyond_the_ends_is_touched(
    level: str, tokens: int, rows: int, columns: int, dtype: torch.dtype, behind: bool, seed: int
) -> None:
    a, b = drawn(seed, tokens, rows, dtype=dtype), drawn(seed + 1, tokens, columns, dtype=dtype)
    fenced = [Fenced(tensor, behind) for tensor in (a, b, torch.full((rows, columns), torch.nan))]
    weight_gradient(fenced[0].tensor, fenced[1].tensor, sums=True, out=fenced[2].tensor)
    assert same_bits(fenced[2].tensor, weight_gradient(a, b)[0])
    weight_gradient(fenced[0].tensor, fenced[1].tensor, out=fenced[2].tensor, accumulate=True)
    assert same_bits(fenced[2].tensor, weight_gradient(a, b)[0] * 2)


def test_wrong_arguments_are_refused_by_name(seed: int) -> None:
    a, b = drawn(seed, 6, 8), drawn(seed, 6, 10)
    with pytest.raises(UserError, match=r"a has shape \(48,\): it must be \(tokens, out\)"):
        weight_gradient(a.flatten(), b)
    with pytest.raises(UserError, match=r"b has shape \(5, 10\): it must be \(6, in\)"):
        weight_gradient(a, b[:5])
    with pytest.raises(UserError, match=r"b has dtype torch\.bfloat16, a torch\.float32"):
        weight_gradient(a, b.bfloat16())
    with pytest.raises(UserError, match=r"a has dtype torch\.float16"):
        weight_gradient(a.half(), b)
    with pytest.raises(UserError, match="b has strides"):
        weight_gradient(a, drawn(seed, 10, 6).T)
    with pytest.raises(UserError, match="accumulate adds to out"):
        weight_gradient(a, b, accumulate=True)
    with pytest.raises(UserError, match=r"out has dtype torch\.bfloat16: it must be torch\.float32"):
        weight_gradient(a, b, out=torch.zeros(8, 10, dtype=BF16))
    with pytest.raises(UserError, match=r"out has shape \(10, 8\): it must be \(8, 10\)"):
        weight_gradient(a, b, out=torch.zeros(10, 8))
    with pytest.raises(UserError, match="out has strides"):
        weight_gradient(a, b, out=torch.zeros(10, 8).T)
    memory = torch.zeros(8, 20)
    with pytest.raises(UserError, match="out overlaps a"):
        weight_gradient(memory[:6, :8], b, out=memory[:, 4:14])
    with pytest.raises(UserError, match="out overlaps b"):
        weight_gradient(a, memory[:6, :10], out=memory[:, 4:14])
    with pytest.raises(UserError, match="a is on meta"):
        weight_gradient(a.to("meta"), b)
    operand, out = (a.data_ptr(), "fp32", 8), (memory.data_ptr(), "fp32", 20)
    with pytest.raises(ValueError, match="a and b must have one dtype"):
        _C.weight_gradient(operand, (b.data_ptr(), "bf16", 10), 6, 8, 10, out, 0, False)
    with pytest.raises(ValueError, match="b is a null pointer"):
        _C.weight_gradient(operand, (0, "fp32", 10), 6, 8, 10, out, 0, False)
    with pytest.raises(ValueError, match="out must be fp32"):
        _C.weight_gradient(operand, (b.data_ptr(), "fp32", 10), 6, 8, 10, (memory.data_ptr(), "bf16", 20), 0, False)
