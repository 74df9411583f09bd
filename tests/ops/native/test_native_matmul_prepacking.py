"""Prepacked weights: every byte of the layout, transposed or not, and rows that are repacked."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from sweeps import sweep
from torch import Tensor

from fastbert import _C
from fastbert.benchmarks.harness import process_memory
from fastbert.errors import UserError
from fastbert.ops.native.matmul import matmul, prepack, repack

BF16, FP32 = torch.bfloat16, torch.float32
LEVELS = ("portable", "avx2", "avx512")
ELEMENTS = {"bf16": BF16, "fp32": FP32}
SHAPES = [
    pytest.param(0, 5, id="no-rows"),
    pytest.param(3, 0, id="no-columns"),
    pytest.param(1, 1, id="one-element"),
    pytest.param(2, 70, id="two-outputs"),
    pytest.param(17, 33, id="odd"),
    pytest.param(64, 128, id="whole-panels"),
    pytest.param(99, 127, id="just-below"),
    pytest.param(129, 1023, id="odd-width"),
]
DTYPES = [pytest.param(BF16, id="of-bf16"), pytest.param(FP32, id="of-fp32")]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def drawn(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return (values * 10.0 ** torch.randint(-42, 38, shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def laid_out(weight: Tensor, element: str) -> bytes:
    """The bytes of [columns / 16][depth / group][16][group], filled up with zeros."""
    group = 2 if element == "bf16" else 1
    columns, depth = weight.shape
    padded = torch.zeros(-(-columns // 32) * 32, -(-depth // (16 * group)) * 16 * group, dtype=ELEMENTS[element])
    padded[:columns, :depth] = weight
    # The sign and the bits of a NaN are the converter's choice.
    padded[padded.isnan()] = torch.nan
    if padded.numel() == 0:
        return b""
    panels = padded.view(-1, 16, padded.shape[1] // group, group).permute(0, 2, 1, 3).contiguous()
    return panels.flatten().view(torch.uint8).numpy().tobytes()


@sweep("dtype", DTYPES)
@sweep("element", ELEMENTS)
@sweep(("rows", "width"), SHAPES)
def test_every_byte_of_a_copy(level: str, rows: int, width: int, element: str, dtype: torch.dtype, seed: int) -> None:
    weight = drawn(seed, rows, width, dtype=dtype)
    if weight.numel():
        weight[-1, -1] = -torch.inf
        weight[rows // 2, width // 3] = torch.nan
    assert bytes(prepack(weight, element)) == laid_out(weight, element)
    transposed = prepack(weight, element, transposed=True)
    assert (transposed.columns, transposed.depth) == (width, rows)
    assert bytes(transposed) == laid_out(weight.T, element)
    strided = torch.full((rows, width + 9), 7.0, dtype=dtype)
    strided[:, 3 : width + 3] = weight
    assert bytes(prepack(strided[:, 3 : width + 3], element)) == laid_out(weight, element)
    assert bytes(prepack(strided[:, 3 : width + 3], element, transposed=True)) == laid_out(weight.T, element)


@sweep("dtype", DTYPES)
@sweep("transposed", [False, True], ids=["forward", "transposed"])
@sweep("element", ELEMENTS)
@sweep("counts", [(1,), (64, 32), (5, 1, 40), (33, 15, 16, 7)], ids=str)
def test_rows_written_anew_have_the_bits_of_a_new_copy(
    level: str, counts: tuple[int, ...], element: str, transposed: bool, dtype: torch.dtype, seed: int
) -> None:
    """Joined weights, in ranges of any rows: nothing of the neighbours is lost, the padding stays zero."""
    width = 67
    weights = [drawn(seed + i, rows, width, dtype=dtype) for i, rows in enumerate(counts)]
    joined = torch.cat(weights)
    generator = torch.Generator().manual_seed(seed)
    # NaNs wherever a range forgets a place.
    packed = prepack(torch.full_like(joined, torch.nan), element, transposed)
    offset = 0
    for weight in weights:
        cuts = sorted(torch.randint(0, len(weight) + 1, (3,), generator=generator).tolist())
        ranges = list(zip([0, *cuts], [*cuts, len(weight)], strict=True))
        for i in torch.randperm(len(ranges), generator=generator).tolist():
            repack(packed, weight, *ranges[i], offset=offset, transposed=transposed)
        offset += len(weight)
    assert bytes(packed) == bytes(prepack(joined, element, transposed))
    assert bytes(packed) == laid_out(joined.T if transposed else joined, element)


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_transposed_copy_multiplies_from_the_other_side(level: str, element: str, seed: int) -> None:
    """Small integers have one right answer."""
    generator = torch.Generator().manual_seed(seed)
    grad, weight = (torch.randint(-9, 10, shape, generator=generator).float() for shape in ((21, 50), (50, 37)))
    assert torch.equal(matmul(grad, prepack(weight, element, transposed=True)), grad @ weight)


@sweep("behind", [True, False], ids=["page-behind", "page-before"])
@sweep("element", ELEMENTS)
@sweep("dtype", DTYPES)
@sweep(("rows", "width"), [(1, 1), (2, 17), (35, 47), (32, 64)])
def test_nothing_beyond_a_weight_is_read(
    level: str, rows: int, width: int, dtype: torch.dtype, element: str, behind: bool, seed: int
) -> None:
    weight = drawn(seed, rows, width, dtype=dtype)
    fenced = Fenced(weight, behind)
    for transposed in (False, True):
        packed = prepack(fenced.tensor, element, transposed)
        assert bytes(packed) == bytes(prepack(weight, element, transposed))
        repack(packed, fenced.tensor, rows // 2, rows, transposed=transposed)
        assert bytes(packed) == bytes(prepack(weight, element, transposed))


def test_wrong_arguments_are_refused_by_name(seed: int) -> None:
    weight = drawn(seed, 40, 20, dtype=FP32)
    packed, transposed = prepack(weight, "bf16"), prepack(weight, "bf16", transposed=True)
    with pytest.raises(UserError, match="element='int8' has no transposed copy"):
        prepack(weight, "int8", transposed=True)
    with pytest.raises(UserError, match="packed holds int8"):
        repack(prepack(weight, "int8"), weight, 0, 40)
    with pytest.raises(UserError, match=r"weight has shape \(40, 19\): it must be \(40, 20\)"):
        repack(packed, weight[:, :19], 0, 40)
    with pytest.raises(UserError, match=r"weight has shape \(40, 20\): it must be \(40, 40\)"):
        repack(transposed, weight, 0, 40)
    for first, last in ((-1, 4), (5, 4), (0, 41)):
        with pytest.raises(UserError, match=f"rows {first} to {last} are not in weight"):
            repack(packed, weight, first, last)
    for copy, flag in ((packed, False), (transposed, True)):
        with pytest.raises(UserError, match="offset=1 places rows up to 40 beyond the copy"):
            repack(copy, weight, 0, 40, offset=1, transposed=flag)
        with pytest.raises(UserError, match="offset=-1"):
            repack(copy, weight, 0, 40, offset=-1, transposed=flag)
    address = (weight.data_ptr(), "fp32", 20)
    with pytest.raises(ValueError, match="rows beyond the packed weight"):
        _C.repack(packed, False, 1, address, 0, 40)
    with pytest.raises(ValueError, match="rows beyond the packed weight"):
        _C.repack(packed, False, 2**64 - 1, address, 0, 40)
    with pytest.raises(ValueError, match="null pointer"):
        _C.repack(packed, False, 0, (0, "fp32", 20), 0, 40)
    with pytest.raises(ValueError, match="transposed weights"):
        _C.PrepackedWeight(address, 20, 40, "int8", True)


def test_memory_of_freed_copies_returns_to_the_system() -> None:
    """At once, although they share huge pages with copies that stay."""
    weight = torch.ones(1024, 1024)
    kept = [prepack(weight, "bf16")]
    before = process_memory.resident()
    if before is None:
        pytest.skip("the resident memory is not known here")
    copies = [prepack(weight, "bf16") for _ in range(32)]  # of 2 MiB each
    held = process_memory.resident()
    del copies
    after = process_memory.resident()
    assert held is not None
    assert after is not None
    assert held - before > 56 << 20
    assert after - before < 8 << 20
    assert kept[0].columns == 1024
