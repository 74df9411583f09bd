"""The Triton attention as it is called: views, compiled and captured, what it writes, and what the host reads."""

import pytest
import torch
from attention_kernels import DEVICE, GPU, Inputs, offsets
from guards import GuardingTorch, NoReading

from fastbert import ops, use_backend
from fastbert.ops import reference
from fastbert.ops.attention.arguments import AttentionArguments
from fastbert.ops.attention.triton import kernel_inputs

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.attention import launchers as kernels

# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]


def test_views_of_one_product_and_broadcast_biases_need_no_copy(seed) -> None:
    lengths, heads, width = [9, 70], 2, 32
    qkv = torch.randn(79, 3, heads, width, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))
    slopes = torch.randn(heads, 1, 1, device=DEVICE)
    distance = (torch.arange(70)[:, None] - torch.arange(70)).abs().float().to(DEVICE)
    results = []
    for function in (ops.attention, None):
        packed, leaf = qkv.clone().requires_grad_(), slopes.clone().requires_grad_()
        q, k, v = packed.unbind(1)
        for bias in (leaf * distance, leaf.expand(heads, 70, 70)):
            cu = offsets(lengths)
            if function is None:
                out = reference.attention(q, k, v, cu, cu, bias=bias)
            else:
                with use_backend("triton"):
                    out = function(q, k, v, cu, cu, 70, 70, bias=bias)
            results.append([out, *torch.autograd.grad(out.square().sum(), (packed, leaf), retain_graph=True)])
    for actual, expected in zip(results[:2], results[2:]):
        for mine, other in zip(actual, expected):
            torch.testing.assert_close(mine, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("arguments", [{}, {"bias": True, "dropout_p": 0.1}], ids=["plain", "bias-dropout"])
def test_opcheck(arguments, seed) -> None:
    inputs = Inputs([5, 40], [5, 40], seed=seed, dtype=torch.float32, width=32, **arguments)
    tensors = [x.to(DEVICE).requires_grad_() for x in inputs.tensors]
    key = inputs.options.get("dropout_key")
    everything = (*tensors[:3], *inputs.cu, 40, 40, False, arguments.get("dropout_p", 0.0), key, 3)
    positions = [None] * 7
    rest = (tensors[3] if len(tensors) > 3 else None, 0.2, False, *positions, "triton", True)
    torch.library.opcheck(torch.ops.fastbert.attention.default, (*everything, *rest))


def test_compiles_without_a_break_and_once_for_all_token_counts(seed) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, dynamic=True, backend=backend)
    def layer(x, cu, longest, key):
        q, k, v = x.unbind(1)
        return ops.attention(q, k, v, cu, cu, longest, longest, dropout_p=0.1, dropout_key=key).flatten(1) * 2

    generator = torch.Generator().manual_seed(seed)
    with use_backend("triton"):
        # As many offsets as some other axis is long would tie the two together in the first graph.
        for lengths in ([9, 3, 1, 2, 4], [20, 7, 11], [5, 6, 7, 8], [30, 2]):
            x = torch.randn(sum(lengths), 3, 2, 32, generator=generator).to(DEVICE).requires_grad_()
            key = torch.randint(0, 2**62, (len(lengths),), generator=generator).to(DEVICE)
            cu = offsets(lengths)
            compiled = layer(x, cu, max(lengths), key)
            plain = layer.__wrapped__(x, cu, max(lengths), key)
            assert torch.equal(compiled, plain)
            upstream = torch.randn(plain.shape, generator=generator).to(DEVICE)
            (mine,) = torch.autograd.grad(compiled, x, upstream)
            (other,) = torch.autograd.grad(plain, x, upstream)
            assert torch.equal(mine, other)
    assert len(graphs) == 1, f"{len(graphs)} graphs for four batches"


@pytest.mark.parametrize(
    "lengths",
    [[1, 16, 3], [31, 17], [64, 33, 5], [127, 65], [129, 1], [257, 1]],
    ids=["16", "32", "64", "128", "medium", "long"],
)
def test_every_output_is_written_and_nothing_beside_it(lengths, seed, monkeypatch: pytest.MonkeyPatch) -> None:
    guarding = GuardingTorch()
    monkeypatch.setattr(kernels, "torch", guarding)
    heads = 3 if max(lengths) <= 64 else 1  # longer sequences fill programs of one head
    inputs = Inputs(
        lengths, lengths, seed=seed, dtype=torch.float32, heads=heads, bias=True, dropout_p=0.1, causal=True
    )
    actual = inputs.run(inputs.triton)
    # Output, lse, rest; three gradients, delta, the bias's partial sums; and partial sums of dq, in whole tiles.
    assert len(guarding.allocated) == (9 if max(lengths) > 128 else 8)
    for item in guarding.allocated:
        item.check()
        assert item.tensor.dim() == 1 or not item.tensor.isnan().any()
    assert not any(x.isnan().any() for x in actual)


