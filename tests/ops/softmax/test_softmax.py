"""Softmax over explicit scores: eager torch against the oracle, wrong arguments, compiled graphs.

The Triton kernels have their tests in test_softmax_kernel.py.
"""

import math

import pytest
import torch
from accuracy import assert_as_accurate
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference


def random(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def keys_of(sequences: int, seed: int) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), generator=torch.Generator().manual_seed(seed))


def oracle(scores, mask=None, *, scale=1.0, dropout_p=0.0, dropout_key=None, dropout_site=0):
    """Exponentials over their sum, term by term; rows without a visible key have no term and no sum."""
    seen = scores != -math.inf
    if mask is not None:
        seen = seen & mask
    shifted = torch.where(seen, scores * scale, -math.inf)
    highest = shifted.detach().amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    terms = torch.where(seen, (torch.where(seen, shifted, 0.0) - highest).exp(), 0.0)
    total = terms.sum(-1, keepdim=True)
    probabilities = terms / torch.where(total == 0, 1.0, total)
    if dropout_p:
        shape = scores.shape[1:]
        masks = [reference.attention_dropout_mask(*shape, dropout_p, key, dropout_site) for key in dropout_key]
        probabilities = probabilities * torch.stack(masks).to(scores.dtype)
    return probabilities


def run(function, scores, gradient, **options):
    leaf = scores.detach().requires_grad_()
    result = function(leaf, **options)
    return result, torch.autograd.grad(result, leaf, gradient.to(result.dtype))[0]


@pytest.mark.parametrize("form", [None, (33,), (5, 33), (3, 1, 1, 33), (3, 2, 5, 33), (1, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3], ids=["", "dropout"])
def test_equals_the_oracle_in_float64(form: tuple[int, ...] | None, dropout_p: float, seed: int) -> None:
    scores, gradient = random((3, 2, 5, 33), seed), random((3, 2, 5, 33), seed + 1)
    mask = None if form is None else random(form, seed + 2) > -0.5
    options = {"mask": mask, "scale": 0.7, "dropout_p": dropout_p, "dropout_key": keys_of(3, seed), "dropout_site": 9}
    for actual, expected in zip(
        run(ops.softmax, scores, gradient, **options), run(oracle, scores, gradient, **options)
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_keys_of_dropout_need_not_lie_side_by_side(dtype: torch.dtype, seed: int) -> None:
    scores, key = random((3, 2, 5, 33), seed, dtype), keys_of(3, seed)
    apart = torch.stack([key, key + 1], 1)[:, 0]
    expected = ops.softmax(scores, dropout_p=0.3, dropout_key=key)
    assert torch.equal(ops.softmax(scores, dropout_p=0.3, dropout_key=apart), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=["fp32", "fp16", "bf16"])
def test_is_as_accurate_as_torch(dtype: torch.dtype, seed: int) -> None:
    scores, gradient = random((2, 3, 9, 129), seed, dtype), random((2, 3, 9, 129), seed + 1, dtype)

    def eager(scores):
        return (scores * 0.3).softmax(-1)

    exact = run(eager, scores.double(), gradient)
    for mine, other, truth in zip(
        run(ops.softmax, scores, gradient, scale=0.3), run(eager, scores, gradient), exact, strict=True
    ):
        assert_as_accurate(mine, other, truth)


@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_rows_without_a_visible_key_give_zeros_and_take_no_gradient(masked: bool, seed: int) -> None:
    scores, gradient = random((3, 2, 4, 6), seed), random((3, 2, 4, 6), seed + 1)
    scores[1] = -math.inf
    mask = None
    unseen = torch.zeros(3, 2, 4, dtype=torch.bool)
    unseen[1] = True
    if masked:
        mask = torch.ones(3, 1, 4, 6, dtype=torch.bool)
        mask[0, 0, 2] = False
        mask[2, 0, 1, 3:] = False
        scores[2, 0, 1, :3] = -math.inf
        unseen[0, :, 2] = unseen[2, 0, 1] = True
    probabilities, dscores = run(ops.softmax, scores, gradient, mask=mask)
    assert not probabilities[unseen].any()
    assert not dscores[unseen].any()
    torch.testing.assert_close(probabilities.sum(-1), (~unseen).double())
    for actual, expected in zip((probabilities, dscores), run(oracle, scores, gradient, mask=mask)):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-14)


def test_a_nan_is_not_taken_for_a_row_without_keys(seed: int) -> None:
    scores = random((1, 1, 3, 4), seed)
    scores[0, 0, 1, 2] = math.nan
    scores[0, 0, 2] = -math.inf
    probabilities = ops.softmax(scores)[0, 0]
    assert probabilities[1].isnan().all()
    assert torch.equal(probabilities[2], torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.5], ids=["", "dropout"])
def test_nothing_in_nothing_out(shape: tuple[int, ...], dropout_p: float) -> None:
    scores = torch.zeros(shape)
    mask = torch.ones(shape, dtype=torch.bool)
    probabilities, dscores = run(ops.softmax, scores, scores, mask=mask, dropout_p=dropout_p)
    assert probabilities.shape == dscores.shape == shape


