"""The last layer is computed of the tokens that are read from it, and nothing but the time tells."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import layers
import pytest
import torch
from accuracy import assert_as_accurate
from batches import random_batch
from torch import Tensor, nn

from fastbert import (
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    PackedBatch,
    use_backend,
)
from fastbert.errors import UserError
from fastbert.models.base import PreTrainedModel
from fastbert.models.layers import layer_batch
from fastbert.models.modules import Encoder, Layer
from fastbert.ops.encoder_layer import op

CONFIG = BertConfig(
    vocab_size=120, hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=160,
    max_position_embeddings=64, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=3,
)  # fmt: skip
LENGTHS = [13, 1, 40, 7]
ROWS = [0, 20, 3, 3, 60, 0]


@pytest.fixture(params=["eager", "native", "triton"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "triton":
        pytest.importorskip("triton", reason="needs triton")
    return request.param


def random_layer(seed: int, config: BertConfig = CONFIG) -> Layer:
    return layers.random_layer(seed, config)


def run(backend: str, layer: Layer, x: Tensor, grad: Tensor, batch: PackedBatch, **options: Any) -> dict[str, Tensor]:
    """The output of ROWS and all gradients; computed of all tokens unless `rows` is among the options."""
    leaf = x.detach().requires_grad_()
    with use_backend(backend):
        y = layers.run_layer(layer, leaf, batch, 0.1, **options)
        y = y if "rows" in options else y[ROWS]
        named = dict(layer.named_parameters())
        gradients = torch.autograd.grad(y, [leaf, *named.values()], grad.to(y.dtype))
    return {"y": y.detach(), **dict(zip(["x", *named], gradients, strict=True))}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_a_layer_of_some_tokens_is_the_layer(backend: str, dtype: torch.dtype, recompute: bool, seed: int) -> None:
    batch, layer = random_batch(LENGTHS, 120, 5, seed), random_layer(seed).to(dtype)
    generator = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(batch.num_tokens, 96, generator=generator).to(dtype)
    grad = torch.randn(len(ROWS), 96, generator=generator).to(dtype)
    actual = run(backend, layer, x, grad, batch, rows=torch.tensor(ROWS), recompute=recompute)
    expected = run("eager", layer, x, grad, batch)
    exact = run("eager", layer.double(), x.double(), grad.double(), batch)
    # Sums over so few rows are a handful of roundings: which of two has the luckier ones is chance.
    factor = 3.0 if dtype == torch.float32 else 6.0
    for name, truth in exact.items():
        assert_as_accurate(actual[name], expected[name], truth, name, factor=factor)


def test_native_rows_have_the_bits_they_have_among_all(seed: int) -> None:
    batch, layer = random_batch(LENGTHS, 120, 5, seed), random_layer(seed)
    x, grad = torch.randn(batch.num_tokens, 96), torch.randn(len(ROWS), 96)
    rows = torch.tensor(ROWS)
    some, every = (run("native", layer, x, grad, batch, **options) for options in ({"rows": rows}, {}))
    assert torch.equal(some["y"], every["y"])
    torch.testing.assert_close(some["x"], every["x"], rtol=1e-5, atol=1e-5)
    for kind in (torch.float32, torch.bfloat16, "int8"):
        layer.quantization = "int8" if kind == "int8" else None
        with torch.no_grad(), use_backend("native"), torch.autocast("cpu", enabled=kind == torch.bfloat16):
            some, every = layers.run_layer(layer, x, batch, rows=rows), layers.run_layer(layer, x, batch)
            assert torch.equal(some, every[rows]), kind


HEADS: list[tuple[type[PreTrainedModel], Callable[[PackedBatch], dict[str, Any]]]] = [
    (BertForPreTraining, lambda batch: {"return_logits": True}),
    (BertForMaskedLM, lambda batch: {"return_logits": True}),
    (BertForNextSentencePrediction, lambda batch: {}),
    (BertForSequenceClassification, lambda batch: {"labels": torch.arange(len(batch)) % 3}),
    (BertForTokenClassification, lambda batch: {"labels": token_labels(batch), "return_logits": True}),
    (BertForMultipleChoice, lambda batch: {"labels": torch.tensor([1, 0]), "num_choices": 2}),
]


def token_labels(batch: PackedBatch) -> Tensor:
    labels = torch.arange(batch.num_tokens) % 4
    return labels.where(labels < 3, -100)


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it, and models compute the last layer of all tokens."""

    def apply() -> None:
        original = Encoder.forward

        def forward(self, x, batch, causal, output_hidden_states, rows=None):
            x, states = original(self, x, batch, causal, output_hidden_states)
            return x if rows is None else x[rows], states

        monkeypatch.setattr(Encoder, "forward", forward)

    return apply


