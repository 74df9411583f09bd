"""Packed attention against the oracle: values, gradients, awkward lengths, dropout and bias."""

import itertools

import pytest
import torch
from accuracy import assert_as_accurate

from fastbert import ops
from fastbert.errors import UserError
from fastbert.ops import reference

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


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_equals_the_oracle_in_float64(lengths: list[int], causal: bool, dropout_p: float, seed: int) -> None:
    tensors = inputs(lengths, lengths, 3, 16, seed)
    cu = offsets(lengths)
    key = torch.randint(-(2**62), 2**62, (len(lengths),), generator=torch.Generator().manual_seed(seed))
    options = {"causal": causal, "dropout_p": dropout_p, "dropout_key": key, "dropout_site": 513}
    longest = max(lengths, default=0)
    gradient = torch.randn(tensors[0].shape, dtype=torch.float64)
    ours = run(ops.attention, tensors, cu, cu, longest, longest, gradient=gradient, **options)
    oracle = run(reference.attention, tensors, cu, cu, gradient=gradient, **options)
    for name, mine, theirs in zip(("output", "dq", "dk", "dv"), ours, oracle):
        if sum(lengths):
            torch.testing.assert_close(
                mine, theirs, rtol=1e-12, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )


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
    theirs = run(eager, low_in, gradient=gradient)
    ours = run(ops.attention, low_in, cu, cu, 128, 128, gradient=gradient)
    for name, mine, other, truth in zip(("output", "dq", "dk", "dv"), ours, theirs, exact):
        assert_as_accurate(mine, other, truth, name)


def test_cross_attention_with_other_key_lengths_and_bias(seed: int) -> None:
    queries, keys = [4, 0, 7], [9, 3, 2]
    tensors = inputs(queries, keys, 2, 8, seed)
    bias = torch.randn(2, 7, 9, dtype=torch.float64)
    gradient = torch.randn(tensors[0].shape, dtype=torch.float64)
    cu_q, cu_k = offsets(queries), offsets(keys)
    ours = run(ops.attention, tensors, cu_q, cu_k, 7, 9, gradient=gradient, bias=bias)
    oracle = run(reference.attention, tensors, cu_q, cu_k, gradient=gradient, bias=bias)
    for mine, theirs in zip(ours, oracle):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


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
    q, k = torch.randn(3, 2, 8), torch.randn(3, 1, 8)
    with pytest.raises(UserError, match=r"equal heads and head_dim, not \(3, 2, 8\), \(3, 1, 8\)"):
        ops.attention(q, k, k, offsets([3]), offsets([3]), 3, 3)


def test_softmax_gives_the_probabilities_that_attention_uses(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 3, 5, 5, generator=generator, dtype=torch.float64)
    expected = torch.softmax(scores * 0.5, -1)
    torch.testing.assert_close(ops.softmax(scores, scale=0.5), expected)
    causal = ops.softmax(scores, torch.ones(5, 5).tril().bool())
    assert torch.equal(causal.triu(1), torch.zeros_like(causal))
    torch.testing.assert_close(causal.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64))
