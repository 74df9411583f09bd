"""The native backend of attention at every level: values, awkward lengths, the same bits everywhere, and memory."""

from collections.abc import Iterator

import cpu_kernels
import emulator
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from sweeps import sweep

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.ops.attention.native import Native
from fastbert.ops.attention.op import _forward

DTYPES = [pytest.param(torch.float32, id="fp32"), pytest.param(torch.bfloat16, id="bf16")]
LEVELS = ["portable", "avx2", "avx512", "avx512-bf16", "amx"]
LENGTHS = [0, 1, 15, 16, 17, 127, 128, 129]
OTHER_LENGTHS = [3, 0, 7, 33, 16, 127, 300, 30]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each way to multiply; in software where this processor lacks its instructions."""
    with cpu_kernels.running(request.param):
        yield request.param


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def inputs(
    lengths_q: list[int], lengths_k: list[int], heads: int, dim: int, dtype: torch.dtype, seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (sum(lengths_q), sum(lengths_k), sum(lengths_k))
    return [torch.randn(size, heads, dim, generator=generator).to(dtype) for size in sizes]


def run(backend: str, tensors: list[torch.Tensor], lengths_q: list[int], lengths_k: list[int], **options):
    longest = [max(lengths, default=0) for lengths in (lengths_q, lengths_k)]
    with use_backend(backend), torch.no_grad():  # type: ignore[arg-type]
        return ops.attention(*tensors, offsets(lengths_q), offsets(lengths_k), *longest, **options)


def check(tensors: list[torch.Tensor], lengths_q: list[int], lengths_k: list[int], **options) -> None:
    wide = {name: x.double() if name == "bias" else x for name, x in options.items()}
    exact = run("eager", [x.double() for x in tensors], lengths_q, lengths_k, **wide)
    eager = run("eager", tensors, lengths_q, lengths_k, **options)
    assert_as_accurate(run("native", tensors, lengths_q, lengths_k, **options), eager, exact)


@sweep("dtype", DTYPES)
@sweep("causal", [False, True], ids=["both-ways", "causal"])
@sweep("lengths_k", [LENGTHS, OTHER_LENGTHS], ids=["self", "cross"])
def test_is_as_accurate_as_eager(level: str, dtype: torch.dtype, causal: bool, lengths_k: list[int], seed: int) -> None:
    counted = cpu_kernels.in_software(level) and dtype == torch.bfloat16
    before = emulator.executed() if counted else 0
    check(inputs(LENGTHS, lengths_k, 1, 64, dtype, seed), LENGTHS, lengths_k, causal=causal)
    if counted:
        assert emulator.executed() > before, "the level's own instructions never ran"


@sweep("dtype", DTYPES)
@sweep("dim", [1, 20, 33, 80, 96, 256])
def test_any_head_dim(level: str, dtype: torch.dtype, dim: int, seed: int) -> None:
    queries, keys = [5, 0, 35], [18, 3, 37]
    check(inputs(queries, keys, 2, dim, dtype, seed), queries, keys, causal=True, scale=0.37)


@sweep("dtype", DTYPES)
@sweep("shape", [(17, 40), (40, 300), (1, 1)], ids=str)
def test_bias_smaller_and_larger_than_a_sequence(
    level: str, dtype: torch.dtype, shape: tuple[int, int], seed: int
) -> None:
    queries, keys = [30, 3], [20, 290]
    generator = torch.Generator().manual_seed(seed)
    bias = torch.randn(*shape, 2, generator=generator).to(dtype).permute(2, 0, 1)
    bias[:, :, -1] = -torch.inf
    for view in (bias, bias.contiguous()):
        check(inputs(queries, keys, 2, 32, dtype, seed), queries, keys, bias=view)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_sequences_go_by_blocks_of_keys(level: str, dtype: torch.dtype, seed: int) -> None:
    tensors = inputs([1000, 4], [1000, 4097], 1, 64, dtype, seed)
    tensors[1] *= 4  # so that the largest score moves from block to block
    check(tensors, [1000, 4], [1000, 4097])
    check(tensors, [1000, 4], [1000, 4097], causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_sees_nothing_gets_zeros_and_huge_scores_stay_exact(level: str, dtype: torch.dtype, seed: int) -> None:
    tensors = inputs([20, 3], [5, 0], 1, 16, dtype, seed)
    bias = torch.full((1, 20, 5), -torch.inf)
    bias[0, 3, 2] = 1.0
    seen = run("native", tensors, [20, 3], [5, 0], bias=bias)
    assert torch.equal(seen[3, 0], tensors[2][2, 0])
    seen[3] = 0
    assert torch.equal(seen, torch.zeros_like(seen))
    large = [tensors[0] * 1e6, tensors[1] * 1e6, tensors[2]]
    check(large, [20, 3], [5, 0])


@sweep("dtype", DTYPES)
@sweep("queries", [[5, 1, 17, 0, 33], [130]], ids=["short", "long"])
def test_drops_where_eager_drops(level: str, dtype: torch.dtype, queries: list[int], seed: int) -> None:
    keys = [40, 3, 257, 4, 64] if len(queries) > 1 else [300]
    generator = torch.Generator().manual_seed(seed)
    dropout = {
        "dropout_p": 0.3,
        "dropout_site": 3 << 8 | 1,
        "dropout_key": torch.randint(-(2**63), 2**63 - 1, (len(queries),), generator=generator),
    }
    tensors = inputs(queries, keys, 3, 16, dtype, seed)
    # The values are those of the float64 mask: one element dropped elsewhere would be an error of its probability.
    check(tensors, queries, keys, **dropout)
    # All keys but one have a bias of -inf: an output is 0 or 1 / (1 - p) times the value, wherever eager's is.
    bias = torch.full((3, max(queries), max(keys)), -torch.inf)
    bias[:, torch.arange(max(queries)), torch.arange(max(queries)) % 3] = 0
    outputs = [run(backend, tensors, queries, keys, bias=bias, **dropout) for backend in ("native", "eager")]
    assert torch.equal(outputs[0] == 0, outputs[1] == 0)
    assert 0.1 < (outputs[0] == 0).float().mean() < 0.6


@pytest.mark.parametrize("dtype", DTYPES)
def test_lse_is_the_logarithm_of_the_sum(level: str, dtype: torch.dtype, seed: int) -> None:
    queries, keys = [3, 20, 2], [30, 20, 0]
    q, k, v = inputs(queries, keys, 2, 32, dtype, seed)
    cu_q, cu_k = offsets(queries), offsets(keys)
    attention_arguments = AttentionArguments(
        q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=20, max_seqlen_k=30, causal=True,
        dropout_p=0.0, dropout_key=None, dropout_site=0, bias=None, scale=0.2, tf32=False,
    )  # fmt: skip
    lse = Native().forward(attention_arguments)[1]
    for i, (m, n) in enumerate(zip(queries, keys)):
        scores = torch.einsum("qhd,khd->hqk", q[cu_q[i] : cu_q[i + 1]].double(), k[cu_k[i] : cu_k[i + 1]].double()).mul(
            0.2
        )
        hidden = torch.ones(m, n).triu(n - m + 1).bool()
        expected = scores.masked_fill(hidden, -torch.inf).logsumexp(-1)
        torch.testing.assert_close(lse[:, cu_q[i] : cu_q[i + 1]].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_has_the_same_bits_in_every_batch_and_layout(level: str, dtype: torch.dtype, seed: int) -> None:
    lengths = [40, 17, 1, 97, 33]
    tensors = inputs(lengths, lengths, 2, 32, dtype, seed)
    together = run("native", tensors, lengths, lengths, causal=True)
    qkv = torch.stack(tensors, 1)  # (tokens, 3, heads, dim)
    assert torch.equal(together, run("native", list(qkv.unbind(1)), lengths, lengths, causal=True))
    apart = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in tensors]  # each head's tokens side by side
    assert torch.equal(together, run("native", apart, lengths, lengths, causal=True))
    for i, (a, b) in enumerate(zip([0, 40, 57, 58, 155], [40, 57, 58, 155, 188])):
        alone = run("native", [x[a:b] for x in tensors], [lengths[i]], [lengths[i]], causal=True)
        assert torch.equal(together[a:b], alone), f"sequence {i}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_on_any_number_of_threads(dtype: torch.dtype, seed: int) -> None:
    before, lengths = torch.get_num_threads(), [500, 3, 129, 64]
    tensors = inputs(lengths, lengths, 3, 64, dtype, seed)
    results = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(run("native", tensors, lengths, lengths))
            one = [x[:500] for x in tensors]  # cut into parts where there are many threads
            assert torch.equal(run("native", one, [500], [500]), results[0][:500])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_stays_in_its_row_or_its_sequence(level: str, dtype: torch.dtype, seed: int) -> None:
    lengths = [20, 35, 18]
    tensors = inputs(lengths, lengths, 2, 32, dtype, seed)
    clean = run("native", tensors, lengths, lengths)
    for which in range(3):
        spoilt = [x.clone() for x in tensors]
        spoilt[which][30, 1, 3] = torch.nan
        result = run("native", spoilt, lengths, lengths)
        assert torch.equal(result[:20], clean[:20])
        assert torch.equal(result[55:], clean[55:])
        assert torch.equal(result[:, 0], clean[:, 0]), "another head changed"
        if which == 0:
            assert result[30, 1].isnan().all()
            assert torch.equal(result[31:], clean[31:])
            assert torch.equal(result[:30], clean[:30])
        else:
            lost = result[20:55, 1].isnan()
            assert lost.all() if which == 1 else lost[:, 3].all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("behind", [False, True], ids=["wall-before", "wall-behind"])
@pytest.mark.parametrize("dim", [20, 64])
def test_touches_nothing_outside(
    level: str, dtype: torch.dtype, behind: bool, dim: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [7, 33]
    generator = torch.Generator().manual_seed(seed)
    view = [*inputs(lengths, lengths, 2, dim, dtype, seed), torch.randn(2, 9, 21, generator=generator).to(dtype)]
    expected = run("native", view[:3], lengths, lengths, bias=view[3])
    fenced = [Fenced(x, behind) for x in view]
    out = Fenced(torch.zeros_like(expected), behind)
    tensors = [x.tensor for x in fenced]
    monkeypatch.setattr("fastbert.ops.native.caching_allocator.empty", lambda shape, dtype: out.tensor)
    run("native", tensors[:3], lengths, lengths, bias=tensors[3])
    monkeypatch.undo()
    assert torch.equal(out.tensor, expected)


def test_what_it_does_not_serve_goes_to_eager_or_is_refused(seed: int) -> None:
    tensors = inputs([5], [5], 2, 8, torch.float32, seed)
    cu = offsets([5])
    cases = [
        ([x.half() for x in tensors], {}, "dtype torch.float16"),
        (tensors, {"scale": -1.0}, "scale=-1.0"),
        ([x.repeat(1, 1, 40) for x in tensors], {}, "head_dim=320"),
    ]
    for arguments, options, message in cases:
        with use_backend("eager"):
            eager = ops.attention(*arguments, cu, cu, 5, 5, **options)
        assert torch.equal(ops.attention(*arguments, cu, cu, 5, 5, **options), eager), message
        with use_backend("native"), pytest.raises(UserError, match=message):
            ops.attention(*arguments, cu, cu, 5, 5, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0, 4], "cu_seqlens_q ends at 4, but q has 5 tokens"),
        ([0, 6], "more than max_seqlen_q=5"),
        ([1, 5], "starts at 1"),
        ([0, 3, 2, 5], "decreases from 3 to 2 at sequence 1"),
        ([0, -(2**31), 5], "decreases from 0 to -2147483648"),
    ],
)
def test_offsets_that_disagree_are_named(wrong: list[int], message: str, seed: int) -> None:
    tensors = inputs([5], [5], 2, 8, torch.float32, seed)
    cu = torch.tensor(wrong, dtype=torch.int32)
    with use_backend("native"), pytest.raises(UserError, match=message):
        ops.attention(*tensors, cu, cu, 5, 5)


def test_through_the_operator_and_compiled(seed: int) -> None:
    lengths = [5, 20]
    tensors = inputs(lengths, lengths, 2, 16, torch.float32, seed)
    cu = offsets(lengths)
    expected = run("native", tensors, lengths, lengths)
    arguments = (*tensors, cu, cu, 20, 20, False, 0.0, None, 0, None, 0.25, False, *[None] * 7, "native", True)
    torch.library.opcheck(torch.ops.fastbert.attention.default, arguments)
    assert torch.equal(_forward(*arguments)[0], expected)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ops.attention(q, k, v, cu, cu, 20, 20) + 1

    with torch.no_grad():
        assert torch.equal(compiled(*tensors), expected + 1)
