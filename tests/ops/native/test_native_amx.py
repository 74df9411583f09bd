"""bf16 matmuls in AMX's tiles, by the processor or emulated, against float64 and eager torch."""

from collections.abc import Iterator

import cpu_kernels
import emulator
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from sweeps import sweep
from torch import Tensor
from torch.nn import functional as F

from fastbert.ops.native.matmul import matmul, prepack

SHAPES = [
    pytest.param(0, 64, 32, id="no-row"),
    pytest.param(1, 1, 1, id="one-element"),
    pytest.param(1, 768, 96, id="one-row"),
    pytest.param(15, 31, 31, id="just-below"),
    pytest.param(16, 32, 32, id="exact"),
    pytest.param(17, 33, 33, id="just-above"),
    pytest.param(33, 64, 64, id="a-row-left"),
    pytest.param(70, 1023, 130, id="odd-widths"),
    pytest.param(4097, 5, 3, id="4097-rows"),
]


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    with cpu_kernels.running("amx"):
        yield


def problem(rows: int, depth: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias in bf16."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, depth), (columns, depth), (columns,))
    x, weight, bias = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return x, weight, bias


@sweep("activation", [None, "gelu"])
@sweep(("rows", "depth", "columns"), SHAPES)
def test_is_as_accurate_as_torch(rows: int, depth: int, columns: int, activation: str | None, seed: int) -> None:
    x, weight, bias = problem(rows, depth, columns, seed)
    counted = rows > 0 and cpu_kernels.in_software("amx")
    executed = emulator.executed() if counted else 0
    actual = matmul(x, prepack(weight, "bf16"), bias.float(), activation)
    if counted:
        assert emulator.executed() > executed, "no tile instruction ran"
    eager, exact = F.linear(x, weight, bias), F.linear(x.double(), weight.double(), bias.double())
    if activation:
        eager, exact = F.gelu(eager), F.gelu(exact)
    # Among few elements the errors of eager torch can all be small by luck: then two units of the last place are fine.
    floor = 2 * torch.finfo(torch.bfloat16).eps if exact.numel() < 2000 else 1e-5
    assert_as_accurate(actual, eager, exact, floor=floor)


def test_sums_are_of_fp32(seed: int) -> None:
    """Results in fp32 have no error of bf16."""
    x, weight, bias = problem(45, 700, 70, seed)
    actual = matmul(x, prepack(weight, "bf16"), bias.float(), out_dtype=torch.float32)
    eager = F.linear(x.float(), weight.float(), bias.float())
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert_as_accurate(actual, eager, exact, factor=4.0)


def test_integers_are_summed_exactly(seed: int) -> None:
    """Small integers have one right answer: every row, column and step of the depth is in its place."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = (torch.randint(-9, 10, (n, 200), generator=generator).bfloat16() for n in (71, 100))
    actual = matmul(x, prepack(weight, "bf16"), out_dtype=torch.float32)
    assert torch.equal(actual, x.float() @ weight.float().T)


def test_a_row_has_the_same_bits_in_any_batch_and_on_any_threads(seed: int) -> None:
    x, weight, bias = problem(75, 200, 130, seed)
    packed = prepack(weight, "bf16")
    whole = matmul(x, packed, bias.float(), "gelu")
    # Blocks of one tile of rows and of two, and every place in them.
    for first, last in ((0, 1), (7, 8), (3, 19), (20, 37), (20, 53), (1, 75)):
        assert torch.equal(matmul(x[first:last], packed, bias.float(), "gelu"), whole[first:last]), (first, last)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(matmul(x, packed, bias.float(), "gelu"), whole)
    finally:
        torch.set_num_threads(threads)


@sweep("depth", [1, 31, 32, 45])
@sweep("rows", [3, 19, 50])
def test_nothing_behind_an_argument_is_touched(rows: int, depth: int, seed: int) -> None:
    x, weight, bias = problem(rows, depth, 37, seed)
    packed = prepack(weight, "bf16")
    expected = matmul(x, packed, bias.float())
    fenced, out = Fenced(x), Fenced(torch.full((rows, 37), torch.nan, dtype=torch.bfloat16))
    matmul(fenced.tensor, packed, Fenced(bias.float()).tensor, out=out.tensor)
    assert torch.equal(out.tensor, expected)


def test_a_nan_stays_in_its_row(seed: int) -> None:
    x, weight, _ = problem(35, 70, 40, seed)
    finite = matmul(x, prepack(weight, "bf16"))
    x[20, 69] = torch.nan
    broken = matmul(x, prepack(weight, "bf16"))
    assert broken[20].isnan().all()
    others = torch.arange(35) != 20
    assert torch.equal(broken[others], finite[others])
