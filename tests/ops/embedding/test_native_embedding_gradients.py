"""Gradients of the C++ embedding kernels of CPUs at every dispatch level, against float64 and eager torch."""

from collections.abc import Iterator
from typing import Any

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import DTYPES, LEVELS, NAMES, Draw, apart, check, wide
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.ops.dropout.arguments import TokenDropout
from fastbert.ops.embedding.native import Native


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has."""
    with cpu_kernels.running(request.param):
        yield request.param


def dropping(tokens: int, seed: int) -> TokenDropout:
    key = torch.randint(-(2**63), 2**63 - 1, (tokens // 9 + 1,), generator=torch.Generator().manual_seed(seed))
    token = torch.arange(tokens)
    return TokenDropout(0.2, key, (token // 9).int(), token % 9, 3)


def run(
    ids: list[Tensor],
    tables: list[Tensor],
    grad: Tensor,
    dropout: TokenDropout | None = None,
    backend: str | None = "native",
) -> list[Tensor]:
    """The result and the gradients of the tables, of weight and of bias: `given`."""
    leaves = [x.detach().requires_grad_() for x in tables]
    with use_backend(backend):  # type: ignore[arg-type]
        y = ops.embedding_layer_norm(ids, leaves[:-2], *leaves[-2:], token_dropout=dropout)
        return [y.detach(), *torch.autograd.grad(y, leaves, grad.to(y.dtype))]


def inputs(
    sizes: list[int], tokens: int, width: int, dtype: torch.dtype, seed: int
) -> tuple[list[Any], list[Any], Any]:
    """Ids of both dtypes, tables with weight and bias, and a gradient."""
    draw = Draw(seed)
    ids = [draw.ids(rows, tokens).to(torch.int32 if i % 2 else torch.int64) for i, rows in enumerate(sizes)]
    tables = [*(draw.normal(rows, width, dtype=dtype) for rows in sizes), draw.normal(width), draw.normal(width)]
    return ids, tables, draw.normal(tokens, width, dtype=dtype)


@sweep("dtype", DTYPES)
@sweep("dropped", [False, True], ids=["", "dropout"])
@sweep(
    ("sizes", "tokens", "width"),
    [
        pytest.param([7], 0, 8, id="no-token"),
        pytest.param([30, 5], 1, 33, id="one-token"),
        pytest.param([500, 64, 2], 400, 33, id="three-tables"),
        pytest.param([90, 3, 1, 2, 40], 65, 1023, id="five-tables"),
        pytest.param([3000, 128, 2], 4097, 16, id="4097-tokens"),
    ],
)
def test_gradients_are_as_accurate_as_torchs(
    dtype: torch.dtype, dropped: bool, sizes: list[int], tokens: int, width: int, seed: int
) -> None:
    ids, tables, grad = inputs(sizes, tokens, width, dtype, seed)
    dropout = dropping(tokens, seed) if dropped else None
    actual, eager = run(ids, tables, grad, dropout), run(ids, tables, grad, dropout, "eager")
    exact = run(ids, wide(tables), grad.double(), dropout, "eager")
    for i, (a, b, c) in enumerate(zip(actual, eager, exact, strict=True)):
        check(a, b, c, f"result or gradient {i}")


def test_gradients_under_autocast(seed: int) -> None:
    ids, tables, grad = inputs([50, 20], 90, 33, torch.float32, seed)
    grad = grad.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, *gradients = run(ids, tables, grad, dropping(90, seed))
    assert y.dtype == torch.bfloat16
    for one, plain in zip(gradients, run(ids, tables, grad, dropping(90, seed))[1:], strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, plain)


def test_ids_gradients_and_tables_of_any_stride(seed: int) -> None:
    ids, operands, grad = inputs([50, 20], 90, 33, torch.bfloat16, seed)
    expected = run(ids, operands, grad)
    strided = [torch.stack([table_ids, table_ids + 10**6], 1)[:, 0] for table_ids in ids]
    tables = [apart(table) for table in operands[:2]]
    for one, other in zip(run(strided, [*tables, *operands[2:]], apart(grad)), expected, strict=True):
        assert torch.equal(one, other)
    one_row = grad[:1].expand(90, 33)
    for one, other in zip(run(ids, operands, one_row), run(ids, operands, one_row.contiguous()), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_on_every_run_and_any_threads(dtype: torch.dtype, seed: int) -> None:
    ids, tables, grad = inputs([3000, 128, 2], 1500, 131, dtype, seed)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, again = run(ids, tables, grad), run(ids, tables, grad)
        torch.set_num_threads(1)
        alone = run(ids, tables, grad)
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


@pytest.mark.parametrize("threads", [1, 2])
def test_all_tokens_of_one_row_and_rows_without_any(threads: int, seed: int) -> None:
    """Blocks of tokens, and tables in which all work is one thread's."""
    draw, before = Draw(seed), torch.get_num_threads()
    # Large enough for zeros that pass by the caches, and rows that no vector fills.
    table, weight, bias, grad = draw.normal(40_000, 53), draw.normal(53), draw.normal(53), draw.normal(1000, 53)
    try:
        torch.set_num_threads(threads)
        for row in (0, 17, 39_999):
            ids = torch.full((1000,), row)
            dtable = run([ids], [table, weight, bias], grad)[1]
            assert int(dtable.any(1).sum()) == 1
            exact = run([ids], [table.double(), weight.double(), bias.double()], grad.double(), None, "eager")[1]
            torch.testing.assert_close(dtable[row].double(), exact[row], rtol=1e-4, atol=1e-4)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("frozen", [(0,), (1, 2), (0, 1, 2)])
