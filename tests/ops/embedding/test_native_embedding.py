"""The C++ embedding kernel of CPUs at every dispatch level, against float64 and eager torch."""

from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import DTYPES, LEVELS, NAMES, Draw, apart, check, wide
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.errors import UserError


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has, without gradients."""
    with cpu_kernels.running(request.param), torch.no_grad():
        yield request.param


def embed(ids: list[Tensor], tables: list[Tensor], weight: Tensor, bias: Tensor, backend: str = "native") -> Tensor:
    with use_backend(backend):  # type: ignore[arg-type]
        return ops.embedding_layer_norm(ids, tables, weight, bias)


@sweep("dtype", DTYPES)
@sweep("count", [1, 2, 3, 5])
@sweep(("tokens", "width"), [(0, 8), (1, 1), (300, 33), (40, 1023), (4097, 16)])
def test_embeddings_are_as_accurate_as_torch(
    dtype: torch.dtype, count: int, tokens: int, width: int, seed: int
) -> None:
    draw = Draw(seed)
    # The first table is larger than what is taken to be near anyway.
    sizes = [max(2, 2**19 // width), 512, 2, 7, 1][:count]
    tables = [draw.normal(rows, width, dtype=dtype) for rows in sizes]
    ids = [draw.ids(rows, tokens).to(torch.int32 if i % 2 else torch.int64) for i, rows in enumerate(sizes)]
    weight, bias = draw.normal(width), draw.normal(width)
    exact = embed(ids, wide(tables), weight.double(), bias.double(), "eager")
    check(embed(ids, tables, weight, bias), embed(ids, tables, weight, bias, "eager"), exact, "embedding_layer_norm")


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_of_ids_and_tables_of_any_stride(dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    tables = [draw.normal(50, 33, dtype=dtype), draw.normal(20, 33, dtype=dtype)]
    ids, weight, bias = [draw.ids(50, 90), draw.ids(20, 90)], draw.normal(33), draw.normal(33)
    expected = embed(ids, tables, weight, bias)
    strided = [torch.stack([table_ids, table_ids + 10**6], 1)[:, 0] for table_ids in ids]
    assert torch.equal(embed(strided, [apart(table) for table in tables], weight, bias), expected)
    one = [ids[0][:1].expand(90), ids[1]]
    assert torch.equal(embed(one, tables, weight, bias), embed([one[0].contiguous(), ids[1]], tables, weight, bias))


def test_embeddings_under_autocast_have_its_dtype(seed: int) -> None:
    draw = Draw(seed)
    ids, tables, vectors = [draw.ids(50, 90)], [draw.normal(50, 33)], (draw.normal(33), draw.normal(33))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = embed(ids, tables, *vectors)
    assert torch.equal(y, embed(ids, tables, *vectors).bfloat16())


@sweep("wrong", [-1, 20, 2**40, -(2**62)])
def test_ids_out_of_range_are_refused_by_name(wrong: int, seed: int) -> None:
    draw = Draw(seed)
    tables = [draw.normal(50, 8), draw.normal(20, 8), draw.normal(2, 8)]
    ids = [draw.ids(50, 30), draw.ids(20, 30), draw.ids(2, 30)]
    ids[1][17] = wrong
    with pytest.raises(UserError, match=rf"position id {wrong} at ids\[1\]\[17\] is not a row of tables\[1\]"):
        ops.embedding_layer_norm(ids, tables, torch.ones(8), torch.zeros(8))
    with pytest.raises(UserError, match=r"table 0's id .* which has 0 rows"):
        ops.embedding_layer_norm([ids[0]], [torch.empty(0, 8)], torch.ones(8), torch.zeros(8))


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", DTYPES)
def test_embeddings_touch_nothing_outside(behind: bool, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(seed)
    ids = [Fenced(torch.cat([draw.ids(rows, 30), torch.tensor([0, rows - 1])]), behind) for rows in (9000, 3)]
    tables = [Fenced(draw.normal(rows, 37, dtype=dtype), behind) for rows in (9000, 3)]
    weight, bias = Fenced(draw.normal(37), behind), Fenced(draw.normal(37), behind)
    y = Fenced(torch.zeros(32, 37, dtype=dtype), behind)
    parts = [(one.address, 1, True, table.address, 37, table.tensor.shape[0]) for one, table in zip(ids, tables)]
    vectors = (weight.address, bias.address, "fp32", 1e-12)
    assert _C.embedding_layer_norm(32, 37, NAMES[dtype], NAMES[dtype], parts, *vectors, None, y.address, 0, 0) is None
    plain = ([table_ids.tensor for table_ids in ids], [table.tensor for table in tables], weight.tensor, bias.tensor)
    assert torch.equal(y.tensor, embed(*plain))
