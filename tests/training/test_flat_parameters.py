"""Flat parameters: the same training as with ordinary ones, and copies of the weights that are never stale."""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import layers
import pytest
import torch
from accuracy import assert_as_accurate
from batches import random_batch
from torch import nn

from fastbert import BertConfig, PackedBatch, ops, use_backend
from fastbert.errors import UserError
from fastbert.models import BertForPreTraining
from fastbert.ops.encoder_layer import accumulating, flat_layer
from fastbert.training import checkpoint
from fastbert.training.flat_parameters import FlatParameters, reason_not_flat
from fastbert.training.optimizer import AdamW, adamw
from fastbert.training.saving import Checkpoints
from fastbert.training.snapshot import snapshot

pytest.importorskip("triton", reason="needs triton")
from fastbert.kernels.loss import linear_cross_entropy

GPU = torch.cuda.is_available()
# The interpreter divides with numpy, which warns of what a GPU does in silence.
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), *([pytest.mark.gpu] if GPU else [])]
DEVICE = torch.device("cuda" if GPU else "cpu")
CONFIG = BertConfig(
    vocab_size=60, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=96,
    max_position_embeddings=40, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip


@pytest.fixture(autouse=True)
def triton_kernels() -> Iterator[None]:
    with use_backend("triton"):
        yield


def labelled(seed: int, pairs: bool = True) -> PackedBatch:
    batch = random_batch([9, 14], CONFIG.vocab_size, 5, seed).to(DEVICE)
    return batch if pairs else replace(batch, next_sentence_label=None)


def model_and_optimizer(
    seed: int, dtype: torch.dtype | None = None, count: int = 1
) -> tuple[BertForPreTraining, AdamW]:
    """A model of `count` layers whose optimiser is flat, with copies in `dtype`, unless that is None."""
    model = BertForPreTraining(replace(CONFIG, num_hidden_layers=count)).to(DEVICE).train()
    model.init_weights(seed=seed)
    optimizer = adamw(model, lr=1e-3, weight_decay=0.1)
    if dtype is not None:
        optimizer.flatten(model, dtype)
    return model, optimizer


def backward(
    model: BertForPreTraining, batches: list[PackedBatch], dtype: torch.dtype, flat: FlatParameters | None
) -> None:
    for batch in batches:
        autocast = torch.autocast(DEVICE.type, dtype=dtype, enabled=dtype != torch.float32)
        with autocast, contextlib.nullcontext() if flat is None else flat.active():
            model(batch).loss.backward()


def random_gradients(model: BertForPreTraining, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(DEVICE)


def step(optimizer: AdamW, max_norm: float = 0.5) -> float:
    norm = float(optimizer.clip_gradients(max_norm))
    optimizer.step(clear=True)
    if optimizer.flat is None:
        optimizer.zero_grad()
    return norm


def assert_close(model: BertForPreTraining, other: BertForPreTraining, atol: float) -> None:
    expected = other.state_dict()
    assert model.state_dict().keys() == expected.keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=atol, msg=name)


def test_a_run_is_that_of_ordinary_parameters(seed: int) -> None:
    """In fp32, where both round alike; the second step has two micro-batches, pairs for the first time, and recomputes
    activations."""
    (plain, first), (flat, second) = model_and_optimizer(seed), model_and_optimizer(seed, torch.float32)
    for number, pairs in enumerate(([False], [False, True])):
        batches = [labelled(seed + 10 * number + i, pairs=some) for i, some in enumerate(pairs)]
        flat.checkpoint_activations("layer" if number else "none")
        for model, optimizer in ((plain, first), (flat, second)):
            backward(model, batches, torch.float32, optimizer.flat)
        gradients = {name: parameter.grad for name, parameter in flat.named_parameters()}
        for name, parameter in plain.named_parameters():
            if parameter.grad is None:
                assert gradients[name] is None, name
            else:
                torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)
        assert step(first) == pytest.approx(step(second), rel=1e-4)
        assert not second.flat.tensors.gradients.any()
    # AdamW's first steps are as large for tiny gradients as for others.
    assert_close(flat, plain, atol=2e-4)
    assert len(second.state) == len(first.state) == len(list(flat.parameters()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
def test_gradients_are_as_accurate_as_torchs(dtype: torch.dtype, seed: int) -> None:
    batch = random_batch([17, 9, 30], 60, 5, seed).to(DEVICE)
    generator = torch.Generator().manual_seed(seed)
    x, grad = (torch.randn(batch.num_tokens, 64, generator=generator).to(DEVICE).to(dtype) for _ in range(2))
    results = {}
    for name in ("exact", "eager", "flat"):
        layer = layers.random_layer(seed, CONFIG).to(DEVICE)
        optimizer = AdamW(layer.parameters(), lr=1e-3)
        if name == "exact":
            layer.double()
        leaf = x.to(torch.float64 if name == "exact" else dtype).requires_grad_()
        autocast = torch.autocast(DEVICE.type, dtype=dtype, enabled=name != "exact")
        active = optimizer.flatten(nn.ModuleList([layer]), dtype).active() if name == "flat" else use_backend("eager")
        with active, autocast:
            y = layers.run_layer(layer, leaf, batch, 0.1)
            y.backward(grad.to(y.dtype))
        results[name] = {"y": y.detach(), "x": leaf.grad} | {k: p.grad for k, p in layer.named_parameters()}
    for key, exact in results["exact"].items():
        assert_as_accurate(results["flat"][key], results["eager"][key], exact, key, factor=3.0)


@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_outside_of_layers(bias: bool, seed: int) -> None:
    """Of heads: their gradients are sums in fp32, of two passes here."""
    generator = torch.Generator().manual_seed(seed)
    x, grad = (torch.randn(2, 7, width, generator=generator).to(DEVICE, torch.bfloat16) for width in (64, 3))
    results = {}
    for name in ("exact", "eager", "flat"):
        layer = nn.Linear(64, 3, bias=bias)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
        layer.to(DEVICE, torch.float64 if name == "exact" else torch.float32)
        optimizer = AdamW(layer.parameters())
        leaf = x.to(torch.float64 if name == "exact" else torch.bfloat16).requires_grad_()
        active = optimizer.flatten(layer, torch.bfloat16).active() if name == "flat" else contextlib.nullcontext()
        for _ in range(2):
            with active, torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=name != "exact"):
                y = ops.linear(leaf, layer.weight, layer.bias)
                y.backward(grad.to(y.dtype))
            active = contextlib.nullcontext() if name != "flat" else optimizer.flat.active()
        results[name] = {"y": y.detach(), "x": leaf.grad} | {k: p.grad for k, p in layer.named_parameters()}
    for key, exact in results["exact"].items():
        assert_as_accurate(results["flat"][key], results["eager"][key], exact, key)
    with torch.no_grad(), optimizer.flat.active(), torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert torch.equal(ops.linear(leaf, layer.weight, layer.bias), y)


def test_copies_follow_every_write_that_torch_counts(seed: int) -> None:
    model, optimizer = model_and_optimizer(seed, torch.bfloat16)
    flat, layer = optimizer.flat, model.bert.encoder.layer[0]
    attention, parameters = layer.attention.self, layer.fusible_parameters()
    assert parameters is not None

    def copied() -> torch.Tensor:
        with flat.active():
            _, found = flat_layer.owner(parameters, torch.bfloat16)
        return found.operands.projections.clone()

    def expected() -> torch.Tensor:
        return torch.cat([weight.detach() for weight in parameters.matrices[:3]]).bfloat16()

    def another_optimizer() -> None:
        random_gradients(model, seed)
        torch.optim.SGD(model.parameters(), lr=0.1).step()

    def this_optimizer() -> None:
        step(optimizer)

    def in_place() -> None:
        with torch.no_grad():
            attention.key.weight.mul_(1.5)

    def load() -> None:
        model.load_state_dict({name: 0.5 * value for name, value in model.state_dict().items()})

    def replace_memory() -> None:
        attention.value.weight.data = torch.ones_like(attention.value.weight)

    def data() -> None:
        attention.value.weight.data.fill_(2.0)
        flat.refresh()

    before = copied()
    for change in (another_optimizer, this_optimizer, in_place, load, replace_memory, data):
        change()
        now = copied()
        assert torch.equal(now, expected()), change.__name__
        assert not torch.equal(now, before), change.__name__
        before = now
    assert flat_layer.owner(parameters, torch.bfloat16) is None, "outside of the block nothing answers for the copies"
    assert flat_layer.in_dtype(attention.key.weight, torch.bfloat16).dtype == torch.bfloat16


def test_the_loss_multiplies_by_the_copy_too(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model, optimizer = model_and_optimizer(seed, torch.bfloat16)
    seen, original = [], linear_cross_entropy.forward
    monkeypatch.setattr(
        linear_cross_entropy, "forward", lambda inputs: seen.append(inputs.weight.data_ptr()) or original(inputs)
    )
    backward(model, [labelled(seed)], torch.bfloat16, optimizer.flat)
    table = model.bert.embeddings.word_embeddings.weight
    assert seen == [optimizer.flat.shadow(table, torch.bfloat16).data_ptr()]
    assert table.grad.dtype == torch.float32


def test_layers_that_are_not_all_here_are_ordinary(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model, optimizer = model_and_optimizer(seed, torch.float32, count=2)
    seen, original = [], accumulating.run
    monkeypatch.setattr(accumulating, "run", lambda *arguments: seen.append(arguments) or original(*arguments))
    model.bert.encoder.layer[0].output.dense.bias.requires_grad_(False)
    first, second = (copy.deepcopy(model), model)
    for each in (first, second):
        backward(each, [labelled(seed)], torch.float32, optimizer.flat)
    assert len(seen) == 1, "the second layer of the model itself"
    for name, parameter in first.named_parameters():
        if parameter.grad is not None:
            grad = model.get_parameter(name).grad
            torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_gradients_that_were_set_or_dropped_are_taken_as_they_are(seed: int) -> None:
    model, optimizer = model_and_optimizer(seed, torch.float32)
    flat, weight = optimizer.flat, model.bert.encoder.layer[0].output.dense.weight

    def gradient() -> torch.Tensor:
        backward(model, [labelled(seed)], torch.float32, flat)
        return weight.grad.clone()

    once = gradient()
    model.zero_grad(set_to_none=True)
    weight.grad = torch.ones_like(weight)
    torch.testing.assert_close(gradient(), once + 1.0)
    weight.grad = 2.0 * once
    optimizer.zero_grad()
    assert not flat.tensors.gradients.any()
    torch.testing.assert_close(gradient(), once)


def test_a_gradient_that_is_not_finite_skips_the_step(seed: int) -> None:
    model, optimizer = model_and_optimizer(seed, torch.float32)
    random_gradients(model, seed)
    before = copy.deepcopy(model.state_dict())
    model.bert.pooler.dense.bias.grad[3] = torch.nan
    assert math.isnan(step(optimizer))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.flat.tensors.gradients.any()
    assert float(optimizer.state[model.bert.pooler.dense.bias]["step"]) == 0.0


def test_checkpoints_of_either_kind_resume_the_other(tmp_path: Path, seed: int) -> None:
    """Three steps, in which the second begins with what the first has saved."""
    results = []
    for kinds in ((None, None), (torch.float32, torch.float32), (None, torch.float32), (torch.float32, None)):
        checkpoints = Checkpoints(tmp_path / str(len(results)), 2)
        for part, kind in enumerate(kinds):
            model, optimizer = model_and_optimizer(seed, kind)
            if part:
                checkpoint.restore(checkpoints.load_last(dict)[0], model, optimizer)
            for number in range(1 + part):
                random_gradients(model, seed + number + part)
                step(optimizer)
            checkpoints.save(snapshot(model, optimizer), {"step": part + 1})
        saved = checkpoints.load_last(dict)[0]
        results.append({**saved.model, **saved.optimizer})
    for result in results[1:]:
        assert result.keys() == results[0].keys()
        for name, value in result.items():
            torch.testing.assert_close(value, results[0][name], rtol=1e-4, atol=1e-6, msg=name)


def test_torchs_state_dict_is_loaded(seed: int) -> None:
    (model, plain), (other, flat) = model_and_optimizer(seed), model_and_optimizer(seed, torch.float32)
    random_gradients(model, seed)
    step(plain)
    flat.load_state_dict(copy.deepcopy(plain.state_dict()))
    other.load_state_dict(model.state_dict())
    for each, optimizer in ((model, plain), (other, flat)):
        random_gradients(each, seed + 1)
        step(optimizer)
    assert_close(other, model, atol=1e-6)
    assert float(flat.state[other.bert.pooler.dense.bias]["step"]) == 2.0


def test_what_flat_parameters_do_not_support_is_refused(seed: int) -> None:
    model = BertForPreTraining(CONFIG).to(DEVICE)
    with pytest.raises(UserError, match="flat parameters do not support amsgrad"):
        AdamW(model.parameters(), amsgrad=True).flatten(model, torch.bfloat16)
    with pytest.raises(UserError, match="flat parameters must all be fp32"):
        AdamW(copy.deepcopy(model).half().parameters()).flatten(model, torch.bfloat16)
    optimizer = AdamW(model.parameters())
    optimizer.flatten(model, torch.bfloat16)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    with pytest.raises(UserError, match="parameter groups were added"):
        optimizer.step()
    parameters = list(model.parameters())
    reason = reason_not_flat(parameters, torch.device("cpu"), torch.bfloat16)
    assert reason == "there is no kernel for a device of type cpu"
    assert "matmuls are in float16" in str(reason_not_flat(parameters, torch.device("cuda"), torch.float16))