def test_dropout_without_keys_draws_new_ones() -> None:
    scores = torch.zeros(4, 2, 16, 64)
    first, second = (ops.softmax(scores, dropout_p=0.5) > 0 for _ in range(2))
    assert 0.4 < first.double().mean() < 0.6
    assert not torch.equal(first, second)


@pytest.mark.parametrize("with_all", [False, True], ids=["bare", "mask-and-dropout"])
def test_the_operators_keep_their_promises(with_all: bool, seed: int) -> None:
    scores = random((2, 2, 3, 5), seed).requires_grad_()
    mask, key = (random((2, 1, 1, 5), seed) > 0, keys_of(2, seed)) if with_all else (None, None)
    arguments = (scores, mask, 0.5, 0.1 if with_all else 0.0, key, 3, "eager")
    torch.library.opcheck(torch.ops.fastbert.softmax.default, arguments)
    arguments = (random((2, 2, 3, 5), seed + 1), scores.detach(), *arguments[1:])
    torch.library.opcheck(torch.ops.fastbert.softmax_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_sequences(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(scores, mask, key):
        return ops.softmax(scores * 2.0, mask, scale=0.5, dropout_p=0.1, dropout_key=key) + 1.0

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    for sequences in (3, 4, 7):  # no other axis' sizes: torch would take two that are equal for one
        shape = (sequences, 2, 5, 9)
        leaf = random(shape, seed).requires_grad_()
        arguments = (random((sequences, 1, 1, 9), seed) > 0, keys_of(sequences, seed))
        results = [f(leaf, *arguments) for f in (compiled, function)]
        gradients = [torch.autograd.grad(result, leaf, random(shape, seed + 1))[0] for result in results]
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    assert counter.frame_count == 1


SCORES = torch.zeros(2, 3, 4, 5)
WRONG = [
    pytest.param({"scores": torch.zeros(2, 3, 4)}, r"scores must be .*\(2, 3, 4\)", id="three-axes"),
    pytest.param({"scores": SCORES.long()}, r"scores must be floating .* torch.int64", id="integers"),
    pytest.param({"mask": torch.ones(4, 5)}, "mask has dtype torch.float32: it must be bool", id="mask-dtype"),
    pytest.param({"mask": torch.ones(4, 4).bool()}, r"mask has shape \(4, 4\).*\(2, 3, 4, 5\)", id="mask-shape"),
    pytest.param({"mask": torch.ones(1, 2, 3, 4, 5).bool()}, r"mask has shape \(1, 2, 3, 4, 5\)", id="mask-axes"),
    pytest.param({"mask": torch.ones(5, device="meta").bool()}, "mask is on meta, scores on cpu", id="mask-device"),
    pytest.param({"scale": math.nan}, "scale=nan must be a finite", id="scale"),
    pytest.param({"dropout_site": -1}, "dropout_site=-1 must be at least 0", id="site"),
    pytest.param({"dropout_p": 1.0}, "dropout_p=1.0 must be at least 0 and below 1", id="p-one"),
    pytest.param({"dropout_p": -0.1}, "dropout_p=-0.1 must be", id="p-negative"),
    pytest.param(
        {"dropout_p": 0.1, "dropout_key": torch.zeros(2)},
        r"dropout_key must be int64 of shape \(2,\), .* torch.float32",
        id="key-dtype",
    ),
    pytest.param(
        {"dropout_p": 0.1, "dropout_key": torch.zeros(3).long()}, r"dropout_key .* torch.int64 \(3,\)", id="key-shape"
    ),
    pytest.param(
        {"dropout_p": 0.1, "dropout_key": torch.zeros(2, device="meta").long()},
        "dropout_key is on meta",
        id="key-device",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_argument_is_named(wrong: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ops.softmax(**({"scores": SCORES} | wrong))


def test_triton_refuses_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with use_backend("triton"), pytest.raises(UserError, match="scores is on cpu: the triton backend needs"):
        ops.softmax(SCORES)


@pytest.mark.parametrize("name", ["native", "eager"])
def test_nothing_in_of_any_strides(name: str) -> None:
    with use_backend(name):
        assert ops.softmax(torch.empty(0, 2, 9, 5).transpose(2, 3)).shape == (0, 2, 5, 9)


def test_transforms_and_recorded_calls_do_not_read_results(seed: int) -> None:
    """Rows without a visible key are found without a value, which vmap, make_fx and fake tensors do not have."""
    scores, mask = random((2, 3, 1, 4, 5), seed, torch.float32), torch.tensor([False, True, True, False, True])
    mask = mask.expand(4, 5) & torch.tensor([[True], [True], [False], [True]])
    expected = torch.stack([ops.softmax(row, mask) for row in scores])
    assert torch.equal(expected[..., 2, :], torch.zeros(2, 3, 1, 5))
    torch.testing.assert_close(torch.func.vmap(lambda row: ops.softmax(row, mask))(scores), expected)
    graph = make_fx(lambda row: ops.softmax(row, mask))(torch.zeros(3, 1, 4, 5))
    torch.testing.assert_close(graph(scores[0]), expected[0])
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert ops.softmax(mode.from_tensor(scores[0]), mask).shape == expected[0].shape
