"""Inputs for tests of the Triton loss, and their comparison with float64."""

import math

import pytest
import torch
from accuracy import assert_as_accurate

from fastbert import ops, use_backend
from fastbert.ops import reference

INTERPRETED = not torch.cuda.is_available()
DEVICE = "cpu" if INTERPRETED else "cuda"
IGNORED = -100
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]
HALF = DTYPES[1:]
NAMES = ("dx", "dweight", "dbias")


def inputs(
    rows: int, vocabulary: int, width: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """x, weight, bias and labels, every fourth row without a label.

    In half precision logits spread less: else few labels have all the probability, and with it the rounding errors.
    """
    spread = 3.0 if dtype == torch.float32 else 1.0
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) * spread / math.sqrt(width)
    bias = torch.randn(vocabulary, generator=generator) * spread / 3
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[2::4] = IGNORED
    return (*(tensor.to(dtype).to(DEVICE) for tensor in (x, weight, bias)), labels.to(DEVICE))


def run(backend: str, tensors: tuple[torch.Tensor | None, ...], upstream: float = 0.37, **options):
    """The result, and the gradients of x, weight and bias, where there is a bias."""
    *operands, labels = tensors
    leaves = [None if tensor is None else tensor.detach().requires_grad_() for tensor in operands]
    with use_backend(backend):
        actual = ops.linear_cross_entropy(*leaves, labels, **options)
        differentiable = [leaf for leaf in leaves if leaf is not None]
        return actual, torch.autograd.grad(actual.loss_sum, differentiable, actual.loss_sum.new_tensor(upstream))


def exactly(
    tensors, upstream: float = 0.37, *, label_smoothing: float = 0.0, z_loss: float = 0.0, ignore_index=IGNORED
):
    """Losses by row, their labels right or not, and the gradients, in float64."""
    x, weight, bias, labels = tensors
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias) if tensor is not None]
    logits = leaves[0] @ leaves[1].T
    if bias is not None:
        logits = logits + leaves[2]
    kept = labels != ignore_index
    losses = reference.cross_entropy(logits[kept], labels[kept], label_smoothing)
    losses = losses + z_loss * reference.z_loss(logits[kept])
    right = (logits.argmax(-1) == labels) & kept
    return losses, right, torch.autograd.grad(losses.sum() * upstream, leaves)


def check(tensors: tuple[torch.Tensor | None, ...], upstream: float = 0.37, **options):
    """Compare with float64: the gradients by the tolerance rule, the sum of losses within rounding; returns ours."""
    losses, _, exact = exactly(tensors, upstream, **options)
    actual, gradients = run("triton", tensors, upstream, **options)
    expected, others = run("eager", tensors, upstream, **options)
    for name, mine, other, truth in zip(NAMES, gradients, others, exact, strict=False):
        assert_as_accurate(mine, other, truth, name)
    half = tensors[0].dtype.itemsize == 2
    torch.testing.assert_close(actual.loss_sum.double(), losses.sum().detach(), rtol=1e-2 if half else 1e-5, atol=1e-4)
    assert actual.loss_sum.dtype == torch.float32
    assert actual.count.dtype == actual.correct.dtype == torch.int64
    assert actual.count == expected.count == len(losses)
    return actual, gradients
