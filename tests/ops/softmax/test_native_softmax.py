"""Dropout and gradients of the C++ softmax of CPUs at every dispatch level, against float64 and eager torch."""

import math
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from fences import Fenced
from rowwise_kernels import DTYPES, LEVELS, NAMES, Draw, check
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.ops.dropout.arguments import quantized_attention


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs at every level that this processor has."""
    with cpu_kernels.running(request.param):
        yield request.param


def run(
    scores: Tensor, mask: Tensor | None, grad: Tensor, p: float, key: Tensor | None, backend: str | None = "native"
) -> tuple[Tensor, Tensor]:
    """The probabilities, and the gradient of the scores."""
    leaf = scores.detach().requires_grad_()
    with use_backend(backend):  # type: ignore[arg-type]
        y = ops.softmax(leaf, mask, scale=-0.7, dropout_p=p, dropout_key=key, dropout_site=9)
        (dscores,) = torch.autograd.grad(y, leaf, grad.to(y.dtype))
    return y.detach(), dscores


def key_of(sequences: int, seed: int) -> Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), generator=torch.Generator().manual_seed(seed))


@sweep("dtype", DTYPES)
@sweep("p", [0.0, 0.1, 0.6])
@sweep("shape", [(0, 2, 3, 5), (2, 3, 5, 1), (3, 2, 7, 33), (1, 1, 65, 200), (2, 1, 1, 4097)])
@sweep("masked", [False, True], ids=["", "mask"])
def test_gradients_are_as_accurate_as_torchs(
    dtype: torch.dtype, p: float, shape: tuple[int, ...], masked: bool, seed: int
) -> None:
    draw, key = Draw(seed), key_of(shape[0], seed)
    scores, grad = draw.normal(*shape, dtype=dtype), draw.normal(*shape, dtype=dtype)
    mask = draw.normal(shape[0], 1, shape[2], shape[3]) > -0.5 if masked else None
    actual, eager = run(scores, mask, grad, p, key), run(scores, mask, grad, p, key, "eager")
    exact = run(scores.double(), mask, grad.double(), p, key, "eager")
    for name, a, b, c in zip(("probabilities", "dscores"), actual, eager, exact, strict=True):
        check(a, b, c, name)


def test_dropout_without_a_gradient_is_the_same(seed: int) -> None:
    scores, key = Draw(seed).normal(3, 2, 7, 70), key_of(3, seed)
    expected = run(scores, None, scores, 0.3, key)[0]
    with use_backend("native"), torch.no_grad():
        assert torch.equal(ops.softmax(scores, scale=-0.7, dropout_p=0.3, dropout_key=key, dropout_site=9), expected)
    with use_backend("eager"):
        eager = ops.softmax(scores, scale=-0.7, dropout_p=0.3, dropout_key=key, dropout_site=9)
    assert torch.equal(eager == 0.0, expected == 0.0)


def test_rows_without_a_key_have_no_gradient(seed: int) -> None:
    draw = Draw(seed)
    scores, grad, mask = draw.normal(1, 1, 4, 37), draw.normal(1, 1, 4, 37), torch.ones(4, 37, dtype=torch.bool)
    scores[0, 0, 1], mask[2] = math.inf, False
    y, dscores = run(scores, mask, grad, 0.0, None)  # scaled by a negative number
    assert (y[0, 0, [1, 2]] == 0.0).all()
    assert (dscores[0, 0, [1, 2]] == 0.0).all()
    assert dscores[0, 0, [0, 3]].any(-1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_same_bits_on_every_run_and_any_threads(dtype: torch.dtype, seed: int) -> None:
    draw, key = Draw(seed), key_of(2, seed)
    scores, grad = draw.normal(2, 3, 129, 300, dtype=dtype), draw.normal(2, 3, 129, 300, dtype=dtype)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, again = run(scores, None, grad, 0.1, key), run(scores, None, grad, 0.1, key)
        torch.set_num_threads(1)
        alone = run(scores, None, grad, 0.1, key)
    finally:
        torch.set_num_threads(threads)
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_scores_masks_and_gradients_of_any_strides(seed: int) -> None:
    draw, key = Draw(seed), key_of(3, seed)
    scores, grad = draw.normal(3, 5, 2, 33), draw.normal(3, 5, 2, 33)
    mask = draw.normal(33, 2).t() > -1.0
    for form in (
        lambda x: x.transpose(1, 2), lambda x: x.transpose(2, 3)[..., :2], lambda x: x[..., 1:30],
        lambda x: x[:, :1].expand(3, 4, 2, 33), lambda x: x[..., :1].expand(3, 5, 2, 33),
    ):  # fmt: skip
        one, g = form(scores), form(grad)
        seen = mask if one.shape[2:] == mask.shape else None
        whole = None if seen is None else seen.contiguous()
        for a, b in zip(run(one, seen, g, 0.1, key), run(one.contiguous(), whole, g.contiguous(), 0.1, key)):
            assert torch.equal(a, b)


@sweep("behind", [True, False], ids=["behind", "before"])
@sweep("dtype", DTYPES)
@sweep("keys", [1, 7, 33, 771])
def test_nothing_outside_is_touched(behind: bool, dtype: torch.dtype, keys: int, seed: int) -> None:
    draw, key = Draw(seed), Fenced(key_of(1, seed), behind)
    scores, grad, out = (Fenced(draw.normal(5, keys, dtype=dtype), behind) for _ in range(3))
    mask = Fenced(draw.normal(5, keys) > -0.5, behind)
    dropout = (key.address, 9, *quantized_attention(0.3))
    strides = (5 * keys, 5 * keys, keys, 1)
    call = ((1, 1, 5, keys), NAMES[dtype], scores.address, strides, mask.address, strides, -0.7, dropout)
    tensors = [x.tensor[None, None] for x in (scores, mask, grad)]
    expected = run(*tensors, 0.3, key.tensor)
    _C.softmax(*call, out.address)
    assert torch.equal(out.tensor, expected[0][0, 0])
    _C.softmax_backward(*call, grad.address, out.address)
    assert torch.equal(out.tensor, expected[1][0, 0])


def test_is_chosen_where_a_gradient_is_wanted(seed: int) -> None:
    draw, key = Draw(seed), key_of(3, seed)
    scores, grad = draw.normal(3, 2, 7, 33), draw.normal(3, 2, 7, 33)
    for chosen, native in zip(run(scores, None, grad, 0.1, key, None), run(scores, None, grad, 0.1, key)):
        assert torch.equal(chosen, native)


def test_the_operators_keep_their_promises(level: str, seed: int) -> None:
    if level != "portable":
        pytest.skip("what is asked is of Python, so one level is enough")
    draw, key = Draw(seed), key_of(2, seed)
    scores, grad, mask = draw.normal(2, 2, 3, 9), draw.normal(2, 2, 3, 9), draw.normal(3, 9) > -0.5
    for arguments in ((mask, 0.7, 0.3, key, 9, "native"), (None, 0.7, 0.0, None, 0, "native")):
        leaf = scores.clone().requires_grad_()
        torch.library.opcheck(torch.ops.fastbert.softmax.default, (leaf, *arguments))
        torch.library.opcheck(torch.ops.fastbert.softmax_backward.default, (grad, scores, *arguments))
