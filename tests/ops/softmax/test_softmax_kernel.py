"""The Triton softmax against float64 and eager torch: compiled on a GPU, or interpreted (TRITON_INTERPRET=1)."""

import math

import pytest
import torch
from accuracy import assert_as_accurate
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError
from fastbert.ops import reference
from fastbert.ops.dropout.arguments import quantized_attention

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.softmax import softmax as kernels

INTERPRETED = not torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]
DEVICE = "cpu" if INTERPRETED else "cuda"
GUARD = 8192  # more than a program's elements
SITE = 259

SHAPES = [
    pytest.param((2, 3, 5, 1), id="one-key"),
    pytest.param((3, 2, 7, 33), id="33-keys"),
    pytest.param((1, 1, 1, 127), id="one-row-127"),
    pytest.param((2, 2, 17, 128), id="128-keys"),
    pytest.param((2, 1, 35, 129), id="129-keys"),
    pytest.param((1, 2, 3, 1000), id="1000-keys"),
    pytest.param((5, 3, 1, 64), id="one-query"),
    pytest.param((1, 1, 3, 4100), id="4100-keys"),
    pytest.param((0, 2, 3, 4), id="no-sequence"),
    pytest.param((2, 2, 0, 4), id="no-query"),
    pytest.param((2, 2, 3, 0), id="no-key"),
]
DTYPES = [
    pytest.param(torch.float32, id="fp32"),
    pytest.param(torch.float16, id="fp16"),
    pytest.param(torch.bfloat16, id="bf16"),
]
MASKS = [
    pytest.param((), id="scalar"),
    pytest.param((40,), id="keys"),
    pytest.param((6, 40), id="queries-keys"),
    pytest.param((3, 1, 1, 40), id="padding"),
    pytest.param((3, 1, 6, 40), id="sequences-queries-keys"),
    pytest.param((1, 2, 1, 1), id="heads"),
    pytest.param((3, 1, 6, 1), id="queries"),
    pytest.param((3, 2, 6, 40), id="full"),
]


def random(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(spread).to(DEVICE)


def some(shape: tuple[int, ...], seed: int, share: float = 0.7) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share).to(DEVICE)


def keys_of(sequences: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (sequences,), generator=generator).to(DEVICE)


def run(backend: str, scores: torch.Tensor, gradient: torch.Tensor, **options) -> tuple[torch.Tensor, torch.Tensor]:
    leaf = scores.detach().requires_grad_()
    with use_backend(backend):
        result = ops.softmax(leaf, **options)
        (dscores,) = torch.autograd.grad(result, leaf, gradient.to(result.dtype))
    return result, dscores


def check(scores: torch.Tensor, seed: int, **options) -> tuple[torch.Tensor, torch.Tensor]:
    """Compare values and gradients with float64, by the tolerance rule; returns ours."""
    gradient = random(tuple(scores.shape), seed + 1).to(scores.dtype)
    actual = run("triton", scores, gradient, **options)
    expected = run("eager", scores, gradient, **options)
    exact = run("eager", scores.double(), gradient.double(), **options)
    for name, mine, other, truth in zip(("probabilities", "dscores"), actual, expected, exact):
        assert mine.is_contiguous()
        assert_as_accurate(mine, other, truth, name)
    return actual


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize(
    "shape", [(3, 3, 5, 33), (1, 1, 33, 128), (2, 1, 3, 4095), (1, 1, 2, 16385)], ids=lambda shape: f"{shape[3]}-keys"
)
@pytest.mark.parametrize("dropout_p", [0.0, 0.2], ids=["", "dropout"])
def test_writes_every_element_and_nothing_around(shape: tuple[int, ...], dropout_p: float, seed: int) -> None:
    size = math.prod(shape)

    def guarded(values: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        room = torch.full((size + 2 * GUARD,), math.nan, device=DEVICE)
        inner = room[GUARD:-GUARD].view(shape)
        return room, inner if values is None else inner.copy_(values)

    _, scores = guarded(random(shape, seed))
    _, gradient = guarded(random(shape, seed + 1))
    around_mask = torch.zeros(shape[0] * shape[3] + 2 * GUARD, dtype=torch.bool, device=DEVICE)
    mask = around_mask[GUARD:-GUARD].view(shape[0], 1, 1, shape[3])
    mask.copy_(some(tuple(mask.shape), seed, 0.9))
    key = keys_of(shape[0], seed) if dropout_p else None
    room_out, out = guarded()
    room_dscores, dscores = guarded()
    inputs = kernels.SoftmaxInputs(scores, mask, 0.5, key, *quantized_attention(dropout_p), SITE)
    kernels._launch(kernels.softmax_forward, inputs, out)
    kernels._launch(kernels.softmax_backward, inputs, dscores, gradient)
    for room, inner in ((room_out, out), (room_dscores, dscores)):
        assert inner.isfinite().all()
        assert room[:GUARD].isnan().all()
        assert room[-GUARD:].isnan().all()
    options = {"mask": mask, "scale": 0.5, "dropout_p": dropout_p, "dropout_key": key, "dropout_site": SITE}
    probabilities, expected = run("eager", scores, gradient, **options)
    torch.testing.assert_close(out, probabilities)
    torch.testing.assert_close(dscores, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3], ids=["", "dropout"])