def test_frozen_tables_get_no_gradient_and_others_the_same(
    frozen: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    ids, tables, grad = inputs([50, 20, 2], 90, 33, torch.float32, seed)
    expected, leaves = run(ids, tables, grad)[1:], [x.detach().requires_grad_() for x in tables]
    for i in frozen:
        leaves[i].requires_grad_(False)
    made: list[int] = []

    def counted(*arguments: Any) -> None:
        made.append(arguments[-2])
        original(*arguments)

    original = _C.embedding_backward
    monkeypatch.setattr(_C, "embedding_backward", counted)
    with use_backend("native"):
        ops.embedding_layer_norm(ids, leaves[:-2], *leaves[-2:]).backward(grad)
    assert made == [len(table) for i, table in enumerate(tables[:3]) if i not in frozen]
    for i, (leaf, gradient) in enumerate(zip(leaves, expected, strict=True)):
        assert leaf.grad is None if i in frozen else torch.equal(leaf.grad, gradient)


def test_is_chosen_where_a_gradient_is_wanted(seed: int) -> None:
    ids, tables, grad = inputs([50, 20], 90, 33, torch.float32, seed)
    drops = dropping(90, seed)
    for chosen, native in zip(run(ids, tables, grad, drops, None), run(ids, tables, grad, drops), strict=True):
        assert torch.equal(chosen, native)


def test_the_operators_keep_their_promises(level: str, seed: int) -> None:
    if level != "portable":
        pytest.skip("what is asked is of Python, so one level is enough")
    ids, tables, grad = inputs([50, 20], 30, 33, torch.float32, seed)
    drops = dropping(30, seed)
    parts = (drops.p, drops.key, drops.sequence_ids, drops.offsets, drops.site)
    leaves = [x.requires_grad_() for x in tables]
    arguments = (ids, leaves[:2], *leaves[2:], 1e-5, torch.float32)
    mean, rstd = Draw(seed).normal(30), Draw(seed).normal(30)
    bare = [x.detach() for x in leaves]
    for draws in (parts, (0.0, None, None, None, 0)):
        torch.library.opcheck(torch.ops.fastbert.embedding_layer_norm.default, (*arguments, *draws, "native"))
        backward = (grad, ids, bare[:2], mean, rstd, bare[2], *draws, [True, False], "native")
        torch.library.opcheck(torch.ops.fastbert.embedding_layer_norm_backward.default, backward)


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", DTYPES)
@sweep("width", [1, 37])
def test_gradients_touch_nothing_outside(behind: bool, dtype: torch.dtype, width: int, seed: int) -> None:
    draw, tokens = Draw(seed), 150
    sizes = (9000, 3)
    ids = [Fenced(torch.cat([draw.ids(rows, tokens - 2), torch.tensor([0, rows - 1])]), behind) for rows in sizes]
    tables = [Fenced(draw.normal(rows, width, dtype=dtype), behind) for rows in sizes]
    gradients = [Fenced(draw.normal(rows, width, dtype=dtype), behind) for rows in sizes]
    grad, weight = Fenced(draw.normal(tokens, width, dtype=dtype), behind), Fenced(draw.normal(width), behind)
    mean, rstd, dsum = (Fenced(draw.normal(*shape), behind) for shape in ((tokens,), (tokens,), (tokens, width)))
    sums = Fenced(draw.normal(2, width), behind)
    parts = [(one.address, 1, True, table.address, width, table.tensor.shape[0]) for one, table in zip(ids, tables)]
    _C.embedding_layer_norm_backward(
        tokens, width, NAMES[dtype], NAMES[dtype], parts, grad.address, width, mean.address, rstd.address,
        weight.address, "fp32", None, dsum.address, sums.address,
    )  # fmt: skip
    for one, gradient, rows in zip(ids, gradients, sizes):
        _C.embedding_backward(
            tokens, width, NAMES[dtype], dsum.address, one.address, 1, True, rows, gradient.address
        )  # fmt: skip
    plain = [[fence.tensor for fence in fenced] for fenced in (ids, tables)]
    expected = Native().backward(grad.tensor, *plain, mean.tensor, rstd.tensor, weight.tensor, None, [True] * 2)
    assert all(torch.equal(one.tensor, two) for one, two in zip(gradients, expected))
    assert torch.equal(sums.tensor, torch.stack(expected[2:]))


def test_ids_outside_of_the_table_add_nothing(seed: int) -> None:
    """Another thread may have changed them since forward looked."""
    draw = Draw(seed)
    dsum, ids, gradient = draw.normal(6, 4), torch.tensor([0, -1, 2, 3, 2**40, 2]), torch.full((3, 4), torch.nan)
    _C.embedding_backward(6, 4, "fp32", dsum.data_ptr(), ids.data_ptr(), 1, True, 3, gradient.data_ptr())
    assert torch.equal(gradient, torch.stack([dsum[0], torch.zeros(4), dsum[2] + dsum[5]]))
