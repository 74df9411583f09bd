"""The Triton vocabulary matmul with its loss against float64 and eager torch: compiled, or interpreted on a CPU."""

import math

import pytest
import torch
from accuracy import assert_as_accurate
from cross_entropy_kernels import DEVICE, DTYPES, HALF, IGNORED, INTERPRETED, NAMES, check, exactly, inputs, run
from guards import Guarded

from fastbert import ops, use_backend
from fastbert.errors import UserError

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy as kernels

# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]

SHAPES = [
    pytest.param(1, 33, 8, id="one-row"),
    pytest.param(5, 1, 8, id="one-label"),
    pytest.param(6, 1024, 96, id="one-block"),
    pytest.param(7, 2049, 24, id="odd-vocabulary"),
    pytest.param(3, 5003, 33, id="three-blocks"),
]
# In half precision the worst error of few elements is luck, for eager torch as for us.
HALF_SHAPES = [pytest.param(40, 100, 64, id="small"), pytest.param(24, 2049, 48, id="odd-vocabulary")]


# The first test: the interpreter writes wherever it is told to, and without guards that ends in a crash.
@pytest.mark.parametrize(("rows", "vocabulary"), [(3, 33), (2, 2049)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_every_element_and_nothing_around(
    rows: int, vocabulary: int, dtype: torch.dtype, seed: int, monkeypatch
) -> None:
    device = torch.device(DEVICE)
    x, weight, bias, labels = inputs(rows, vocabulary, 8, seed, dtype)
    guarded = []
    empty = torch.empty

    def with_guards(*size, dtype=None, device=None):
        shape = size[0] if isinstance(size[0], tuple | torch.Size) else size
        if not dtype.is_floating_point or not math.prod(shape):
            return empty(*size, dtype=dtype, device=device)
        guarded.append(Guarded(torch.full(shape, math.nan, dtype=dtype), device))
        return guarded[-1].tensor

    read = [Guarded(tensor, device) for tensor in (x, weight, bias)]
    monkeypatch.setattr(torch, "empty", with_guards)
    actual = kernels.forward(
        kernels.LossInputs(*(guarded.tensor for guarded in read), labels, IGNORED, 0.1, 1e-3, True, True, True)
    )
    monkeypatch.undo()
    assert len(guarded) >= 4  # losses, logits, dx, dweight
    for one in (*read, *guarded):
        one.check()
    assert all(tensor.isfinite().all() for tensor in actual)


OPTIONS = pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "z_loss": 1e-2}], ids=["", "smoothing-and-z-loss"]
)


@pytest.mark.parametrize(("rows", "vocabulary", "width"), SHAPES)
@OPTIONS
def test_is_as_accurate_as_torch(rows: int, vocabulary: int, width: int, options: dict, seed: int) -> None:
    check(inputs(rows, vocabulary, width, seed), **options)


@pytest.mark.parametrize(("rows", "vocabulary", "width"), HALF_SHAPES)
@pytest.mark.parametrize("dtype", HALF)
@OPTIONS
def test_is_as_accurate_as_torch_in_half_precision(
    rows: int, vocabulary: int, width: int, dtype: torch.dtype, options: dict, seed: int
) -> None:
    check(inputs(rows, vocabulary, width, seed, dtype), 0.5, **options)


@pytest.mark.parametrize("dtype", HALF)
def test_the_upstream_gradient_costs_one_rounding(dtype: torch.dtype, seed: int) -> None:
    """Half-precision gradients are stored before it is known; a power of two, as above, rounds nothing."""
    tensors = inputs(20, 60, 32, seed, dtype)
    _, ones = run("triton", tensors, 1.0)
    _, scaled = run("triton", tensors, 0.37)
    for name, one, actual in zip(NAMES, ones, scaled):
        exact = one.double() * 0.37
        # The gradient of the weight and of the bias are stored in fp32: one's own rounding is in the comparison.
        error = (actual.double() - exact).abs() / exact.abs().clamp(min=torch.finfo(dtype).tiny)
        assert error.max() <= torch.finfo(dtype).eps * (0.5 if name == "dx" else 1.0) * 1.01, name


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_are_as_accurate_as_torch(dtype: torch.dtype, seed: int) -> None:
    """Row by row: a sum is at times right by luck."""
    options = {"label_smoothing": 0.1, "z_loss": 1e-2}
    x, weight, bias, labels = inputs(40, 100, 16, seed, dtype)
    labels %= 100
    losses, _, _ = exactly((x, weight, bias, labels), **options)
    by_row = []
    for backend in ("triton", "eager"):
        with use_backend(backend):
            rows = [ops.linear_cross_entropy(x[i, None], weight, bias, labels[i, None], **options) for i in range(40)]
        by_row.append(torch.stack([row.loss_sum for row in rows]))
    # Logits in half precision are rounded: by luck the worst of forty rows is up to 2.2 times eager's.
    factor = 2.0 if dtype == torch.float32 else 3.0
    assert_as_accurate(*by_row, losses.detach(), "loss", factor=factor)


