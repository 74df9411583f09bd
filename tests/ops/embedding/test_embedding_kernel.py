"""The Triton embeddings against float64 and eager torch: compiled on a GPU, or interpreted (TRITON_INTERPRET=1)."""

import contextlib
import math
from collections.abc import Iterator

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch as backends
from fastbert.ops.dropout.arguments import flatten
from fastbert.ops.dropout.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.configs.configuration import Config
from fastbert.kernels.configs.embedding import TABLES
from fastbert.kernels.embedding import layer_norm as kernels
from fastbert.kernels.embedding.gradient import table_gradients
from fastbert.kernels.tuning import tables as tuning

INTERPRETED = not torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"
SITE = 259
SHIPPED_CHUNK = TABLES["sm_90"]["sum_runs"]["ieee-64"].constants["CHUNK"]
CHUNK = 8  # under `small_chunks`

SHAPES = [
    pytest.param(1, (5, 3, 2), 96, id="one-token"),
    pytest.param(0, (5, 3, 2), 64, id="no-token"),
    pytest.param(13, (9, 12, 2), 768, id="base-width"),
    pytest.param(11, (5, 40, 1), 33, id="odd-width"),
    pytest.param(3, (4, 4, 4), 1, id="one-column"),
    pytest.param(SHIPPED_CHUNK + 3, (50,), 40, id="one-table"),
    pytest.param(9, (50, 7), 40, id="two-tables"),
    pytest.param(9, (11, 7, 3, 2), 40, id="four-tables"),
]
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]


@pytest.fixture
def small_chunks() -> Iterator[None]:
    """Chunks of 8 tokens, whose pieces are added two at a time: long runs without many tokens."""
    with contextlib.ExitStack() as stack:
        for shape in ("ieee-32", "ieee-64", "half-32"):
            config = Config(constants={"CHUNK": CHUNK, "BLOCK_N": 32}, num_warps=1)
            stack.enter_context(tuning.overridden("sum_runs", shape, config))
            config = Config(constants={"BLOCK_M": 2, "BLOCK_N": 32}, num_warps=1)
            stack.enter_context(tuning.overridden("join_runs", shape, config))
        yield


def random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def some_ids(tokens: int, rows: tuple[int, ...], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(count, (tokens,), generator=generator).to(DEVICE) for count in rows]


