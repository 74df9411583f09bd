"""The Triton loss as it is called: operands of any kind, gradients asked for, operators, compiled, refused."""

import math

import pytest
import torch
from cross_entropy_kernels import DEVICE, IGNORED, INTERPRETED, inputs, run
from torch._dynamo.testing import CompileCounterWithBackend

from fastbert import ops, use_backend
from fastbert.errors import UserError

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy as kernels

# The interpreter computes with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([] if INTERPRETED else [pytest.mark.gpu])]


def test_operands_may_lie_in_any_order_in_memory(seed: int) -> None:
    x, weight, bias, labels = inputs(6, 100, 16, seed)
    apart = torch.full((6, 2), IGNORED, device=DEVICE)
    apart[:, 1] = labels
    turned = (x.t().contiguous().t(), weight.t().contiguous().t(), bias[:, None].expand(100, 2)[:, 0], apart[:, 1])
    assert not any(tensor.is_contiguous() for tensor in (turned[0], turned[1], turned[3]))
    for mine, same in zip(run("triton", turned)[1], run("triton", (x, weight, bias, labels))[1]):
        torch.testing.assert_close(mine, same)


@pytest.mark.parametrize("hip", [None, "7.0"], ids=["", "amd"])
@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("kinds", [(0, 0), (1, 1), (1, 0)], ids=["fp32", "half", "half-into-fp32"])
def test_products_are_added(hip: str | None, alpha: float, kinds: tuple[int, int], seed: int, monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    operands, result = ((torch.float32, torch.bfloat16)[kind] for kind in kinds)
    a, b = (tensor.to(operands) for tensor in inputs(20, 30, 16, seed)[:2])
    out = torch.full((20, 30), math.nan, dtype=result, device=DEVICE)
    exact = alpha * (a.double() @ b.double().T)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if operands == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for times in (1, 2, 3):
        kernels.add_matmul(out, a, b.t(), fresh=times == 1, alpha=alpha)
        torch.testing.assert_close(out.double(), times * exact, **tolerance)


@pytest.mark.parametrize("frozen", [{0}, {1}, {2}, {0, 2}, {1, 2}], ids=str)
def test_only_what_needs_a_gradient_gets_one(frozen: set[int], seed: int) -> None:
    *operands, labels = inputs(5, 60, 8, seed)
    _, every = run("triton", (*operands, labels))
    leaves = [tensor.clone().requires_grad_(i not in frozen) for i, tensor in enumerate(operands)]
    with use_backend("triton"):
        (ops.linear_cross_entropy(*leaves, labels).loss_sum * 0.37).backward()
    for i, leaf in enumerate(leaves):
        if i in frozen:
            assert leaf.grad is None
        else:
            torch.testing.assert_close(leaf.grad, every[i])


def test_a_tied_weight_gets_both_gradients(seed: int) -> None:
    _, table, bias, labels = inputs(6, 40, 16, seed)
    tokens = torch.arange(6, device=DEVICE)
    results = []
    for backend in ("triton", "eager"):
        weight = table.clone().requires_grad_()
        with use_backend(backend):
            ops.linear_cross_entropy(torch.tanh(weight[tokens]), weight, bias, labels).loss_sum.backward()
        results.append(weight.grad)
    torch.testing.assert_close(*results)


def test_backward_may_run_twice_with_any_upstream_gradient(seed: int) -> None:
    tensors = inputs(6, 90, 16, seed)
    leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
    with use_backend("triton"):
        loss = ops.linear_cross_entropy(*leaves, tensors[3]).loss_sum
        first = torch.autograd.grad(loss * 0.5, leaves, retain_graph=True)
        second = torch.autograd.grad(loss * -3.0, leaves, retain_graph=True)
        third = torch.autograd.grad(loss, leaves)
    for a, b, c in zip(first, second, third):
        torch.testing.assert_close(a, 0.5 * c)
        torch.testing.assert_close(b, -3.0 * c)


def test_a_second_derivative_is_refused(seed: int) -> None:
    *operands, labels = inputs(3, 20, 8, seed)
    x = operands[0].requires_grad_()
    with use_backend("triton"):
        loss = ops.linear_cross_entropy(x, *operands[1:], labels).loss_sum
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            (loss + dx.square().sum()).backward()


def test_without_gradients_none_is_computed(seed: int, monkeypatch) -> None:
    tensors = inputs(6, 90, 16, seed)
    expected, _ = run("triton", tensors)
    weight = tensors[1].clone().requires_grad_()

    def refuse(*_, **__):
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr(kernels, "add_matmul", refuse)
    with use_backend("triton"):
        with torch.no_grad():
            actual = ops.linear_cross_entropy(tensors[0], weight, *tensors[2:])
        detached = ops.linear_cross_entropy(tensors[0], weight.detach(), *tensors[2:])
    for tensor in (actual, detached):
        assert torch.equal(tensor.loss_sum, expected.loss_sum)
        assert torch.equal(tensor.correct, expected.correct)
        assert not tensor.loss_sum.requires_grad


def test_the_same_bits_on_every_run(seed: int) -> None:
    tensors = inputs(9, 2100, 16, seed)
    runs = [run("triton", tensors, label_smoothing=0.1) for _ in range(2)]
    assert torch.equal(runs[0][0].loss_sum, runs[1][0].loss_sum)
    assert all(torch.equal(a, b) for a, b in zip(runs[0][1], runs[1][1]))


def test_refuses_what_it_does_not_support(seed: int) -> None:
    x, weight, bias, labels = inputs(3, 20, 8, seed)
    with use_backend("triton"):
        with pytest.raises(
            UserError,
            match=r"'triton' does not support 'linear_cross_entropy' here: .*float64.*use_backend\('eager'\) does",
        ):
            ops.linear_cross_entropy(x.double(), weight.double(), bias.double(), labels)
        with pytest.raises(UserError, match=r"weight \(vocabulary, width\), not \(3, 8\) and \(20, 7\)"):
            ops.linear_cross_entropy(x, weight[:, :7], bias, labels)
        with pytest.raises(UserError, match=r"weight has no rows"):
            ops.linear_cross_entropy(x, weight[:0], bias[:0], labels)
        with pytest.raises(UserError, match=r"bias must have shape \(20,\), one per label, not \(19,\)"):
            ops.linear_cross_entropy(x, weight, bias[1:], labels)
        with pytest.raises(
            UserError, match=r"labels must be int64 of shape \(3,\), one per row, not torch.int32 \(3,\)"
        ):
            ops.linear_cross_entropy(x, weight, bias, labels.int())
        with pytest.raises(UserError, match=r"weight has dtype torch.float32, x torch.bfloat16: cast one, or use"):
            ops.linear_cross_entropy(x.bfloat16(), weight, bias, labels)
        with pytest.raises(UserError, match=r"label_smoothing=1.5 must be between 0 and 1"):
            ops.linear_cross_entropy(x, weight, bias, labels, label_smoothing=1.5)
        with pytest.raises(UserError, match=r"z_loss=-1 must be a finite number and not below 0"):
            ops.linear_cross_entropy(x, weight, bias, labels, z_loss=-1)
        with pytest.raises(UserError, match=r"labels is on meta, x on "):
            ops.linear_cross_entropy(x, weight, bias, labels.to("meta"))


@pytest.mark.parametrize("needs_gradient", [(True, True, True), (False, True, False), (False, False, False)], ids=str)
def test_the_operators_keep_their_promises(needs_gradient: tuple[bool, ...], seed: int) -> None:
    *operands, labels = inputs(5, 40, 8, seed)
    leaves = [tensor.requires_grad_(need) for tensor, need in zip(operands, needs_gradient)]
    arguments = (*leaves, labels, IGNORED, 0.1, 1e-3, *needs_gradient, "triton")
    torch.library.opcheck(torch.ops.fastbert.linear_cross_entropy.default, arguments)
    with torch.no_grad():
        gradients = torch.ops.fastbert.linear_cross_entropy(*arguments)[3:]
    arguments = (torch.tensor(0.3, device=DEVICE), *gradients, *(tensor.detach() for tensor in operands), "triton")
    torch.library.opcheck(torch.ops.fastbert.linear_cross_entropy_backward.default, arguments)


def test_compiles_whole_and_once_for_any_number_of_rows(seed: int) -> None:
    counter = CompileCounterWithBackend("aot_eager")

    def function(x, weight, bias, labels):
        actual = ops.linear_cross_entropy(x * 2.0, weight, bias, labels, label_smoothing=0.1, z_loss=1e-3)
        return actual.loss_sum / actual.count.clamp(min=1), actual.correct

    torch._dynamo.reset()
    compiled = torch.compile(function, backend=counter, fullgraph=True, dynamic=True)
    with use_backend("triton"):
        for rows in (5, 9, 13):  # no other axis' sizes: torch would take two that are equal for one
            tensors = inputs(rows, 70, 16, seed)
            leaves = [tensor.requires_grad_() for tensor in tensors[:3]]
            results = [f(*leaves, tensors[3]) for f in (compiled, function)]
            gradients = [torch.autograd.grad(loss, leaves) for loss, _ in results]
            assert torch.equal(results[0][0], results[1][0])
            assert torch.equal(results[0][1], results[1][1])
            assert all(torch.equal(a, b) for a, b in zip(*gradients))
    assert counter.frame_count == 1
