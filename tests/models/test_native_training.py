"""Training on CPUs: a layer as one native operation against float64 and torch at every level, and whole models.

One file: every test compares with the same float64 layer and its gradients.
"""

import gc
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

import cpu_kernels
import emulator
import layers
import pytest
import torch
from accuracy import assert_as_accurate
from batches import random_batch
from torch import Tensor, nn

from fastbert import BertConfig, BertForPreTraining, BertForSequenceClassification, PackedBatch, use_backend
from fastbert.errors import UserError
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Layer
from fastbert.ops.encoder_layer import native_training
from fastbert.ops.encoder_layer.native import Native
from fastbert.ops.native import caching_allocator, matmul_table
from fastbert.training.optimizer import adamw

CONFIG = BertConfig(
    vocab_size=120, hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=160,
    max_position_embeddings=160, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1,
)  # fmt: skip
# Largest errors of a whole layer's gradient in half precision are roundings at other places than torch's.
FACTOR = 3.0


@pytest.fixture(autouse=True)
def own_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Products of this processor's level are ours, also where the shipped table leaves fp32 to the library."""
    shipped = {level: dict.fromkeys(table, matmul_table.NATIVE) for level, table in matmul_table.DEFAULTS.items()}
    monkeypatch.setattr(matmul_table, "DEFAULTS", shipped)
    matmul_table.clear_cache()
    yield
    monkeypatch.undo()
    matmul_table.clear_cache()


@pytest.fixture(params=[name for name in cpu_kernels.KERNELS if name != "avx512-vnni"])
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every kernel of floats, in software where this processor lacks it."""
    with cpu_kernels.running(request.param):
        yield request.param


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the native layer's methods that were called."""
    made: list[str] = []

    def counting(name: str) -> None:
        original = getattr(Native, name)

        def counted(*arguments):
            made.append(name)
            return original(*arguments)

        monkeypatch.setattr(Native, name, staticmethod(counted))

    counting("forward")
    counting("backward")
    return made


def random_layer(seed: int, config: BertConfig = CONFIG) -> Layer:
    return layers.random_layer(seed, config)