def test_is_as_accurate_as_torch(shape: tuple[int, ...], dtype: torch.dtype, dropout_p: float, seed: int) -> None:
    mask = some((shape[0], 1, 1, shape[3]), seed)
    options = {"dropout_p": dropout_p, "dropout_key": keys_of(shape[0], seed), "dropout_site": SITE}
    check(random(shape, seed, 4.0).to(dtype), seed, mask=mask, scale=0.37, **options)


@pytest.mark.parametrize("dropout_p", [0.0, 0.1], ids=["", "dropout"])
@pytest.mark.parametrize("masked", [False, True], ids=["", "mask"])
def test_rows_that_do_not_fit_into_registers(dropout_p: float, masked: bool, seed: int) -> None:
    shape = (2, 1, 2, 16385)
    scores = random(shape, seed, 3.0)
    scores[0, 0, 0, :9000] = -math.inf  # the running maximum starts with a whole block of -inf
    scores[0, 0, 1] = -math.inf
    mask = some((2, 1, 1, 16385), seed) if masked else None
    check(scores, seed, mask=mask, dropout_p=dropout_p, dropout_key=keys_of(2, seed))


@pytest.mark.parametrize("form", MASKS)
def test_a_mask_broadcasts_in_every_form(form: tuple[int, ...], seed: int) -> None:
    check(random((3, 2, 6, 40), seed), seed, mask=some(form, seed))


def test_a_mask_may_lie_in_any_order_in_memory(seed: int) -> None:
    mask = some((40, 6, 3), seed).permute(2, 1, 0)[:, None]
    assert mask.stride(3) != 1
    scores = random((3, 2, 6, 40), seed)
    actual = check(scores, seed, mask=mask)
    same = check(scores, seed, mask=mask.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(actual, same))


@pytest.mark.parametrize("scale", [-0.5, 0.0, 1e-30, 30.0])
def test_scales(scale: float, seed: int) -> None:
    check(random((2, 2, 5, 70), seed), seed, scale=scale)


def test_rows_without_a_visible_key_give_zeros_and_take_no_gradient(seed: int) -> None:
    scores = random((3, 2, 4, 50), seed)
    scores[1] = -math.inf
    mask = torch.ones(3, 1, 4, 50, dtype=torch.bool, device=DEVICE)
    mask[0, 0, 2] = False
    scores[2, 0, 1, :30] = -math.inf
    mask[2, 0, 1, 30:] = False
    probabilities, dscores = check(scores, seed, mask=mask)
    for x in (probabilities, dscores):
        assert not x[0, :, 2].any()
        assert not x[1].any()
        assert not x[2, 0, 1].any()
    without_mask, _ = run("triton", scores, torch.ones_like(scores))
    assert not without_mask[1].any()


def test_a_nan_stays_in_its_row(seed: int) -> None:
    scores = random((1, 1, 5, 40), seed)
    clean, _ = run("triton", scores, scores)
    scores[0, 0, 2, 7] = math.nan
    scores[0, 0, 4, 9] = math.inf
    marked, _ = run("triton", scores, torch.ones_like(scores))
    assert marked[0, 0, [2, 4]].isnan().all()
    assert torch.equal(marked[0, 0, [0, 1, 3]], clean[0, 0, [0, 1, 3]])


@pytest.mark.parametrize("shape", [(3, 2, 5, 33), (2, 3, 2, 1000), (2, 1, 2, 16400)], ids=str)
@pytest.mark.parametrize("p", [1e-5, 0.1, 0.9])
def test_drops_what_the_oracle_drops(shape: tuple[int, ...], p: float, seed: int) -> None:
    key = keys_of(shape[0], seed)
    scores = torch.zeros(shape, device=DEVICE)
    gradient = random(shape, seed)
    options = {"dropout_p": p, "dropout_key": key, "dropout_site": SITE}
    probabilities, dscores = run("triton", scores, gradient, **options)
    masks = [reference.attention_dropout_mask(*shape[1:], p, sequence_key, SITE) for sequence_key in key]
    expected = torch.stack(masks) / shape[3]
    torch.testing.assert_close(probabilities.double(), expected, rtol=1e-6, atol=0.0)
    passed = torch.stack(masks) * gradient / shape[3]
    torch.testing.assert_close(
        dscores.double(), passed - passed.sum(-1, keepdim=True) / shape[3], rtol=1e-5, atol=1e-6 / shape[3]
    )


