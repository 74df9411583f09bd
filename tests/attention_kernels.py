"""Inputs for tests of the Triton attention, and their comparison with the oracle."""

import pytest
import torch
from accuracy import assert_as_accurate
from guards import Guarded

from fastbert import ops, use_backend
from fastbert.ops import reference

GPU = torch.cuda.is_available()

DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


class Inputs:
    """Random tensors of one problem in some dtype, with NaN all round each of them."""

    def __init__(
        self, lengths_q, lengths_k, *, seed, dtype, heads=2, width=32, bias=False, dropout_p=0.0, causal=False
    ):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        sizes = (sum(lengths_q), sum(lengths_k), sum(lengths_k))
        self.tensors = [draw(size, heads, width) for size in sizes]
        self.longest = max(lengths_q, default=0), max(lengths_k, default=0)
        if bias:
            self.tensors.append(draw(heads, *self.longest).float())
        self.gradient = draw(sum(lengths_q), heads, width)
        self.cu = offsets(lengths_q), offsets(lengths_k)
        self.options = {"causal": causal}
        if dropout_p:
            key = torch.randint(-(2**62), 2**62, (len(lengths_q),), generator=generator).to(DEVICE)
            self.options |= {"dropout_p": dropout_p, "dropout_key": key, "dropout_site": 513}

    def run(self, function, dtype=None, *, guard=False):
        """Output and gradients of `function`, with inputs of another dtype if one is given."""
        guarded = [Guarded(x.to(dtype or x.dtype), DEVICE) for x in self.tensors]
        leaves = [item.tensor.requires_grad_() for item in guarded]
        bias = leaves[3] if len(leaves) > 3 else None
        result = function(*leaves[:3], *self.cu, bias=bias, **self.options)
        upstream = Guarded(self.gradient.to(result.dtype), DEVICE)
        results = [result, *torch.autograd.grad(result, leaves, upstream.tensor, allow_unused=True)]
        if guard:
            for item in [*guarded, upstream]:
                item.check()
        return [torch.zeros_like(leaf) if x is None else x for x, leaf in zip(results, [result, *leaves])]

    def triton(self, q, k, v, cu_q, cu_k, **options):
        with use_backend("triton"):
            return ops.attention(q, k, v, cu_q, cu_k, *self.longest, **options)


NAMES = ("output", "dq", "dk", "dv", "dbias")


def check(inputs: Inputs) -> None:
    exact = inputs.run(reference.attention, torch.float64)
    eager = inputs.run(reference.attention)
    actual = inputs.run(inputs.triton, guard=True)
    for name, mine, other, truth in zip(NAMES, actual, eager, exact):
        assert_as_accurate(mine, other.to(mine.dtype), truth, name)