def operands(batch: PackedBatch, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and the gradient of the layer's output."""
    generator = torch.Generator().manual_seed(seed + 1)
    x, grad = (torch.randn(batch.num_tokens, width, generator=generator) for _ in range(2))
    return x, grad.bfloat16().float()


def run(
    backend: str | None, layer: Layer, x: Tensor, grad: Tensor, batch: PackedBatch, p: float = 0.1, **options
) -> dict[str, Tensor]:
    """Output and all gradients."""
    leaf = x.detach().requires_grad_()
    with use_backend(backend):
        y = layers.run_layer(layer, leaf, batch, p, **options)
        names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
        leaves = [leaf, *(parameter for parameter in layer.parameters() if parameter.requires_grad)]
        gradients = torch.autograd.grad(y, leaves, grad.to(y.dtype))
    return {"y": y.detach(), **dict(zip(["x", *names], gradients, strict=True))}


@pytest.mark.parametrize("kind", ["fp32", "bf16", "autocast"])
@pytest.mark.parametrize("p", [0.0, 0.1], ids=["", "dropout"])
def test_a_layer_is_as_accurate_as_torch(level: str, kind: str, p: float, calls: list[str], seed: int) -> None:
    lengths = [13, 1, 0, 24] if cpu_kernels.in_software(level) else [13, 1, 0, 40, 130]
    batch, layer = random_batch(lengths, CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)
    if kind == "bf16":
        layer, x, grad = layer.bfloat16(), x.bfloat16(), grad.bfloat16()
    executed = emulator.executed() if cpu_kernels.in_software(level) else 0
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        actual = run("native", layer, x, grad, batch, p)
        assert calls == ["forward", "backward"]
        expected = run("eager", layer, x, grad, batch, p)
    if cpu_kernels.in_software(level) and kind != "fp32":
        assert emulator.executed() > executed, "the kernel's own instructions never ran"
    exact = run("eager", layer.double(), x.double(), grad.double(), batch, p)
    for name, truth in exact.items():
        floor = 1e-5 if kind == "fp32" else 2e-3
        if name == "attention.self.key.bias":
            # Softmax looks at differences, so its gradient is zero: what is left is the rounding of the tokens' sum.
            # By how much is luck, eager torch's and ours.
            floor *= 4.0
        assert_as_accurate(actual[name], expected[name], truth, name, factor=FACTOR, floor=floor)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("tanh", [False, True], ids=["erf", "tanh"])
def test_forms_of_a_layer(tanh: bool, causal: bool, calls: list[str], seed: int) -> None:
    config = replace(CONFIG, hidden_act="gelu_pytorch_tanh" if tanh else "gelu")
    batch, layer = random_batch([13, 1, 0, 40], CONFIG.vocab_size, 7, seed), random_layer(seed, config)
    x, grad = operands(batch, 96, seed)
    actual, expected = (run(backend, layer, x, grad, batch, causal=causal) for backend in ("native", "eager"))
    assert calls == ["forward", "backward"]
    for name in expected:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=5e-5, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_layer_repeats_bit_for_bit(level: str, dtype: torch.dtype, seed: int) -> None:
    """On every run, on any number of threads, and where LayerNorms are computed again."""
    last = 24 if cpu_kernels.in_software(level) else 110
    batch, layer = random_batch([13, 1, 0, last], CONFIG.vocab_size, 7, seed), random_layer(seed).to(dtype)
    x, grad = (tensor.to(dtype) for tensor in operands(batch, 96, seed))
    first, threads = run("native", layer, x, grad, batch), torch.get_num_threads()
    again = run("native", layer, x, grad, batch, recompute=True)
    try:
        torch.set_num_threads(1)
        alone = run("native", layer, x, grad, batch)
    finally:
        torch.set_num_threads(threads)
    for name, value in first.items():
        assert torch.equal(value, again[name]), name
        assert torch.equal(value, alone[name]), name


@pytest.mark.parametrize("kind", ["every-second", "columns", "one-row"])
def test_tokens_of_any_stride(kind: str, seed: int) -> None:
    """And gradients: rows may lie apart, with their elements, or be one and the same."""
    batch, layer = random_batch([13, 1, 0, 40], CONFIG.vocab_size, 7, seed), random_layer(seed)

    def strided(x: Tensor) -> Tensor:
        if kind == "one-row":
            return x[:1].expand_as(x)
        return torch.stack((x, x), 1)[:, 0] if kind == "every-second" else x.t().contiguous().t()

    x, grad = (strided(tensor) for tensor in operands(batch, 96, seed))
    expected = run("native", layer, x.contiguous(), grad.contiguous(), batch)
    for name, value in run("native", layer, x, grad, batch).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("tokens", [0, 1, 7, 50])
def test_tokens_in_parts_give_the_same(tokens: int, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The feed-forward network's tokens pass in parts; of no tokens every gradient is zero."""
    batch, layer = random_batch([tokens], CONFIG.vocab_size, 0, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)
    whole = run("native", layer, x, grad, batch)
    monkeypatch.setattr(native_training, "CHUNK", 7)
    for name, value in run("native", layer, x, grad, batch).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-5, msg=name)
        assert tokens or not value.any()


def test_frozen_weights_get_no_gradient_and_others_the_same(seed: int) -> None:
    batch, layer = random_batch([13, 1, 0, 40], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)
    everything = run("native", layer, x, grad, batch)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_("key" in name or "LayerNorm" in name)
    for name, gradient in run("native", layer, x, grad, batch).items():
        assert torch.equal(gradient, everything[name]), name


@pytest.mark.parametrize(
    "place", ["attention.output.LayerNorm.weight", "output.LayerNorm.bias", "output.dense.bias", "output.dense.weight"]
)
def test_weights_that_do_not_fit_are_named(place: str, seed: int) -> None:
    """In training without gradients too, where torch would not look at their gradients' shapes."""
    batch, layer = random_batch([13, 5], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)
    parameter = layer.get_parameter(place)
    parameter.data = parameter.data[..., :3].clone()
    with pytest.raises(UserError, match=r" of layer 1 has shape \((96, )?3,?\): it must be \(96,"):
        run("native", layer, x, grad, batch)
    with torch.no_grad(), use_backend("native"), pytest.raises(UserError, match="of layer 1 has shape"):
        layer(x, layer_batch(batch, 0.1, 0.1, True))


@pytest.mark.parametrize("hidden", [0.0, 0.1], ids=["attention", "both"])
def test_keys_that_are_not_there_are_named(hidden: float, seed: int) -> None:
    batch, layer = random_batch([13, 1, 40], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, _ = operands(batch, 96, seed)
    assert batch.dropout_key is not None
    for key in (batch.dropout_key[:2], batch.dropout_key.int(), batch.dropout_key[:, None]):
        wrong = replace(batch, dropout_key=key)
        with use_backend("native"), pytest.raises(UserError, match=r"key must be (torch\.)?int64"):
            layer(x, layer_batch(wrong, hidden, 0.1, True))


def model_of(seed: int, kind: type[nn.Module] = BertForPreTraining) -> nn.Module:
    model = kind(CONFIG)
    model.init_weights(seed=seed)
    return model.train()


def step(model: nn.Module, batch: PackedBatch, backend: str | None = None, **inputs) -> dict[str, Tensor]:
    """The loss and every gradient."""
    with use_backend(backend):
        loss = model(batch, **inputs).loss
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("kind", ["fp32", "autocast"])
def test_a_model_trains_natively_without_being_asked(kind: str, calls: list[str], seed: int) -> None:
    batch, model = random_batch([13, 40, 5, 90], CONFIG.vocab_size, 20, seed), model_of(seed)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        actual, expected = step(model, batch), step(model, batch, "eager")
    assert calls == ["forward"] * 2 + ["backward"] * 2
    exact = step(model.double(), batch, "eager")
    assert actual.keys() == exact.keys()
    for name, truth in exact.items():
        floor = 1e-5 if kind == "fp32" else 4e-3
        assert_as_accurate(actual[name], expected[name], truth.double(), name, factor=FACTOR, floor=floor)


def test_a_classifier_trains_natively(calls: list[str], seed: int) -> None:
    batch, model = random_batch([13, 40, 5], CONFIG.vocab_size, 20, seed), model_of(seed, BertForSequenceClassification)
    labels = torch.tensor([0, 1, 1])
    actual, expected = (step(model, batch, backend, labels=labels) for backend in (None, "eager"))
    assert calls == ["forward"] * 2 + ["backward"] * 2
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("mode", ["layer", "selective"])
def test_checkpointed_activations_change_no_bit(mode: str, calls: list[str], seed: int) -> None:
    batch, model = random_batch([13, 40, 5, 90], CONFIG.vocab_size, 20, seed), model_of(seed)
    kept = step(model, batch)
    model.checkpoint_activations(mode)
    again = step(model, batch)
    assert calls.count("backward") == 4
    for name, value in kept.items():
        assert torch.equal(value, again[name]), name


def test_gradients_add_up_over_micro_batches(seed: int) -> None:
    first, second = (random_batch([13, 40], CONFIG.vocab_size, 20, seed + i) for i in range(2))
    model = model_of(seed)
    apart = [step(model, batch) for batch in (first, second)]
    for batch in (first, second):
        model(batch).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, apart[0][name] + apart[1][name], rtol=1e-6, atol=1e-7, msg=name)


def test_a_graph_that_is_kept_gives_the_same_gradients_again(seed: int) -> None:
    batch, model = random_batch([13, 40], CONFIG.vocab_size, 20, seed), model_of(seed)
    loss = model(batch).loss
    leaves = list(model.parameters())
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    for a, b in zip(first, torch.autograd.grad(loss, leaves), strict=True):
        assert torch.equal(a, b)


OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "SGD fused": lambda p: torch.optim.SGD(p, 0.05, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, 0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, 0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, 0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 1.0),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01),
    "Rprop": lambda p: torch.optim.Rprop(p, 0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_step_of_an_optimizer_is_seen(name: str, seed: int) -> None:
    """A model whose weights were laid out before the step computes what a new one of the same weights does."""
    batch, model = random_batch([13, 40, 5], CONFIG.vocab_size, 20, seed), model_of(seed)
    optimizer = OPTIMIZERS[name](model.parameters())
    for _ in range(2):
        model(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert_as_new(model, batch)


def test_weights_swapped_by_data_are_seen(seed: int) -> None:
    batch, model, other = random_batch([13, 40, 5], CONFIG.vocab_size, 20, seed), model_of(seed), model_of(seed + 1)
    step(model, batch)
    for parameter, replacement in zip(model.parameters(), other.parameters(), strict=True):
        parameter.data = replacement.data.clone()
    assert_as_new(model, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
    assert_as_new(model, batch)
    model.load_state_dict(other.state_dict())
    assert_as_new(model, batch)


def assert_as_new(model: nn.Module, batch: PackedBatch) -> None:
    actual, anew = step(model, batch), step(deepcopy(model), batch)
    for name, value in actual.items():
        assert torch.equal(value, anew[name]), name


def test_a_step_leaves_no_memory_behind(seed: int) -> None:
    model = model_of(seed)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def steps(count: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            lengths = torch.randint(5, 60, (4,), generator=generator).tolist()
            model(random_batch(lengths, CONFIG.vocab_size, 20, seed)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        gc.collect()

    steps(3)
    before = caching_allocator.statistics()["in_use"]
    steps(20)
    assert caching_allocator.statistics()["in_use"] == before


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=["float64", "bf16"])
def test_gradients_do_not_follow_the_default_dtype(default: torch.dtype, seed: int) -> None:
    """Buffers that kernels write fp32 to are fp32, whatever torch makes where nobody says."""
    batch, layer = random_batch([13, 1, 40], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)
    model, before = BertForPreTraining(CONFIG).train(), torch.get_default_dtype()

    def gradients() -> list[Tensor]:
        loss = model(batch).loss
        assert loss is not None
        return list(torch.autograd.grad(loss, list(model.parameters())))

    expected, expected_of_model = run("native", layer, x, grad, batch), gradients()
    try:
        torch.set_default_dtype(default)
        actual, actual_of_model = run("native", layer, x, grad, batch), gradients()
    finally:
        torch.set_default_dtype(before)
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert all(map(torch.equal, actual_of_model, expected_of_model))


def test_nothing_follows_the_default_device(seed: int) -> None:
    """A kernel's result lies on the CPU where a program has made another device its default."""
    model, batch = BertForPreTraining(CONFIG), random_batch([13, 1, 40], CONFIG.vocab_size, 7, seed)
    optimizer = adamw(model, lr=1e-3, weight_decay=0.1)

    def losses() -> list[float]:
        values = []
        for training in (True, False):
            loss = model.train(training)(batch).loss
            assert loss is not None
            loss.backward()
            values.append(float(optimizer.clip_gradients(1e9)))
            optimizer.zero_grad()
            with torch.no_grad():
                values.append(float(loss))
                again = model(batch).loss
            assert again is not None
            values.append(float(again))
        return values

    expected = losses()
    with torch.device("meta"):
        actual = losses()
    assert actual == expected


@pytest.mark.parametrize("trains", [True, False], ids=["", "no_grad"])
@pytest.mark.parametrize("part", ["attention.output.dense", "output.LayerNorm", "intermediate.dense"])
@pytest.mark.parametrize("elements", [10, 500])
def test_vectors_of_other_lengths_are_refused(part: str, elements: int, trains: bool, seed: int) -> None:
    layer, batch = random_layer(seed), random_batch([13, 1, 24], CONFIG.vocab_size, 7, seed)
    layer.get_submodule(part).bias = nn.Parameter(torch.ones(elements))
    with torch.set_grad_enabled(trains), pytest.raises(UserError, match=f"of layer 1 has shape \\({elements},\\)"):
        layer(torch.randn(38, 96), layer_batch(batch, 0.1, 0.1, True))


@pytest.mark.parametrize("key", [torch.zeros(2).long(), torch.zeros(3).int(), torch.zeros(1, 3).long()])
def test_keys_of_other_shapes_are_refused(key: Tensor, seed: int) -> None:
    layer, batch = random_layer(seed), random_batch([13, 1, 24], CONFIG.vocab_size, 7, seed)
    batch = replace(batch, dropout_key=key)
    with pytest.raises(UserError, match=r"dropout_key must be int64 of shape \(3,\)"):
        layer(torch.randn(38, 96), layer_batch(batch, 0.0, 0.1, True))


def test_tokens_that_share_their_memory(seed: int) -> None:
    batch, layer = random_batch([13, 1, 24], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x = torch.randn(1, 96, generator=torch.Generator().manual_seed(seed)).expand(38, 96)
    dropouts = layer_batch(batch, 0.1, 0.1, True)
    assert torch.equal(layer(x, dropouts), layer(x.contiguous(), dropouts))


@pytest.mark.parametrize("change", ["weight", "widths", "x", "norm"])
def test_other_shapes_between_forward_and_backward_are_refused(change: str, seed: int) -> None:
    """torch does not see a new `.data`, and kernels would read and write beyond the end."""
    batch, layer = random_batch([13, 1, 26], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x = torch.randn(40, 96).requires_grad_()
    leaf = x * 1
    with use_backend("native"):
        y = layer(leaf, layer_batch(batch, 0.1, 0.1, True))
        if change == "weight":
            layer.intermediate.dense.weight.data = torch.randn(64, 96)
        elif change == "widths":
            layer.intermediate.dense.weight.data = torch.randn(320, 96)
            layer.output.dense.weight.data = torch.randn(96, 320)
        elif change == "x":
            leaf.data = torch.randn(1, 96)
        else:
            layer.output.LayerNorm.weight.data = torch.randn(5)
        with pytest.raises(UserError, match="layer 1 changed its shape or dtype between forward and backward"):
            y.sum().backward()


def test_saved_tensors_may_come_back_with_gaps(seed: int) -> None:
    batch, layer = random_batch([13, 1, 26], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x, grad = operands(batch, 96, seed)

    def spread(tensor: Tensor) -> Tensor:
        if tensor.dim() != 2 or isinstance(tensor, nn.Parameter):
            return tensor
        wide = tensor.new_full((tensor.shape[0], 2 * tensor.shape[1]), 7)
        wide[:, ::2] = tensor
        return wide[:, ::2]

    plain = run("native", layer, x, grad, batch)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, spread):
        spaced = run("native", layer, x, grad, batch)
    for name, value in plain.items():
        assert torch.equal(value, spaced[name]), name


@pytest.mark.parametrize("part", ["x", "query.bias", "output.dense.weight", "output.LayerNorm.weight"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_parts_of_memory_that_was_given_back_are_named(part: str, training: bool, seed: int) -> None:
    batch, layer = random_batch([13, 1, 26], CONFIG.vocab_size, 7, seed), random_layer(seed)
    x = torch.randn(40, 96)

    def gone(tensor: Tensor) -> Tensor:
        buffer = torch.zeros(tensor.numel() + 16)
        view = buffer[16:].view(tensor.shape)
        buffer.untyped_storage().resize_(0)
        return view

    if part == "x":
        x = gone(x)
    else:
        place = f"attention.self.{part}" if part == "query.bias" else part
        layer.get_parameter(place).data = gone(layer.get_parameter(place))
    with use_backend("native"), torch.set_grad_enabled(training), pytest.raises(UserError, match="given back"):
        layer(x, layer_batch(batch, 0.0, 0.0, False))
