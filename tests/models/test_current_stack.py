"""The stack of a model that may change: one call for all layers, with the bits of single layers, after every change."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from encoder_families import LENGTHS, batch_of
from torch import nn

import fastbert
from fastbert import BertConfig
from fastbert.models import current_stack as module
from fastbert.models.current_stack import current_stack
from fastbert.models.encoder import EncoderModel
from fastbert.ops.native import prepacked_weights
from fastbert.ops.native.matmul_table import same_in_every_batch


def bert(seed: int, **values: Any) -> EncoderModel:
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 160, "num_hidden_layers": 3}
    config = BertConfig(vocab_size=99, max_position_embeddings=40, **{**shape, **values})
    model = fastbert.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def batch_with(seed: int) -> Any:
    return batch_of(LENGTHS, torch.randint(5, 99, (sum(LENGTHS),), generator=torch.Generator().manual_seed(seed)))


def outputs(model: EncoderModel, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output by the stack, if there is one, and by the layers one by one."""
    with torch.no_grad(), same_in_every_batch():
        by_stack = model.encode(batch)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastbert.models.encoder.current_stack", lambda *_: None)
            return by_stack, model.encode(batch)[0]


def stack_of(model: EncoderModel) -> Any:
    with torch.no_grad():
        return current_stack(model, 1)


def step(model: EncoderModel) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.01, fused=True).step()


def replace_weight(model: EncoderModel) -> None:
    linear = model.encoder.layer[2].intermediate.dense
    linear.weight = nn.Parameter(linear.weight.detach() * 2)


# Changes after which a stack still computes the layers.
CHANGES: dict[str, Callable[[EncoderModel], object]] = {
    "weight in place": lambda model: model.encoder.layer[1].output.dense.weight.mul_(2),
    "weight past torch's count": lambda model: model.encoder.layer[1].output.dense.weight.data.mul_(2),
    "bias past torch's count": lambda model: model.encoder.layer[0].attention.self.key.bias.data.view(-1)[63:].add_(1),
    "norm past torch's count": lambda model: model.encoder.layer[2].output.LayerNorm.bias.data[5:6].add_(1),
    "other memory": lambda model: setattr(
        model.encoder.layer[1].output.dense.weight, "data", model.encoder.layer[1].output.dense.weight.data * 2
    ),
    "transposed": lambda model: setattr(
        model.encoder.layer[1].attention.self.key.weight, "data",
        model.encoder.layer[1].attention.self.key.weight.data.t(),
    ),
    "another parameter": replace_weight,
    "another module": lambda model: model.encoder.layer.__setitem__(1, bert(7).encoder.layer[0]),
    "other embeddings": lambda model: setattr(model, "embeddings", bert(9).embeddings),
    "another order": lambda model: model.encoder.layer.insert(0, model.encoder.layer.pop(1)),
    "fewer layers": lambda model: model.encoder.layer.__delitem__(1),
    "int8": lambda model: model.quantize("int8"),
    "bf16": lambda model: model.bfloat16(),
    "an optimizer's step": step,
    "loaded": lambda model: model.load_state_dict(bert(8).state_dict()),
    "training in between": lambda model: model.train().eval(),
}  # fmt: skip


def doubled(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def patch_forward(model: EncoderModel) -> None:
    linear = model.encoder.layer[1].output.dense
    linear.forward = lambda x: nn.Linear.forward(linear, x) * 2


# Changes after which the layers compute themselves.
ENDS: dict[str, Callable[[EncoderModel], object]] = {
    "a hook": lambda model: model.encoder.layer[1].output.dense.register_forward_hook(doubled),
    "a hook of a layer": lambda model: model.encoder.layer[0].register_forward_hook(doubled),
    "a patched forward": patch_forward,
    "another class": lambda model: setattr(model.encoder.layer[1].output.dense, "__class__", Doubled),
    "no bias": lambda model: setattr(model.encoder.layer[1].output.dense, "bias", None),
    "another epsilon": lambda model: setattr(model.encoder.layer[0].output.LayerNorm, "eps", 0.1),
    "a layer in training": lambda model: model.encoder.layer[1].train(),
    "a parametrisation": lambda model: nn.utils.parametrizations.weight_norm(model.encoder.layer[0].output.dense),
}


def test_every_change_of_a_model_is_seen(seed: int) -> None:
    batch = batch_with(seed)
    for changes, has_stack in ((CHANGES, True), (ENDS, False)):
        for name, change in changes.items():
            model = bert(seed)
            before, expected = outputs(model, batch)
            assert torch.equal(before, expected), name
            stack = stack_of(model)
            assert stack is not None, name
            assert stack_of(model) is stack, name
            with torch.no_grad():
                change(model)
            after, expected = outputs(model, batch)
            assert torch.equal(after, expected), name
            assert (stack_of(model) is not None) == has_stack, name
            assert torch.equal(after, before) == (name in ("training in between", "a layer in training")), name


def test_models_that_share_an_encoder(seed: int) -> None:
    first, second, batch = bert(seed), bert(seed + 1), batch_with(seed)
    second.encoder = first.encoder
    for model in (first, second, first):
        by_stack, expected = outputs(model, batch)
        assert torch.equal(by_stack, expected)
    assert not torch.equal(outputs(first, batch)[0], outputs(second, batch)[0])


def test_hooks_that_are_removed(seed: int) -> None:
    model, batch = bert(seed), batch_with(seed)
    hook = model.encoder.layer[1].register_forward_hook(doubled)
    with_hook, expected = outputs(model, batch)
    assert torch.equal(with_hook, expected)
    assert stack_of(model) is None
    hook.remove()
    without, expected = outputs(model, batch)
    assert torch.equal(without, expected)
    assert not torch.equal(without, with_hook)
    assert stack_of(model) is not None
    every = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert stack_of(model) is None
    finally:
        every.remove()
    assert stack_of(model) is not None


def test_where_layers_compute_themselves(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bert(seed)
    assert stack_of(model) is not None
    with torch.no_grad():
        assert current_stack(model, 2048) is None
    assert current_stack(model, 1) is None  # with gradients
    assert model.encoder not in module._stacks  # its copies can be repacked in place
    with torch.inference_mode():
        assert stack_of(bert(seed)) is None  # weights without a count of changes
        assert stack_of(model) is not None
    monkeypatch.setattr(prepacked_weights, "CHECK_ALL", True)
    assert stack_of(model) is None


def test_stacks_neither_keep_models_alive_nor_are_copied(seed: int) -> None:
    model, batch = bert(seed), batch_with(seed)
    outputs(model, batch)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.encoder.layer[0].output.dense.weight.mul_(2)
    after, expected = outputs(twin, batch)
    assert torch.equal(after, expected)
    assert not torch.equal(after, outputs(model, batch)[0])
    stack = weakref.ref(stack_of(model))
    model.to(torch.bfloat16)  # the copies of its weights are given up
    assert stack() is None
    encoder = weakref.ref(model.encoder)
    outputs(model, batch)
    del model
    gc.collect()
    assert encoder() is None
