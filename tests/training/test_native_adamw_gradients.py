"""Gradients that the native AdamW refuses by name, and those that it clips."""

import math

import pytest
import torch
from torch import nn

from fastbert.config import BertConfig
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.training.optimizer import AdamW, GradientError, adamw

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clipped", [False, True], ids=["step", "clip"])
def test_a_gradient_that_is_no_number_is_named_and_changes_nothing(value: float, clipped: bool, seed: int) -> None:
    model = BertForPreTraining(BertConfig.preset("tiny", vocab_size=100))
    optimizer = adamw(model, lr=1e-3, weight_decay=0.01)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    name = "bert.encoder.layer.1.intermediate.dense.weight"
    model.get_parameter(name).grad[2, 5] = value
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(GradientError, match=rf"the gradient of {name}, of shape .* is {value} at \[2, 5\]") as error:
        optimizer.clip_gradients(1.0) if clipped else optimizer.step()
    assert "lower the learning rate" in str(error.value)
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    optimizer.zero_grad()
    optimizer.step()


def test_without_names_the_place_and_shape_are_told() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        own = [nn.Parameter(torch.ones(4, 3, dtype=dtype)) for _ in range(3)]
        optimizer = AdamW([{"params": own[:1]}, {"params": own[1:]}], lr=1e-3)
        for p in own:
            p.grad = torch.ones_like(p)
        own[2].grad[1, 2] = math.nan
        with pytest.raises(UserError, match=r"parameter 1 of group 1, of shape \(4, 3\), is nan at \[1, 2\]"):
            optimizer.step()


def test_huge_finite_gradients_are_clipped() -> None:
    weight = nn.Parameter(torch.zeros(100))
    weight.grad = torch.full((100,), 3e38)
    optimizer = AdamW([weight], lr=1e-3)
    assert float(optimizer.clip_gradients(1.0)) == pytest.approx(3e39, rel=1e-6)
    optimizer.step()
    assert weight.isfinite().all()


def test_a_factor_is_for_the_gradients_it_was_made_of() -> None:
    weight = nn.Parameter(torch.ones(100))
    optimizer = AdamW([weight], lr=1e-3)
    weight.grad = torch.full((100,), 3.0)
    optimizer.clip_gradients(1.0)
    weight.grad += 1.0
    with pytest.raises(UserError, match="gradients changed between clip_gradients and step"):
        optimizer.step()
    weight.grad = torch.full((100,), 3.0)
    optimizer.clip_gradients(1.0)
    optimizer.zero_grad()
    assert optimizer.clip_factor == 1.0
    with pytest.raises(UserError, match="max_norm=nan must be 0 or more"):
        optimizer.clip_gradients(math.nan)