def test_without_keys_some_are_drawn_and_backward_drops_the_same(seed: int) -> None:
    scores = torch.zeros(4, 2, 32, 64, device=DEVICE, requires_grad=True)
    with use_backend("triton"):
        probabilities = ops.softmax(scores, dropout_p=0.5)
        (dscores,) = torch.autograd.grad(probabilities, scores, torch.ones_like(scores))
        again = ops.softmax(scores, dropout_p=0.5)
    positive = probabilities > 0
    assert 0.45 < positive.double().mean() < 0.55
    assert not torch.equal(positive, again > 0)
    # d/ds of the sum of what is kept: p * (2 kept - 2 sum p kept), above zero exactly where more than average is kept.
    share = positive.double().mean(-1, keepdim=True)
    torch.testing.assert_close(dscores.double(), (2 * positive - 2 * share) / 64, rtol=1e-5, atol=1e-7)


def test_a_sequence_does_not_depend_on_its_neighbours(seed: int) -> None:
    scores, gradient, key = random((5, 3, 7, 100), seed), random((5, 3, 7, 100), seed + 1), keys_of(5, seed)
    together = run("triton", scores, gradient, dropout_p=0.2, dropout_key=key)
    alone = run("triton", scores[3:4], gradient[3:4], dropout_p=0.2, dropout_key=key[3:4])
    assert all(torch.equal(a[3:4], b) for a, b in zip(together, alone))


@pytest.mark.parametrize("gap", [0, 1, 24], ids=lambda gap: f"gap-{gap}")
def test_rows_may_lie_apart_and_in_any_order(gap: int, seed: int) -> None:
    room = torch.full((6, 2, 3, 40 + gap), math.nan, device=DEVICE)
    scores = room.permute(2, 1, 0, 3)[..., :40]  # (3, 2, 6, 40)
    scores.copy_(random((3, 2, 6, 40), seed))
    other = room.clone().permute(2, 1, 0, 3)[..., :40]
    gradient = other.copy_(random((3, 2, 6, 40), seed + 1))
    apart = run("triton", scores, gradient)
    together = run("triton", scores.contiguous(), gradient.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(apart, together))


def test_an_expanded_gradient(seed: int) -> None:
    scores = random((2, 2, 3, 40), seed)
    gradient = random((2, 2, 3, 1), seed).expand(2, 2, 3, 40)
    actual = run("triton", scores, gradient)
    same = run("triton", scores, gradient.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(actual, same))


@pytest.mark.parametrize("with_all", [False, True], ids=["bare", "mask-and-dropout"])
def test_the_operators_keep_their_promises(with_all: bool, seed: int) -> None:
    scores = random((2, 2, 3, 40), seed).requires_grad_()
    mask, key = (some((2, 1, 1, 40), seed), keys_of(2, seed)) if with_all else (None, None)
    arguments = (scores, mask, 0.5, 0.1 if with_all else 0.0, key, 3, "triton")
    torch.library.opcheck(torch.ops.fastbert.softmax.default, arguments)
    arguments = (random((2, 2, 3, 40), seed + 1), scores.detach(), *arguments[1:])
    torch.library.opcheck(torch.ops.fastbert.softmax_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_sequences(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(scores, mask, key):
        return ops.softmax(scores * 2.0, mask, scale=0.5, dropout_p=0.1, dropout_key=key, dropout_site=SITE) + 1.0

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for sequences in (3, 4, 7):  # no other axis' sizes: torch would take two that are equal for one
            shape = (sequences, 2, 5, 33)
            leaf = random(shape, seed).requires_grad_()
            arguments = (some((sequences, 1, 1, 33), seed), keys_of(sequences, seed))
            gradient = random(shape, seed + 1)
            results = [f(leaf, *arguments) for f in (compiled, function)]
            gradients = [torch.autograd.grad(result, leaf, gradient)[0] for result in results]
            assert torch.equal(*results)
            assert torch.equal(*gradients)
    assert counter.frame_count == 1


def test_refuses_what_it_does_not_serve(seed: int) -> None:
    with use_backend("triton"):
        with pytest.raises(UserError, match=r"float64, not bfloat16, .*use_backend\('eager'\) does"):
            ops.softmax(random((1, 1, 2, 3), seed).double())
        with pytest.raises(UserError, match=r"strides .* must be contiguous; call scores\.contiguous\(\)"):
            ops.softmax(random((1, 1, 3, 4), seed).transpose(2, 3))