def results(model: PreTrainedModel, batch: PackedBatch, options: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the model's output by name, and the gradients of its loss."""
    model.zero_grad(set_to_none=True)
    output = model(batch, **options)
    output.loss.backward()
    tensors = {name: value.detach() for name, value in vars(output).items() if isinstance(value, Tensor)}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return tensors | gradients


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("head", HEADS, ids=[kind.__name__ for kind, _ in HEADS])
@pytest.mark.parametrize("checkpointing", ["none", "selective", "layer"])
def test_every_head_gives_what_it_gave(
    head: tuple[type[PreTrainedModel], Callable[[PackedBatch], dict[str, Any]]],
    checkpointing: Any,
    backend: str,
    everything: Callable[[], None],
    rows_seen: list[int | None],
    seed: int,
) -> None:
    kind, options = head
    if backend == "triton" and (checkpointing != "none" or kind is not BertForPreTraining):
        pytest.skip("the layer itself is tested above, and interpreted kernels take long")
    batch = random_batch(LENGTHS, 120, 9, seed)
    model = kind(CONFIG).train()
    model.init_weights(seed=seed)
    model.checkpoint_activations(checkpointing)
    with use_backend(backend):
        actual = results(model, batch, options(batch))
        first, last = rows_seen[:2]
        assert first is None
        assert last is not None
        assert last < batch.num_tokens
        everything()
        expected = results(model, batch, options(batch))
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            actual[name], value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture
def rows_seen(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The number of rows that each layer that ran was asked for."""
    seen: list[int | None] = []
    original = Layer.forward

    def forward(self, x, batch, spec=None, recompute=False):
        seen.append(None if batch.token_indices is None else len(batch.token_indices))
        return original(self, x, batch, spec, recompute)

    monkeypatch.setattr(Layer, "forward", forward)
    return seen


def test_bf16_by_the_library_gets_rounded_numbers_of_rows(rows_seen: list[int | None], seed: int) -> None:
    model, batch = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    with use_backend("eager"), torch.no_grad():
        plain = model(batch).loss
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(batch).loss
    assert rows_seen == [None, 13, None, 64]
    torch.testing.assert_close(loss, plain, rtol=0.02, atol=0.02)


def watch(module: nn.Module, seen: list[int]) -> None:
    module.register_forward_hook(lambda module, inputs, output: seen.append(len(firsts(output))))


def firsts(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else firsts(output[0])


@pytest.mark.parametrize(
    "place", ["encoder", "encoder.layer.1", "encoder.layer.1.output", "encoder.layer.1.output.dense"]
)
def test_hooks_see_every_token(place: str, backend: str, seed: int) -> None:
    if backend == "triton" and place != "encoder.layer.1.output":
        pytest.skip("hooks are found before a backend is, and interpreted kernels take long")
    model, batch = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    with torch.no_grad(), use_backend(backend):
        before, seen = model(batch).loss, []
        watch(model.bert.get_submodule(place), seen)
        after = model(batch).loss
    assert seen == [batch.num_tokens]
    torch.testing.assert_close(after, before)


def test_hidden_states_are_of_all_tokens(backend: str, seed: int) -> None:
    model, batch = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    with torch.no_grad(), use_backend(backend):
        plain, kept = model(batch), model(batch, output_hidden_states=True)
        whole = model.bert(batch, output_hidden_states=True)
    assert kept.hidden_states is not None
    assert whole.hidden_states is not None
    assert len(kept.hidden_states) == 3
    for actual, expected in zip(kept.hidden_states, whole.hidden_states, strict=True):
        assert torch.equal(actual, expected)
    torch.testing.assert_close(plain.loss, kept.loss)


def test_a_layer_of_another_class_computes_all_tokens(seed: int) -> None:
    class Doubled(Layer):
        def forward(self, x, batch, spec=None, recompute=False):
            return 2 * super().forward(x, batch, spec, recompute)

    model, batch = BertModel(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    model.encoder.layer[1].__class__ = Doubled
    rows = torch.tensor(ROWS)
    with torch.no_grad():
        assert torch.equal(model.encode(batch, token_indices=rows)[0], model.encode(batch)[0][rows])


def test_an_encoder_of_another_class_computes_all_tokens(seed: int) -> None:
    class Old(Encoder):
        def forward(self, x, batch, causal, output_hidden_states):  # written without token indices
            return super().forward(x, batch, causal, output_hidden_states)

    model, batch = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    with torch.no_grad():
        plain = model(batch).loss
        model.bert.encoder.__class__ = Old
        torch.testing.assert_close(model(batch).loss, plain)


def test_hooks_on_all_modules_see_every_token(seed: int) -> None:
    model, batch, seen = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed), []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, Layer):
            seen.append(len(output))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad():
            model(batch)
    finally:
        handle.remove()
    assert seen == [batch.num_tokens] * 2


@pytest.mark.parametrize("places", [torch.ones(61, dtype=torch.bool), torch.tensor([3, 5]).int()])
@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM])
def test_places_of_another_dtype_are_named(kind: type[PreTrainedModel], places: Tensor, seed: int) -> None:
    batch = replace(random_batch(LENGTHS, 120, 2, seed), masked_positions=places)
    with pytest.raises(UserError, match=f"masked_positions must be int64 .places,., not {places.dtype}"):
        kind(CONFIG)(batch)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        pytest.param([], 0, id="no sequence"),
        pytest.param([0, 0], 0, id="empty sequences"),
        pytest.param([0, 3, 0], 1, id="some empty"),
        pytest.param([4, 5], 0, id="no label"),
    ],
)
def test_batches_without_tokens_or_labels(batch: list[int], count: int, backend: str, seed: int) -> None:
    packed = random_batch(batch or [0], 120, count, seed)
    if not batch:
        packed = packed[:0]
    for kind in (BertForPreTraining, BertForSequenceClassification, BertForMaskedLM):
        model = kind(CONFIG).train()
        with use_backend(backend):
            output = model(packed)
        assert all(value.isfinite().all() for value in vars(output).values() if isinstance(value, Tensor))


@pytest.mark.parametrize("row", [-1, 61])
def test_rows_outside_are_refused(row: int, backend: str, seed: int) -> None:
    batch, layer = random_batch(LENGTHS, 120, 9, seed), random_layer(seed)
    x, rows = torch.randn(61, 96), torch.tensor([0, row])
    for training in (False, True):
        with (
            torch.set_grad_enabled(training),
            use_backend(backend),
            pytest.raises((IndexError, UserError), match=f"out of range|{row}, outside the 61 tokens"),
        ):
            layer(x, replace(layer_batch(batch, 0.1, 0.1, training), token_indices=rows))


def test_rows_of_another_kind_are_named(seed: int) -> None:
    batch, layer = random_batch(LENGTHS, 120, 9, seed), random_layer(seed)
    for rows in (torch.tensor([1, 2], dtype=torch.int32), torch.tensor([[1, 2]]), torch.tensor([1.0])):
        with use_backend("native"), pytest.raises(UserError, match="token_indices must be int64 of shape"):
            layer(torch.randn(61, 96), replace(layer_batch(batch, 0.0, 0.0, False), token_indices=rows))


def test_masked_positions_may_be_first_tokens_and_repeat(backend: str, seed: int) -> None:
    model, batch = BertForPreTraining(CONFIG).train(), random_batch(LENGTHS, 120, 4, seed)
    places = torch.tensor([0, 5, 5, 14])
    twice = replace(batch, masked_positions=places)
    with use_backend(backend):
        loss = model(twice, return_logits=True)
        loss.loss.backward()
    assert loss.prediction_logits is not None
    assert torch.equal(loss.prediction_logits[1], loss.prediction_logits[2])


def test_compiled_whole(seed: int) -> None:
    torch._dynamo.reset()
    model, batch = BertForPreTraining(CONFIG).eval(), random_batch(LENGTHS, 120, 9, seed)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(batch).loss, model(batch).loss, rtol=1e-4, atol=1e-5)


def test_the_operation_itself_takes_rows(seed: int) -> None:
    """Without a model: `serves` and `encoder_layer`, as other models call them."""
    batch, layer = random_batch(LENGTHS, 120, 9, seed), random_layer(seed)
    parameters = layer.fusible_parameters()
    assert parameters is not None
    whole = layer_batch(batch, 0.0, 0.0, False)
    some_tokens = replace(whole, token_indices=torch.tensor(ROWS)[::2])
    x = torch.randn(61, 96)
    with torch.no_grad(), use_backend("native"):
        some = op.encoder_layer(x, parameters, layer.spec, some_tokens)
        every = op.encoder_layer(x, parameters, layer.spec, whole)
    assert torch.equal(some, every[ROWS[::2]])
