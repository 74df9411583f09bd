"""Operators that are called past torch's dispatcher: the same results, gradients and refusals as through it."""

import importlib
from typing import Any

import pytest
import torch
from batches import random_batch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fastbert import BertConfig, BertForPreTraining, PackedBatch, ops, use_backend
from fastbert.ops.custom_op import Operator, operator
from fastbert.ops.native import caching_allocator

CONFIG = BertConfig(
    vocab_size=120, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip


@operator("fastbert::test_scaled_sum")
def scaled_sum(tensors: list[Tensor], weight: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """factor * weight * the sum, and the sum."""
    total = torch.stack(tensors).sum(0)
    return factor * weight * total, total


@scaled_sum.register_fake
def _(tensors: list[Tensor], weight: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    return torch.empty_like(weight), torch.empty_like(weight)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(inputs[1], output[1])
    ctx.factor = inputs[2]


def gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    weight, total = ctx.saved_tensors
    asked = ctx.needs_input_grad
    each = [ctx.factor * weight * grad if want else None for want in asked[0]]
    return each, ctx.factor * total * grad if asked[1] else None, None


scaled_sum.register_autograd(gradients, setup_context=keep)


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The calls that went through torch's dispatcher."""
    seen: list[bool] = []
    original = scaled_sum._traced

    def counted(*arguments: Any) -> Any:
        seen.append(True)
        return original(*arguments)

    monkeypatch.setattr(scaled_sum, "_traced", counted)
    return seen


def test_lists_of_tensors_and_partial_gradients(traced: list[bool]) -> None:
    a, b, weight = torch.randn(3), torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    y, total = scaled_sum([a, b], weight, 2.0)
    assert not total.requires_grad
    torch.testing.assert_close(y, 2 * weight * (a + b))
    grad = torch.randn(3)
    of_b, of_weight = torch.autograd.grad(y, [b, weight], grad)
    torch.testing.assert_close(of_b, 2 * weight * grad)
    torch.testing.assert_close(of_weight, 2 * total * grad)
    assert not traced


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), kwargs=None):
        return function(*arguments, **(kwargs or {}))


class Listening(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), kwargs=None):
        return function(*arguments, **(kwargs or {}))


class Own(Tensor):
    """A class of somebody else."""


@pytest.mark.parametrize("mode", [Watching, Listening, lambda: torch.profiler.profile()])
def test_what_is_watched_goes_through_the_dispatcher(mode: Any, traced: list[bool]) -> None:
    weight = torch.randn(3, requires_grad=True)
    with mode():
        y, _ = scaled_sum([torch.ones(3)], weight, 2.0)
    grad = torch.randn(3)
    y.backward(grad)
    assert traced == [True]
    torch.testing.assert_close(weight.grad, 2 * grad)


def test_other_classes_and_negated_views_go_through_the_dispatcher(traced: list[bool]) -> None:
    scaled_sum([torch.ones(3).as_subclass(Own)], torch.ones(3), 2.0)
    negated = torch._neg_view(torch.ones(3))
    y, _ = scaled_sum([torch.ones(3)], negated, 2.0)
    torch.testing.assert_close(y, 2 * negated)
    scaled_sum([torch._efficientzerotensor((3,))], torch.ones(3), 2.0)
    assert traced == [True] * 3


def test_the_operators_of_fastbert_are_all_such() -> None:
    for name in ("attention", "dropout", "embedding", "encoder_layer", "gelu", "cross_entropy", "softmax"):
        assert isinstance(importlib.import_module(f"fastbert.ops.{name}.op")._forward, Operator), name


def loss_and_gradients(model: Any, batch: PackedBatch, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    loss = model(batch).loss
    result = torch.autograd.grad(loss, list(parameters.values()))
    return {"loss": loss.detach(), **dict(zip(parameters, result, strict=True))}


@pytest.mark.parametrize("backend", [None, "eager"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_compiled_model_trains_as_an_ordinary_one(backend: str | None, training: bool, seed: int) -> None:
    torch._dynamo.reset()
    model = BertForPreTraining(CONFIG).train(training)
    model.init_weights(seed=seed)
    batch, parameters = random_batch([13, 1, 40], 120, 7, seed), dict(model.named_parameters())
    with use_backend(backend):
        ordinary = loss_and_gradients(model, batch, parameters)
        compiled = loss_and_gradients(torch.compile(model, backend="aot_eager", fullgraph=True), batch, parameters)
    for name, value in ordinary.items():
        torch.testing.assert_close(compiled[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_second_derivative_is_refused(seed: int) -> None:
    x = torch.randn(4, 64, requires_grad=True)
    weight, bias = torch.ones(64, requires_grad=True), torch.zeros(64, requires_grad=True)
    with use_backend("native"):
        y = ops.layer_norm(x, weight, bias)
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        first.sum().backward()


def test_a_change_between_forward_and_backward_is_seen(seed: int) -> None:
    x, weight, bias = torch.randn(4, 64, requires_grad=True), torch.ones(64), torch.zeros(64)
    middle = x * 2
    with use_backend("native"):
        y = ops.layer_norm(middle, weight, bias)
    middle += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_nothing_stays_behind_a_step(seed: int) -> None:
    import gc

    model, batch = BertForPreTraining(CONFIG).train(), random_batch([50, 40, 30], 120, 7, seed)
    gc.collect()
    gc.disable()
    try:
        in_use = []
        for _ in range(3):
            model(batch).loss.backward()
            model.zero_grad(set_to_none=True)
            in_use.append(caching_allocator.statistics()["in_use"])
    finally:
        gc.enable()
    assert in_use[0] == in_use[1] == in_use[2]
