"""The vocabulary matmul with its loss on CPUs, at every level, against float64 and eager torch."""

import math
from collections.abc import Iterator

import cpu_kernels
import pytest
import torch
from accuracy import assert_as_accurate
from fences import Fenced
from sweeps import sweep
from torch import Tensor

from fastbert import _C, ops, use_backend
from fastbert.errors import UserError
from fastbert.ops.cross_entropy import native as native_loss

IGNORED = -100
SHAPES = [
    pytest.param(1, 33, 8, id="one-row"),
    pytest.param(5, 1, 8, id="one-label"),
    pytest.param(7, 2049, 24, id="odd-vocabulary"),
    pytest.param(40, 100, 64, id="small"),
    pytest.param(130, 515, 40, id="two-chunks"),
]
OPTIONS = [
    pytest.param({}, id="plain"),
    pytest.param({"label_smoothing": 0.2}, id="smoothing"),
    pytest.param({"z_loss": 0.01}, id="z-loss"),
    pytest.param({"label_smoothing": 0.1, "z_loss": 0.02}, id="both"),
]


@pytest.fixture(params=[name for name in cpu_kernels.KERNELS if name != "avx512-vnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with cpu_kernels.running(request.param):
        yield request.param


def inputs(rows: int, vocabulary: int, width: int, seed: int) -> tuple[Tensor, ...]:
    """x, weight, bias and labels, every fourth row without a label."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator)
    weight = torch.randn(vocabulary, width, generator=generator) / math.sqrt(width)
    bias = torch.randn(vocabulary, generator=generator) / 3
    labels = torch.randint(vocabulary, (rows,), generator=generator)
    labels[2::4] = IGNORED
    return x, weight, bias, labels


def run(backend: str, tensors: tuple[Tensor, ...], dtype: torch.dtype, **options) -> dict[str, Tensor]:
    """The results, and the gradients of x, weight and bias, by name."""
    *operands, labels = tensors
    leaves = [tensor.detach().to(dtype).requires_grad_() for tensor in operands]
    with use_backend(backend):
        result = ops.linear_cross_entropy(*leaves, labels, **options)
        gradients = torch.autograd.grad(result.loss_sum, leaves, result.loss_sum.new_tensor(0.37))
    named = {"loss": result.loss_sum.detach(), "count": result.count, "correct": result.correct}
    return named | dict(zip(("dx", "dweight", "dbias"), gradients, strict=True))


@sweep("options", OPTIONS)
@sweep(("rows", "vocabulary", "width"), SHAPES)
def test_fp32_is_as_accurate_as_torch(
    level: str, rows: int, vocabulary: int, width: int, options: dict, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(native_loss, "LOGITS_BYTES", 1)
    tensors = inputs(rows, vocabulary, width, seed)
    actual, expected = (run(backend, tensors, torch.float32, **options) for backend in ("native", "eager"))
    exact = run("eager", tuple(t.double() if t.is_floating_point() else t for t in tensors), torch.float64, **options)
    for name in ("loss", "dx", "dweight", "dbias"):
        assert_as_accurate(actual[name], expected[name], exact[name].double(), name)
    assert int(actual["count"]) == int(expected["count"])
    assert int(actual["correct"]) == int(exact["correct"])


@pytest.mark.parametrize(("rows", "vocabulary", "width"), [(40, 100, 64), (130, 515, 40)], ids=["small", "two-chunks"])
def test_bf16_is_as_accurate_as_torch(
    level: str, rows: int, vocabulary: int, width: int, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(native_loss, "LOGITS_BYTES", 1)
    tensors = tuple(t.bfloat16() if t.is_floating_point() else t for t in inputs(rows, vocabulary, width, seed))
    actual, expected = (run(backend, tensors, torch.bfloat16) for backend in ("native", "eager"))
    exact = run("eager", tuple(t.double() if t.is_floating_point() else t for t in tensors), torch.float64)
    for name in ("loss", "dx", "dweight", "dbias"):
        assert_as_accurate(actual[name], expected[name], exact[name].double(), name, floor=2e-3)


def test_autocast_leaves_gradients_of_fp32_weights_unrounded(level: str, seed: int) -> None:
    tensors = inputs(40, 100, 64, seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = (run(backend, tensors, torch.float32) for backend in ("native", "eager"))
    exact = run("eager", tuple(t.double() if t.is_floating_point() else t for t in tensors), torch.float64)
    for name in ("dx", "dweight", "dbias"):
        assert actual[name].dtype == torch.float32
        assert_as_accurate(actual[name], expected[name], exact[name], name, floor=2e-3)
    assert not torch.equal(actual["dweight"], actual["dweight"].bfloat16().float())


def test_gradients_repeat_bit_for_bit_on_any_number_of_threads(seed: int) -> None:
    tensors, threads = inputs(130, 515, 40, seed), torch.get_num_threads()
    first = run("native", tensors, torch.float32)
    try:
        torch.set_num_threads(1)
        again = run("native", tensors, torch.float32)
    finally:
        torch.set_num_threads(threads)
    for name, value in first.items():
        assert torch.equal(value, again[name]), name


def test_without_rows_or_labels_there_is_no_loss(level: str, seed: int) -> None:
    for rows in (0, 6):
        x, weight, bias, labels = inputs(rows, 33, 8, seed)
        result = run("native", (x, weight, bias, torch.full_like(labels, IGNORED)), torch.float32)
        assert float(result["loss"]) == 0.0
        assert int(result["count"]) == int(result["correct"]) == 0
        for name in ("dx", "dweight", "dbias"):
            assert not result[name].any(), name


def test_extreme_logits_are_as_torch_has_them(level: str) -> None:
    """Large ones lose nothing; an infinity or a NaN makes the loss NaN; of equal ones the first is the prediction."""
    weight = torch.tensor([[1e30, 5.0, math.inf, math.nan], [1.0, 5.0, 0.0, 0.0], [0.0, -1e30, 1.0, 0.0]])
    bias, labels = torch.zeros(3), torch.tensor([0, 1, 0, 0])
    for row, right in ((0, 1), (1, 0), (2, None), (3, None)):
        tensors = (torch.eye(4)[row : row + 1], weight.nan_to_num(posinf=7.0), bias, labels[row : row + 1])
        if right is None:
            tensors = (torch.ones(1, 1), weight[:, row : row + 1], bias, labels[row : row + 1])
        actual, expected = (run(backend, tensors, torch.float32) for backend in ("native", "eager"))
        for name in ("loss", "dx", "dbias"):
            torch.testing.assert_close(actual[name], expected[name], equal_nan=True, msg=name)
        if right is not None:
            assert int(actual["correct"]) == right


@pytest.mark.parametrize("later", ["eager", "native"])
def test_backward_is_native_whatever_the_backend_is_by_then(later: str, seed: int) -> None:
    """A graph that is kept, and weights in bf16, whose gradients are scaled by an operator of their own."""
    *operands, labels = inputs(40, 100, 64, seed)
    for dtype, keep in ((torch.float32, True), (torch.bfloat16, False)):
        leaves = [tensor.to(dtype).requires_grad_() for tensor in operands]
        expected = run("native", (*leaves, labels), dtype)
        with use_backend("native"):
            loss = ops.linear_cross_entropy(*leaves, labels).loss_sum
        with use_backend(later):
            gradients = torch.autograd.grad(loss, leaves, loss.new_tensor(0.37), retain_graph=keep)
        for name, gradient in zip(("dx", "dweight", "dbias"), gradients, strict=True):
            torch.testing.assert_close(gradient, expected[name], msg=name)


def test_a_label_outside_the_vocabulary_is_named() -> None:
    x, weight, bias, labels = inputs(6, 33, 8, 0)
    labels[3] = 33
    with use_backend("native"), pytest.raises(UserError, match=r"labels\[3\]=33 is not in the vocabulary of 33"):
        ops.linear_cross_entropy(x, weight, bias, labels)


@sweep("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@sweep("vocabulary", [1, 15, 33, 100])
def test_rows_stay_within_their_memory(level: str, vocabulary: int, dtype: torch.dtype, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, vocabulary, generator=generator).to(dtype)
    expected = torch.softmax(rows.double(), -1)
    labels = torch.zeros(3, dtype=torch.int64)
    expected[:, 0] -= 1
    for behind in (True, False):
        logits, losses = Fenced(rows, behind=behind), Fenced(torch.zeros(3), behind=behind)
        correct = Fenced(torch.zeros(3, dtype=torch.uint8), behind=behind)
        name = "fp32" if dtype == torch.float32 else "bf16"
        _C.cross_entropy(
            (logits.tensor.data_ptr(), name, vocabulary), 3, vocabulary, labels.data_ptr(), IGNORED, 0.0, 0.0, True,
            losses.tensor.data_ptr(), correct.tensor.data_ptr(),
        )  # fmt: skip
        torch.testing.assert_close(logits.tensor.double(), expected, rtol=1e-2, atol=5e-3)


def test_the_operator_is_as_torch_wants_it(seed: int) -> None:
    x, weight, bias, labels = inputs(8, 33, 8, seed)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    arguments = (*leaves, labels, IGNORED, 0.0, 0.0, True, True, True, "native")
    torch.library.opcheck(torch.ops.fastbert.linear_cross_entropy.default, arguments)