def test_the_launchers_read_nothing_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(kernels, "launch", lambda kernel, grid, *rest, **constants: started.append(kernel.__name__))
    inputs = Inputs([5, 300], [5, 300], seed=0, dtype=torch.float32, bias=True, dropout_p=0.1)
    q, k, v, bias = (x.to(DEVICE) for x in inputs.tensors)
    arguments = AttentionArguments(
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=inputs.cu[0],
        cu_seqlens_k=inputs.cu[1],
        max_seqlen_q=300,
        max_seqlen_k=300,
        causal=False,
        dropout_p=0.1,
        dropout_key=inputs.options["dropout_key"],
        dropout_site=1,
        bias=bias,
        scale=1.0,
        tf32=False,
    )
    for name in ("tolist", "cpu", "numpy"):
        monkeypatch.setattr(torch.Tensor, name, lambda *_: pytest.fail("the host reads a tensor"))
    with NoReading():
        arguments.check()
        launched = kernel_inputs(arguments)
        out, lse, rest = kernels.forward(launched)
        kernels.backward(launched, out, lse, rest, out, bias_gradient=True)
    assert started == [
        "forward_heads", "forward_short", "forward_long", "backward_heads", "backward_short", "backward_medium",
        "backward_queries", "backward_keys", "backward_bias",
    ]  # fmt: skip
    with pytest.raises(AssertionError, match="the host reads"), NoReading():
        bool(inputs.cu[0][0])


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_nothing_waits_for_the_gpu(seed) -> None:
    inputs = Inputs([5, 40, 200], [5, 40, 200], seed=seed, dtype=torch.bfloat16, bias=True, dropout_p=0.1)
    inputs.run(inputs.triton)
    leaves = [x.to(DEVICE).requires_grad_() for x in inputs.tensors]
    upstream = inputs.gradient.to(DEVICE)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = inputs.triton(*leaves[:3], *inputs.cu, bias=leaves[3], **inputs.options)
        torch.autograd.grad(out, leaves, upstream)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_captured_graph_serves_other_batches_of_its_bucket(seed) -> None:
    tokens, slots, bound = 512, 9, 256
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(tokens, 4, 64, generator=generator).to(DEVICE, torch.bfloat16) for _ in range(3))
    cu = torch.zeros(slots, dtype=torch.int32, device=DEVICE)
    key = torch.zeros(slots - 1, dtype=torch.int64, device=DEVICE)

    def fill(lengths):
        ends = torch.tensor([0, *lengths]).cumsum(0)
        cu.copy_(torch.cat([ends, ends[-1:].expand(slots - len(ends))]).int())
        key.copy_(torch.randint(-(2**62), 2**62, key.shape, generator=generator))

    def attend():
        with use_backend("triton"):
            return ops.attention(q, k, v, cu, cu, bound, bound, dropout_p=0.1, dropout_key=key)

    fill([256, 256])
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        attend()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = attend()
    for lengths in ([256, 256], [3, 60, 129, 200, 120], [64] * 8):
        fill(lengths)
        graph.replay()
        assert torch.equal(captured, attend())


def test_autocast_casts_the_operands(seed) -> None:
    inputs = Inputs([9], [9], seed=seed, dtype=torch.float32)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        out, *gradients = inputs.run(inputs.triton)
    assert out.dtype == torch.bfloat16
    assert {gradient.dtype for gradient in gradients} == {torch.float32}


def test_forward_mode_is_refused_where_it_would_be_zero() -> None:
    q = torch.randn(5, 2, 32, device=DEVICE)
    cu = offsets([5])

    def attend(x):
        return ops.attention(x, x, x, cu, cu, 5, 5)

    with use_backend("triton"), pytest.raises(ValueError, match="attention has no forward-mode derivative"):
        torch.func.jvp(attend, (q,), (q,))
    with use_backend("triton"), pytest.raises(ValueError, match="softmax has no forward-mode derivative"):
        torch.func.jvp(ops.softmax, (q[None],), (q[None],))


@pytest.mark.parametrize("longest", [16, 32, 64, 128, 130])
def test_gradients_of_joined_projections(longest: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [longest, 1, longest // 2 + 1]
    qkv = torch.randn(sum(lengths), 3, 3, 32, generator=generator).to(DEVICE)
    cu_seqlens = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    q, k, v = qkv.unbind(1)
    arguments = AttentionArguments(
        q=q, k=k, v=v, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=longest, max_seqlen_k=longest,
        causal=False, dropout_p=0.1, dropout_key=torch.arange(3, device=DEVICE), dropout_site=1, bias=None, scale=0.2,
        tf32=False,
    )  # fmt: skip
    inputs = kernel_inputs(arguments)
    out, lse, rest = kernels.forward(inputs)
    grad = torch.randn(out.shape, generator=generator).to(DEVICE)
    apart = kernels.backward(inputs, out, lse, rest, grad, False)[:3]
    assert torch.equal(kernels.backward_joined(inputs, out, lse, rest, grad), torch.stack(apart, 1))
