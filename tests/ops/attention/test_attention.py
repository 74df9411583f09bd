"""Packed attention against the oracle: values, gradients, awkward lengths, dropout and bias."""

import importlib.util
import itertools
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from accuracy import assert_as_accurate
from sweeps import sweep

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import dispatch, reference

LENGTHS = [
    pytest.param([1], id="one-token"),
    pytest.param([128] * 3, id="equal"),
    pytest.param([5, 9, 5, 1, 17, 9], id="mixed-with-repeats"),
    pytest.param([0, 3, 0], id="empty-sequences"),
    pytest.param([127, 129, 128], id="around-128"),
    pytest.param([], id="no-sequence"),
]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def inputs(lengths_q: list[int], lengths_k: list[int], heads: int, width: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = (sum(lengths_q), sum(lengths_k), sum(lengths_k))
    return [torch.randn(size, heads, width, generator=generator, dtype=torch.float64) for size in sizes]


def run(function, tensors, *arguments, gradient, **options):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    result = function(*leaves, *arguments, **options)
    return [result, *torch.autograd.grad(result, leaves, gradient.to(result.dtype), allow_unused=True)]


@sweep("lengths", LENGTHS)
@sweep("causal", [False, True], ids=["both-ways", "causal"])
@sweep("dropout_p", [0.0, 0.3])
def test_equals_the_oracle_in_float64(lengths: list[int], causal: bool, dropout_p: float, seed: int) -> None:
    tensors = inputs(lengths, lengths, 3, 16, seed)
    cu = offsets(lengths)
    key = torch.randint(-(2**62), 2**62, (len(lengths),), generator=torch.Generator().manual_seed(seed))
    options = {"causal": causal, "dropout_p": dropout_p, "dropout_key": key, "dropout_site": 513}
    longest = max(lengths, default=0)
    gradient = torch.randn(tensors[0].shape, dtype=torch.float64)
    actual = run(ops.attention, tensors, cu, cu, longest, longest, gradient=gradient, **options)
    oracle = run(reference.attention, tensors, cu, cu, gradient=gradient, **options)
    for name, mine, expected in zip(("output", "dq", "dk", "dv"), actual, oracle):
        if sum(lengths):
            torch.testing.assert_close(
                mine, expected, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
def test_gradients_of_the_oracle_are_those_of_its_values(causal: bool, seed: int) -> None:
    queries, keys = [3, 0, 2], [2, 1, 4]
    tensors = inputs(queries, keys, 2, 3, seed)
    tensors.append(torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    options = {"causal": causal, "dropout_p": 0.3, "dropout_key": torch.arange(3), "dropout_site": 1}

    def oracle(q, k, v, bias):
        return reference.attention(q, k, v, offsets(queries), offsets(keys), bias=bias, **options)

    assert torch.autograd.gradcheck(oracle, [x.requires_grad_() for x in tensors], fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_is_as_accurate_as_torch(dtype: torch.dtype, seed: int) -> None:
    lengths = [64, 64, 31, 128]
    exact_in = inputs(lengths, lengths, 4, 64, seed)
    exact_in = [tensor.to(dtype).double() for tensor in exact_in]
    gradient = torch.randn(exact_in[0].shape).to(dtype).double()
    cu = offsets(lengths)

    def eager(q, k, v):
        outputs = []
        for a, b in itertools.pairwise(cu):
            q_hqd, k_hkd, v_hkd = (x[a:b].transpose(0, 1) for x in (q, k, v))
            outputs.append(((q_hqd @ k_hkd.transpose(1, 2) / 8.0).softmax(-1) @ v_hkd).transpose(0, 1))
        return torch.cat(outputs)

    exact = run(eager, exact_in, gradient=gradient)
    low_in = [tensor.to(dtype) for tensor in exact_in]
    expected = run(eager, low_in, gradient=gradient)
    actual = run(ops.attention, low_in, cu, cu, 128, 128, gradient=gradient)
    for name, mine, other, truth in zip(("output", "dq", "dk", "dv"), actual, expected, exact):
        assert_as_accurate(mine, other, truth, name)


def test_cross_attention_with_other_key_lengths_and_bias(seed: int) -> None:
    queries, keys = [4, 0, 7], [9, 3, 2]
    tensors = inputs(queries, keys, 2, 8, seed)
    bias = torch.randn(2, 7, 9, dtype=torch.float64)
    gradient = torch.randn(tensors[0].shape, dtype=torch.float64)
    cu_q, cu_k = offsets(queries), offsets(keys)
    actual = run(ops.attention, tensors, cu_q, cu_k, 7, 9, gradient=gradient, bias=bias)
    oracle = run(reference.attention, tensors, cu_q, cu_k, gradient=gradient, bias=bias)
    for mine, expected in zip(actual, oracle):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_queries_without_keys_get_zeros() -> None:
    q, k, v = torch.randn(3, 1, 4), torch.randn(0, 1, 4), torch.randn(0, 1, 4)
    output = ops.attention(q, k, v, offsets([3]), offsets([0]), 3, 0)
    assert torch.equal(output, torch.zeros(3, 1, 4))


def test_a_sequence_does_not_depend_on_its_neighbours(seed: int) -> None:
    q, k, v = (tensor.float() for tensor in inputs([20, 33], [20, 33], 2, 16, seed))
    cu = offsets([20, 33])
    together = ops.attention(q, k, v, cu, cu, 33, 33)
    alone = ops.attention(q[:20], k[:20], v[:20], cu[:2], cu[:2], 20, 20)
    assert torch.equal(together[:20], alone)


def test_wrong_shapes_are_named() -> None:
    q, k = torch.randn(3, 2, 8), torch.randn(3, 2, 4)
    with pytest.raises(UserError, match=r"equal head_dim, and k and v equal shapes, not \(3, 2, 8\), \(3, 2, 4\)"):
        ops.attention(q, k, k, offsets([3]), offsets([3]), 3, 3)


def test_softmax_gives_the_probabilities_that_attention_uses(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 5, 5, generator=generator, dtype=torch.float64)
    expected = torch.softmax(scores * 0.5, -1)
    torch.testing.assert_close(ops.softmax(scores, scale=0.5), expected)
    causal = ops.softmax(scores, torch.ones(5, 5).tril().bool())
    assert torch.equal(causal.triu(1), torch.zeros_like(causal))
    torch.testing.assert_close(causal.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))


@pytest.mark.parametrize(
    ("compiler", "lengths"),
    [("aot_eager", []), ("aot_eager", [0, 0]), ("inductor", []), ("inductor", [3, 5])],
    ids=str,
)
def test_under_compile_without_tokens_and_with_a_bias_in_another_order(
    compiler: str, lengths: list[int], seed: int
) -> None:
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, 2, 16, generator=generator)
    table = torch.randn(5, 5, 2, generator=generator)
    cu = offsets(lengths)
    gradient = torch.randn(sum(lengths), 2, 16, generator=generator)

    def layer(qkv, table):
        return ops.attention(*qkv.unbind(1), cu, cu, 5, 5, bias=table.permute(2, 0, 1)) * 2

    plain = run(layer, [qkv, table], gradient=gradient)
    # Vectors and headers compiled beforehand take longer than these few additions.
    options = {"cpp.simdlen": 1, "cpp_cache_precompile_headers": False} if compiler == "inductor" else None
    compiled = run(
        torch.compile(layer, fullgraph=True, backend=compiler, options=options), [qkv, table], gradient=gradient
    )
    for mine, expected in zip(compiled, plain):
        # Without a sequence, plain torch finds no way from the bias to the output.
        torch.testing.assert_close(mine, torch.zeros_like(mine) if expected is None else expected)


def test_precision_of_fp32_products_follows_either_way_of_setting_it() -> None:
    script = """
import torch
from fastbert.ops.attention.op import tf32_allowed, attention
assert not tf32_allowed()
torch.set_float32_matmul_precision("high")
assert tf32_allowed()
torch.set_float32_matmul_precision("highest")
assert not tf32_allowed()
if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert tf32_allowed()
    q, cu = torch.randn(3, 1, 32), torch.tensor([0, 3], dtype=torch.int32)
    attention(q, q, q, cu, cu, 3, 3)
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not tf32_allowed()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("options", [{}, {"causal": True, "bias": True}, {"dropout_p": 0.3}], ids=str)
def test_one_opaque_operation_under_compile(options: dict, seed: int) -> None:
    torch._dynamo.reset()
    lengths = [5, 0, 20, 40]
    tensors = inputs(lengths, lengths, 2, 16, seed)
    if options.pop("bias", False):
        tensors.append(torch.randn(2, 30, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    cu = offsets(lengths)
    key = torch.arange(4)
    gradient = torch.randn(tensors[0].shape, dtype=torch.float64)

    def layer(q, k, v, bias=None):
        return ops.attention(q, k, v, cu, cu, 40, 40, bias=bias, dropout_key=key, **options) * 2

    plain = run(layer, tensors, gradient=gradient)
    compiled = run(torch.compile(layer, fullgraph=True, backend="aot_eager"), tensors, gradient=gradient)
    for mine, expected in zip(compiled, plain):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-12)


def test_hidden_keys_may_be_said_with_an_infinite_bias(seed: int) -> None:
    tensors = inputs([6], [6], 2, 16, seed)
    bias = torch.zeros(2, 6, 6, dtype=torch.float64)
    bias[:, :, 4:] = -torch.inf
    bias[1, 3] = -torch.inf
    cu = offsets([6])
    actual = ops.attention(*tensors, cu, cu, 6, 6, bias=bias)
    assert torch.equal(actual[3, 1], torch.zeros(16, dtype=torch.float64))
    shorter = ops.attention(tensors[0], tensors[1][:4], tensors[2][:4], cu, offsets([4]), 6, 4)
    torch.testing.assert_close(actual[:, 0], shorter[:, 0])


CU = offsets([3, 5])
GOOD = {"q": torch.randn(8, 2, 32), "cu_seqlens_q": CU, "cu_seqlens_k": CU, "max_seqlen_q": 5, "max_seqlen_k": 5}
WRONG = [
    pytest.param(
        {"k": torch.randn(8, 2, 32).half()}, r"one floating dtype, not torch.float32, torch.float16", id="dtypes"
    ),
    pytest.param({"q": torch.ones(8, 2, 32, dtype=torch.int64)}, "one floating dtype", id="integers"),
    pytest.param({"q": torch.randn(8, 64)}, r"\(tokens, heads, head_dim\)", id="two-axes"),
    pytest.param({"cu_seqlens_q": CU.long()}, "cu_seqlens_q must be int32", id="offsets-int64"),
    pytest.param({"cu_seqlens_k": CU[:, None]}, "cu_seqlens_k must be int32", id="offsets-two-axes"),
    pytest.param({"cu_seqlens_k": offsets([8])}, "the same sequences, not 2 and 1", id="other-sequences"),
    pytest.param({"cu_seqlens_q": CU + 1}, "cu_seqlens_q starts at 1: it must start at 0", id="start"),
    pytest.param(
        {"cu_seqlens_q": torch.tensor([0, 9, 8]).int(), "max_seqlen_q": 9},
        "decreases from 9 to 8 at sequence 1",
        id="fall",
    ),
    pytest.param({"cu_seqlens_k": offsets([3, 4])}, "cu_seqlens_k ends at 7, but k has 8 tokens", id="end"),
    pytest.param({"max_seqlen_k": 4}, "sequence 1 has 5 tokens, more than max_seqlen_k=4", id="bound"),
    pytest.param({"max_seqlen_q": -1}, "max_seqlen_q=-1", id="negative-bound"),
    pytest.param({"max_seqlen_k": torch.tensor(5)}, "max_seqlen_k is a tensor", id="bound-tensor"),
    pytest.param({"cu_seqlens_q": CU[0], "dropout_p": 0.1}, "cu_seqlens_q must be int32 of shape", id="offset"),
    pytest.param({"dropout_site": -1}, "dropout_site=-1 must be at least 0", id="site-negative"),
    pytest.param({"dropout_site": 2**31}, "dropout_site=2147483648 must be at least 0 and below 2", id="site"),
    pytest.param({"dropout_p": 1.0}, "dropout_p=1.0 must be at least 0 and below 1", id="dropout"),
    pytest.param(
        {"dropout_p": 0.1, "dropout_key": torch.arange(3)}, r"dropout_key must be int64 of shape \(2,\)", id="keys"
    ),
    pytest.param(
        {"bias": torch.zeros(3, 5, 5)}, r"bias must be floating of shape \(2, queries, keys\)", id="bias-heads"
    ),
    pytest.param({"scale": float("nan")}, "scale=nan must be a finite number", id="scale"),
    pytest.param({"k": torch.empty(8, 2, 32, device="meta")}, "k is on meta, q on cpu", id="devices"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_named(change: dict, message: str) -> None:
    arguments = GOOD | change
    arguments = {"k": arguments["q"], "v": arguments.get("k", arguments["q"])} | arguments
    with pytest.raises(ValueError, match=message):
        ops.attention(**arguments)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_triton_backend_refuses_tensors_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.randn(8, 2, 32)
    with (
        use_backend("triton"),
        pytest.raises(ValueError, match=r"q is on cpu: the triton backend needs tensors on a GPU; move q there, or"),
    ):
        ops.attention(q, q, q, CU, CU, 5, 5)


@pytest.mark.parametrize(
    ("q", "message"),
    [
        pytest.param(
            torch.empty(8, 2, 48),
            r"'triton' does not support 'attention' here: head_dim=48 is not 32, 64, 96 or 128;"
            r" use_backend\('eager'\) does",
            id="head_dim",
        ),
        pytest.param(torch.empty(8, 2, 32).double(), "q has dtype torch.float64", id="float64"),
        pytest.param(
            torch.empty(2, 8, 32).transpose(0, 1), r"q is not contiguous: strides \(32, 256, 1\)", id="heads-first"
        ),
        pytest.param(
            torch.empty(8, 2, 64)[:, :, ::2], r"q is not contiguous: strides \(128, 64, 2\)", id="every-second"
        ),
    ],
)
def test_the_triton_backend_names_what_it_does_not_support(
    q: torch.Tensor, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    with use_backend("triton"), pytest.raises(ValueError, match=message):
        ops.attention(q, q, q, CU, CU, 5, 5)


@pytest.mark.parametrize("scale", [-1.0, 0.0, 1e-45, 1e38])
def test_the_triton_backend_refuses_a_scale_that_single_precision_does_not_hold(
    scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    q = torch.randn(8, 2, 32)
    with use_backend("triton"), pytest.raises(ValueError, match=re.escape(f"scale={scale} is not between")):
        ops.attention(q, q, q, CU, CU, 5, 5, scale=scale)


def test_without_triton_its_backend_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "HAS_TRITON", False)
    q = torch.randn(8, 2, 32)
    with (
        use_backend("triton"),
        pytest.raises(ValueError, match=r"needs triton: `pip install 'fastbert-engine\[gpu\]'`"),
    ):
        ops.attention(q, q, q, CU, CU, 5, 5)


def test_a_call_that_triton_does_not_support_falls_back_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    monkeypatch.setattr(dispatch, "_logged", set())
    q = torch.randn(8, 2, 48)
    with use_backend("eager"):
        expected = ops.attention(q, q, q, CU, CU, 5, 5)
    monkeypatch.setitem(dispatch.PREFERENCE, "cpu", ("triton", "eager"))
    with caplog.at_level("WARNING", logger="fastbert"):
        assert torch.equal(ops.attention(q, q, q, CU, CU, 5, 5), expected)
        assert torch.equal(ops.attention(q, q, q, CU, CU, 5, 5), expected)
    assert [record.getMessage() for record in caplog.records] == [
        "attention falls back to PyTorch: head_dim=48 is not 32, 64, 96 or 128"
    ]


CALLS = [
    pytest.param(lambda x: ops.attention(*[x.permute(2, 0, 1)] * 3, offsets([8]), offsets([8]), 8, 8), id="attention"),
    pytest.param(lambda x: ops.softmax(x[None].transpose(2, 3)), id="softmax"),
]


@pytest.mark.parametrize("call", CALLS)
def test_strides_that_triton_does_not_support_fall_back(
    call: Callable[[torch.Tensor], torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seed: int,
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(dispatch, "HAS_TRITON", True)
    monkeypatch.setattr(dispatch, "_logged", set())
    x = torch.randn(2, 32, 8, generator=torch.Generator().manual_seed(seed))
    with use_backend("eager"):
        expected = call(x)
    with use_backend("triton"), pytest.raises(UserError, match=r"'triton' does not support .* is not contiguous"):
        call(x)
    monkeypatch.setitem(dispatch.PREFERENCE, "cpu", ("triton", "eager"))
    with caplog.at_level("WARNING", logger="fastbert"):
        assert torch.equal(call(x), expected)
    (record,) = caplog.records
    assert "falls back to PyTorch: " in record.getMessage()
    assert "is not contiguous: strides" in record.getMessage()


def test_transforms_run_on_eager(seed: int) -> None:
    """Rows by `vmap`, and forward-mode derivatives, which agree with those of backward: u (J t) = (J^T u) t."""
    lengths = [3, 1, 6]
    cu_seqlens, key = offsets(lengths), torch.tensor([4, 5, 6])
    q, tangent, upstream = (inputs(lengths, lengths, 2, 8, seed + i)[0] for i in range(3))

    def attend(q: torch.Tensor) -> torch.Tensor:
        options = {"causal": True, "dropout_p": 0.3, "dropout_key": key}
        return ops.attention(q, q, q, cu_seqlens, cu_seqlens, 6, 6, **options)

    rows = torch.stack([q, tangent])
    torch.testing.assert_close(torch.func.vmap(attend)(rows), torch.stack([attend(row) for row in rows]))
    output, derivative = torch.func.jvp(attend, (q,), (tangent,))
    leaf = q.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(attend(leaf), leaf, upstream)
    torch.testing.assert_close(output, attend(q))
    torch.testing.assert_close((derivative * upstream).sum(), (gradient * tangent).sum())