def some_dropout(tokens: int, seed: int, p: float = 0.2) -> ops.TokenDropout:
    key = torch.randint(-(2**63), 2**63 - 1, (2,), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    token = torch.arange(tokens, device=DEVICE)
    return ops.TokenDropout(p, key, (token > tokens // 3).long(), token % 7, SITE)


def some_tables(rows: tuple[int, ...], width: int, seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [random((count, width), seed + i).to(dtype) for i, count in enumerate(rows)]


def some_weights(width: int, seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [random((width,), seed + 8).to(dtype), random((width,), seed + 9).to(dtype)]


def run(backend: str, ids, tables, weights, gradient, dropout=None, eps: float = 1e-5) -> list[torch.Tensor]:
    """The result and the gradients of the tables, weight and bias."""
    leaves = [x.detach().requires_grad_() for x in (*tables, *weights)]
    with use_backend(backend):
        y = ops.embedding_layer_norm(ids, leaves[: len(tables)], *leaves[len(tables) :], eps, dropout)
        return [y, *torch.autograd.grad(y, leaves, gradient.to(y.dtype))]


def check(ids, tables, weights, seed: int, dropout=None) -> list[torch.Tensor]:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    gradient = random((len(ids[0]), tables[0].shape[1]), seed + 20).to(tables[0].dtype)
    actual = run("triton", ids, tables, weights, gradient, dropout)
    expected = run("eager", ids, tables, weights, gradient, dropout)
    exact = run("eager", ids, [x.double() for x in tables], [x.double() for x in weights], gradient.double(), dropout)
    names = ["result", *(f"gradient of tables[{i}]" for i in range(len(tables))), "dweight", "dbias"]
    # The largest values are few, and all of eager torch's roundings of them can be small by luck: a unit of the last
    # place of the largest is allowed.
    floor = max(1e-5, torch.finfo(tables[0].dtype).eps)
    for name, mine, other, truth in zip(names, actual, expected, exact, strict=True):
        assert mine.is_contiguous()
        assert_as_accurate(mine, other, truth, name, floor=floor)
    return actual


def summed(ids: torch.Tensor, dsum: torch.Tensor, rows: int) -> torch.Tensor:
    """A table's gradient in float64."""
    return torch.zeros(rows, dsum.shape[1], dtype=torch.float64, device=DEVICE).index_add(0, ids, dsum.double())


def gradients_of(keys: list[torch.Tensor], dsum: torch.Tensor, rows: list[int]) -> list[torch.Tensor]:
    starts = [sum(rows[:i]) + i for i in range(len(rows))]
    counted = torch.stack([one + start for one, start in zip(keys, starts)]).int()
    return table_gradients(dsum, counted, rows)


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize(("tokens", "width"), [(SHIPPED_CHUNK + 1, 40), (35, 96)], ids=str)
def test_writes_every_element_and_nothing_around(tokens: int, width: int, seed: int, monkeypatch) -> None:
    rows, guards = (9, 5, 2), []

    def guarded(*shape, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        values = torch.full(torch.Size(shape if isinstance(shape[0], int) else shape[0]), math.nan)
        if not dtype.is_floating_point:
            return torch.full_like(values, -5, dtype=dtype, device=device)
        guards.append(Guarded(values, device))
        return guards[-1].tensor

    tables = [Guarded(table, torch.device(DEVICE)) for table in some_tables(rows, width, seed)]
    weight, bias = (Guarded(x, torch.device(DEVICE)).tensor for x in some_weights(width, seed))
    sources = [table.tensor for table in tables]
    ids, dropout = some_ids(tokens, rows, seed), some_dropout(tokens, seed)
    grad = Guarded(random((tokens, width), seed), torch.device(DEVICE)).tensor
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", guarded)
        patched.setattr(torch, "zeros", lambda *shape, **kinds: guarded(*shape, **kinds).zero_())
        y, mean, rstd = kernels.forward(ids, sources, weight, bias, 1e-5, torch.float32, kernel_inputs(dropout), True)
        dtables, dweight, dbias = kernels.backward(grad, ids, sources, mean, rstd, weight, kernel_inputs(dropout))
    for guard in (*guards, *tables):
        guard.check()
    results = (y, *dtables, dweight, dbias)
    assert all(x.isfinite().all() for x in (mean, rstd, *results))
    expected = run("eager", ids, sources, (weight, bias), grad, dropout)
    for mine, other in zip(results, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("tokens", "rows", "width"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_as_accurate_as_torch(tokens: int, rows: tuple[int, ...], width: int, dtype: torch.dtype, seed: int) -> None:
    ids, weights = some_ids(tokens, rows, seed), some_weights(width, seed)
    check(ids, some_tables(rows, width, seed, dtype), weights, seed, some_dropout(tokens, seed))


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_weights_of_half_precision_and_no_dropout(dtype: torch.dtype, seed: int) -> None:
    actual = check(
        some_ids(12, (9, 8, 2), seed), some_tables((9, 8, 2), 96, seed, dtype), some_weights(96, seed, dtype), seed
    )
    assert {x.dtype for x in actual} == {dtype}


def test_the_result_has_autocasts_dtype_and_the_gradients_the_tables(seed: int) -> None:
    rows, dropout = (20, 12, 2), some_dropout(14, seed, 0.1)
    ids, tables, weights = some_ids(14, rows, seed), some_tables(rows, 64, seed), some_weights(64, seed)
    gradient = random((14, 64), seed).bfloat16()
    exact = run("eager", ids, [x.double() for x in tables], [x.double() for x in weights], gradient.double(), dropout)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        actual = run("triton", ids, tables, weights, gradient, dropout)
        expected = run("eager", ids, tables, weights, gradient, dropout)
    assert [x.dtype for x in actual] == [torch.bfloat16] + [torch.float32] * 5
    for mine, other, truth in zip(actual, expected, exact, strict=True):
        assert_as_accurate(mine, other, truth)


def test_drops_what_eager_torch_drops(seed: int) -> None:
    ids, tables = some_ids(60, (5,), seed), some_tables((5,), 100, seed)
    weights = [torch.zeros(100, device=DEVICE), torch.ones(100, device=DEVICE)]
    results = []
    for backend in BOTH:
        with use_backend(backend):
            results.append(ops.embedding_layer_norm(ids, tables, *weights, token_dropout=some_dropout(60, seed, 0.4)))
    mine, other = results
    torch.testing.assert_close(mine, other)
    assert 0.5 < (mine > 0).double().mean() < 0.7


BOTH = ("triton", "eager")
RUNS = {
    "all-the-same": [3] * (2 * CHUNK + 5),
    "sorted": [i // 3 for i in range(3 * CHUNK)],
    "reversed": [(3 * CHUNK - i) // 3 for i in range(3 * CHUNK)],
    "ends-on-a-border": [0] * CHUNK + [1] * CHUNK + [2] * (2 * CHUNK) + [4] * (CHUNK // 2),
    "begins-before-a-border": [0] * (CHUNK - 1) + [1] * 2 + [2] * (CHUNK - 1) + [3],
    "all-different": list(range(CHUNK + 7)),
    "one-border-each": [0] * (CHUNK // 2) + [1] * CHUNK + [2] * CHUNK + [3] * CHUNK,
}


@pytest.mark.parametrize("order", [False, True], ids=["", "shuffled"])
@pytest.mark.parametrize("name", RUNS)
def test_gradients_of_one_table(name: str, order: bool, seed: int, small_chunks: None) -> None:
    ids = torch.tensor(RUNS[name])
    if order:
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    ids, dsum, rows = ids.to(DEVICE), random((len(ids), 40), seed), int(ids.max()) + 2
    (result,) = gradients_of([ids], dsum, [rows])
    torch.testing.assert_close(result.double(), summed(ids, dsum, rows), rtol=1e-5, atol=1e-4)
    assert not result[-1].any()


@pytest.mark.parametrize("dtype", DTYPES[::2])
def test_a_hot_id_over_many_chunks_beside_a_table_of_one_row(dtype, seed: int, small_chunks: None) -> None:
    tokens, generator = 12 * CHUNK + 3, torch.Generator().manual_seed(seed)
    words = torch.randint(20, (tokens,), generator=generator)
    words[torch.rand(tokens, generator=generator) < 0.7] = 17
    ids, dsum = [words.to(DEVICE), torch.zeros_like(words).to(DEVICE)], random((tokens, 32), seed).to(dtype)
    for one, mine, rows in zip(ids, gradients_of(ids, dsum, [20, 1]), (20, 1)):
        truth = summed(one, dsum, rows)
        assert_as_accurate(mine, truth.to(dtype), truth)


def test_a_thousand_tokens_of_one_id(seed: int) -> None:
    ids = torch.arange(17 * SHIPPED_CHUNK) // 20
    ids[30:1030] = 500
    (result,) = gradients_of([ids.to(DEVICE)], dsum := random((len(ids), 32), seed), [501])
    torch.testing.assert_close(result.double(), summed(ids.to(DEVICE), dsum, 501), rtol=1e-5, atol=1e-4)


def test_gradients_are_the_same_on_every_run_and_for_larger_tables(seed: int, small_chunks: None) -> None:
    rows, dropout = (12, 12, 2), some_dropout(27, seed)
    ids, tables, weights = some_ids(27, rows, seed), some_tables(rows, 40, seed), some_weights(40, seed)
    gradient = random((27, 40), seed)
    first = run("triton", ids, tables, weights, gradient, dropout)
    larger = [torch.cat((table, random((3, 40), seed))) for table in tables]
    again = run("triton", ids, larger, weights, gradient, dropout)
    assert all(torch.equal(a, b[: len(a)]) for a, b in zip(first, again, strict=True))
    assert not any(b[count:].any() for b, count in zip(again[1:4], rows))


def test_a_token_does_not_depend_on_its_neighbours(seed: int) -> None:
    ids, tables, weights = some_ids(40, (9, 7, 2), seed), some_tables((9, 7, 2), 96, seed), some_weights(96, seed)
    with use_backend("triton"):
        together = ops.embedding_layer_norm(ids, tables, *weights)
        alone = ops.embedding_layer_norm([table_ids[21:30] for table_ids in ids], tables, *weights)
    assert torch.equal(together[21:30], alone)


@pytest.mark.parametrize("kind", ["int32", "strided", "broadcast"])
def test_ids_of_any_dtype_and_stride(kind: str, seed: int) -> None:
    ids, tables, weights = some_ids(12, (9, 40, 2), seed), some_tables((9, 40, 2), 32, seed), some_weights(32, seed)
    if kind == "int32":
        others = [table_ids.int() for table_ids in ids]
    elif kind == "strided":
        others = [torch.stack((table_ids, table_ids + 1000), 1)[:, 0] for table_ids in ids]
    else:
        positions = torch.arange(12, device=DEVICE)
        ids, others = [ids[0], positions, ids[2] * 0], [ids[0], positions, ids[2][:1].mul(0).expand(12)]
    gradient = random((12, 32), seed).t().contiguous().t()  # a gradient whose columns lie apart
    mine = run("triton", others, tables, weights, gradient)
    same = run("triton", ids, tables, weights, gradient.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(mine, same))
    with pytest.raises(UserError, match=r"ids\[1\] must be int64 or int32 of shape \(12,\), not torch.int16 \(12,\)"):
        ops.embedding_layer_norm([ids[0], ids[1].short(), ids[2]], tables, *weights)


@pytest.mark.parametrize("p", [0.0, 0.5], ids=["", "dropout"])
def test_a_bad_id_gives_nan_and_adds_nothing(p: float, seed: int, small_chunks: None) -> None:
    rows, tokens = (9, 7, 2), 3 * CHUNK + 1
    clean, weights = some_ids(tokens, rows, seed), some_weights(40, seed)
    guards = [Guarded(table, torch.device(DEVICE)) for table in some_tables(rows, 40, seed)]
    tables = [guard.tensor.requires_grad_() for guard in guards]
    dropout = some_dropout(tokens, seed, p) if p else None
    ids = [table_ids.clone() for table_ids in clean]
    bad = {0: (3, -1), 1: (5, 7), 2: (tokens - 1, 2**40)}
    for table, (token, value) in bad.items():
        ids[table][token] = value
    gradient = random((tokens, 40), seed + 2)
    with use_backend("triton"):
        y = ops.embedding_layer_norm(ids, tables, *weights, token_dropout=dropout)
        gradients = torch.autograd.grad(y, tables, gradient)
        fine = ops.embedding_layer_norm(clean, tables, *weights, token_dropout=dropout)
        bad_tokens = [token for token, _ in bad.values()]
        gradient[bad_tokens] = 0.0  # what a token's gradient is when it adds nothing
        expected = torch.autograd.grad(fine, tables, gradient)
    others = [i for i in range(tokens) if i not in bad_tokens]
    assert y[bad_tokens].isnan().all()
    assert torch.equal(y[others], fine[others])
    for mine, other in zip(gradients, expected):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("backend", BOTH)
def test_bad_ids_are_named_on_request(backend: str, seed: int, monkeypatch) -> None:
    ids, tables, weights = some_ids(20, (9, 7, 2), seed), some_tables((9, 7, 2), 40, seed), some_weights(40, seed)
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    with use_backend(backend):
        ops.embedding_layer_norm(ids, tables, *weights)
        ids[1][13], ids[1][15] = 7, -4
        with pytest.raises(
            UserError, match=r"position id 7 at ids\[1\]\[13\] is not a row of tables\[1\], .* has 7 rows"
        ):
            ops.embedding_layer_norm(ids, tables, *weights)
        ids[1][13] = 0
        with pytest.raises(UserError, match=r"table 0's id -4 at ids\[0\]\[15\] .* at least 0 and below 7"):
            ops.embedding_layer_norm(ids[1:2], tables[1:2], *weights)


@pytest.mark.parametrize("with_dropout", [False, True], ids=["bare", "dropout"])
def test_the_operators_keep_their_promises(with_dropout: bool, seed: int) -> None:
    ids = some_ids(4, (9, 7), seed)
    tables = [table.requires_grad_() for table in some_tables((9, 7), 8, seed)]
    weight, bias = (x.requires_grad_() for x in some_weights(8, seed))
    d = some_dropout(4, seed)
    dropout = flatten(d if with_dropout else None)
    arguments = (ids, tables, weight, bias, 1e-5, torch.bfloat16, *dropout, "triton")
    torch.library.opcheck(torch.ops.fastbert.embedding_layer_norm.default, arguments)
    y, mean, rstd = torch.ops.fastbert.embedding_layer_norm(*arguments)
    plain = [table.detach() for table in tables]
    arguments = (y.detach(), ids, plain, mean, rstd, weight.detach(), *dropout, [True, False], "triton")
    torch.library.opcheck(torch.ops.fastbert.embedding_layer_norm_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_tokens(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    tables, weights = [table.requires_grad_() for table in some_tables((9, 7, 2), 8, seed)], some_weights(8, seed)

    def function(ids, key, sequence, offset):
        dropout = ops.TokenDropout(0.1, key, sequence, offset, 3)
        return ops.embedding_layer_norm(ids, tables, *weights, 1e-5, dropout) + 1.0

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for tokens in (4, 6, 11):
            ids, d = some_ids(tokens, (9, 7, 2), seed), some_dropout(tokens, seed)
            gradient = random((tokens, 8), seed)
            results = [f(ids, d.key, d.sequence_ids, d.offsets) for f in (compiled, function)]
            gradients = [torch.autograd.grad(result, tables, gradient) for result in results]
            assert torch.equal(*results)
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1


def test_refuses_what_it_does_not_serve(seed: int) -> None:
    ids, tables, weights = some_ids(4, (9, 7), seed), some_tables((9, 7), 8, seed), some_weights(8, seed)
    wide = [torch.zeros(2, 8193, device=DEVICE)] * 2
    refused = [
        (
            (ids, [x.double() for x in tables], *weights),
            r"tables\[0\] has dtype torch.float64, .*use_backend\('eager'\)",
        ),
        ((ids, [tables[0], tables[1].half()], *weights), "tables have dtypes torch.float16 and torch.float32"),
        ((ids, tables, weights[0], weights[1].half()), r"weight and bias have dtypes torch.float32 and torch.float16"),
        ((ids, wide, wide[0][0], wide[0][0]), "rows have 8193 columns, not 1 to 8192"),
        ((ids[:1] * 5, tables[:1] * 5, *weights), "there are 5 tables, more than 4"),
    ]
    with use_backend("triton"):
        for arguments, message in refused:
            with pytest.raises(UserError, match=message):
                ops.embedding_layer_norm(*arguments)


def test_serves_by_eager_torch_what_the_kernel_does_not(seed: int, monkeypatch) -> None:
    monkeypatch.setitem(backends.PREFERENCE, DEVICE, ("triton", "eager"))
    ids, tables, weights = some_ids(4, (9, 7), seed), some_tables((9, 7), 8, seed), some_weights(8, seed)
    tables, weights = [x.double() for x in tables], [x.double() for x in weights]
    expected = run("eager", ids, tables, weights, random((4, 8), seed))[0]
    assert torch.equal(ops.embedding_layer_norm(ids, tables, *weights, 1e-5), expected)


def test_names_what_is_wrong(seed: int) -> None:
    ids, tables, weights = some_ids(4, (9, 7), seed), some_tables((9, 7), 8, seed), some_weights(8, seed)
    d = some_dropout(4, seed)
    short = ops.TokenDropout(0.1, d.key, d.sequence_ids[:3], d.offsets, 1)
    wrong = [
        ((ids[:1], tables, *weights), "1 ids for 2 tables"),
        (([], [], *weights), "0 ids for 0 tables"),
        (([ids[0], ids[1][:3]], tables, *weights), r"ids\[1\] must be int64 or int32 of shape \(4,\), not"),
        ((ids, [tables[0], tables[1][:, :4]], *weights), r"tables\[1\] must be floating of shape \(rows, 8\), not"),
        ((ids, tables, weights[0][:3], weights[1]), r"weight must be floating of shape \(8,\), .*\(3,\)"),
        ((ids, tables, weights[0], weights[1].long()), r"bias must be floating of shape \(8,\), .*torch\.int64"),
        ((ids, tables, *weights, -1.0), r"eps=-1\.0 must be a finite number, at least 0"),
        ((ids, [tables[0][0, 0], tables[1]], *weights), r"tables\[0\] must be floating of shape \(rows, "),
        ((ids, tables, *weights, 1e-5, short), r"sequence_ids must be int64 or int32 of shape \(4,\), one per token"),
        ((ids, tables, *weights, 1e-5, some_dropout(4, seed, 1.0)), r"token_dropout.p=1.0 must be"),
    ]
    for arguments, message in wrong:
        with pytest.raises(UserError, match=message):
            ops.embedding_layer_norm(*arguments)