@pytest.mark.parametrize(
    "options",
    [{"label_smoothing": 0.3}, {"label_smoothing": 1.0}, {"z_loss": 0.5}, {"ignore_index": 3}],
    ids=lambda options: "-".join(f"{name}-{value}" for name, value in options.items()),
)
def test_options_alone(options: dict, seed: int) -> None:
    tensors = inputs(8, 70, 12, seed)
    tensors[3][tensors[3] == IGNORED] = 3
    check(tensors, **options)


@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_bias(dtype: torch.dtype, seed: int) -> None:
    x, weight, _, labels = inputs(40, 100, 16, seed, dtype)
    check((x, weight, None, labels), 0.5, label_smoothing=0.1)


@pytest.mark.parametrize("rows", [0, 5], ids=["no-row", "all-ignored"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_without_a_label_the_loss_and_the_gradients_are_zero(rows: int, dtype: torch.dtype, seed: int) -> None:
    x, weight, bias, labels = inputs(rows, 50, 8, seed, dtype)
    labels.fill_(IGNORED)
    actual, gradients = run("triton", (x, weight, bias, labels), label_smoothing=0.1, z_loss=1.0)
    assert actual.loss_sum == actual.count == actual.correct == 0
    for gradient, tensor in zip(gradients, (x, weight, bias)):
        assert gradient.shape == tensor.shape
        assert gradient.dtype == dtype
        assert not gradient.any()


def test_counts_what_is_right_and_of_equal_logits_takes_the_first(seed: int) -> None:
    x, weight, bias, labels = inputs(8, 3000, 16, seed)
    exact = (x @ weight.T + bias).argmax(-1)
    labels[[0, 3, 5]] = exact[[0, 3, 5]]
    labels[2] = IGNORED
    weight[2500], bias[2500] = 0.0, 1000.0  # the highest everywhere, and then its equals at both sides
    weight[17], bias[17] = 0.0, 1000.0
    weight[2999], bias[2999] = 0.0, 1000.0
    labels[[0, 1, 4, 7]] = torch.tensor([17, 2500, 17, 2999], device=DEVICE)
    with use_backend("triton"):
        tied = ops.linear_cross_entropy(x, weight, bias, labels)
    assert tied.correct == 2
    plain = inputs(8, 3000, 16, seed)
    plain[3][[0, 3, 5]] = exact[[0, 3, 5]]
    with use_backend("triton"):
        actual = ops.linear_cross_entropy(*plain)
    assert actual.correct == int(exactly(plain)[1].sum()) >= 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_several_chunks_are_one(dtype: torch.dtype, seed: int, monkeypatch) -> None:
    tensors = inputs(40, 100, 32, seed, dtype)
    options = {"label_smoothing": 0.1, "z_loss": 1e-2}
    whole, together = run("triton", tensors, 0.5, **options)
    monkeypatch.setattr(kernels, "plan", lambda rows, vocabulary, element_size, copied_bytes: 16)
    actual, gradients = run("triton", tensors, 0.5, **options)
    _, others = run("eager", tensors, 0.5, **options)
    _, _, exact = exactly(tensors, 0.5, **options)
    for name, mine, other, truth in zip(NAMES, gradients, others, exact):
        assert_as_accurate(mine, other, truth, name)
    assert actual.correct == whole.correct
    torch.testing.assert_close(actual.loss_sum, whole.loss_sum)
    torch.testing.assert_close(gradients[0], together[0])


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("several", [False, True], ids=["one-chunk", "chunks"])
def test_under_autocast(dtype: torch.dtype, several: bool, seed: int, monkeypatch) -> None:
    if several:
        monkeypatch.setattr(kernels, "plan", lambda rows, vocabulary, element_size, copied_bytes: 16)
    x, weight, bias, labels = inputs(40, 100, 32, seed, dtype)
    x, weight, bias = x.float(), weight.float(), bias.float()
    _, _, exact = exactly((x, weight, bias, labels), 0.5, label_smoothing=0.1)
    for x_dtype in (torch.float32, dtype):
        tensors = (x.to(x_dtype), weight, bias, labels)
        with torch.autocast(DEVICE, dtype=dtype):
            result, actual = run("triton", tensors, 0.5, label_smoothing=0.1)
            _, expected = run("eager", tensors, 0.5, label_smoothing=0.1)
        assert result.loss_sum.dtype == torch.float32
        for name, mine, other, truth in zip(NAMES, actual, expected, exact):
            assert_as_accurate(mine, other, truth, name)
        assert actual[0].dtype == x_dtype
        assert actual[1].dtype == actual[2].dtype == torch.float32


def test_small_gradients_survive_in_fp16(seed: int) -> None:
    """Probabilities of 1e-8, which fp16 rounds to 0: the weights of such labels still get a gradient."""
    x, weight, bias, labels = inputs(4, 300, 8, seed)
    bias[200:] -= 17.0
    _, _, exact = exactly((x, weight, bias, labels), 1.0)
    with torch.autocast(DEVICE, dtype=torch.float16):
        _, (_, _, dbias) = run("triton", (x, weight, bias, labels), 1.0)
    far = slice(200, None)
    assert (dbias[far] != 0).double().mean() > (exact[2][far].float().half() != 0).double().mean()


def test_a_row_does_not_depend_on_its_neighbours(seed: int) -> None:
    x, weight, bias, labels = inputs(5, 100, 8, seed)
    x[0] = math.nan
    x[2] = math.nan  # a row without a label
    actual, (dx, _, _) = run("triton", (x, weight, bias, labels), 1.0)
    assert actual.loss_sum.isnan()
    assert dx[0].isnan().all()
    assert not dx[2].any()
    _, (alone, _, _) = run("triton", (x[3:], weight, bias, labels[3:]), 1.0)
    torch.testing.assert_close(dx[3:], alone)


def test_logits_of_minus_infinity_and_far_from_zero(seed: int) -> None:
    x, weight, bias, labels = inputs(6, 2200, 16, seed)
    bias[:2100] = -math.inf  # the first whole block
    bias[2100:] += 3000.0
    labels[labels != IGNORED] = 2150
    actual, gradients = run("triton", (x, weight, bias, labels))
    losses, _, exact = exactly((x, weight, bias, labels))
    torch.testing.assert_close(actual.loss_sum.double(), losses.sum().detach(), rtol=1e-4, atol=1e-3)
    for gradient, truth in zip(gradients, exact):
        torch.testing.assert_close(gradient.double(), truth, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 64, 70, 2**40, -(2**31) - 5], ids=str)
def test_a_label_outside_the_vocabulary_is_nan_and_reads_nothing(wrong: int, seed: int, monkeypatch) -> None:
    monkeypatch.delenv("FASTBERT_DEBUG", raising=False)
    x, weight, bias, labels = inputs(5, 64, 8, seed)
    labels[1] = wrong
    actual, (dx, dweight, dbias) = run("triton", (x, weight, bias, labels))
    assert actual.loss_sum.isnan()
    assert actual.count == 4
    assert dx[1].isnan().all()
    assert dx[[0, 2, 3, 4]].isfinite().all()
    assert dweight.isnan().any()
    assert dbias.isnan().any()
    monkeypatch.setenv("FASTBERT_DEBUG", "1")
    for backend in ("triton", "eager"):
        with pytest.raises(UserError, match=rf"labels\[1\]={wrong} is not in the vocabulary of 64 labels"):
            run(backend, (x, weight, bias, labels))
    labels[1] = IGNORED
    run("triton", (x, weight, bias, labels))
