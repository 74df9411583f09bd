"""Models that somebody changed: what an accelerated one computes is what the changed model computes."""

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastbert
from fastbert.integrations.accelerate import explain
from fastbert.ops.native import prepacked_weights

pytest.importorskip("transformers", reason="needs transformers")
import transformers
from toys import COLUMNS, gradients, inputs, masks, real, toy

RIGHT = masks()["right"]
THERE = real(RIGHT)


class Scaled(nn.Dropout):
    def forward(self, x: Tensor) -> Tensor:
        return x * 0.5


class ColumnMean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) - x.mean(1, keepdim=True)


class Running(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cumsum(1)


class Rms(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(1, keepdim=True) + 1).sqrt()


def at(path: str, make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A change that puts another module in the place of one."""

    def change(model: Any) -> None:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, make(model.get_submodule(path)))

    return change


def patched(path: str, name: str, function: Callable[..., Any]) -> Callable[[Any], None]:
    """A change that puts another method on one object."""

    def change(model: Any) -> None:
        module = model.get_submodule(path)
        setattr(module, name, types.MethodType(function, module))

    return change


def attribute(path: str, name: str, value: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        setattr(model.get_submodule(path), name, value)

    return change


def running(linear: nn.Linear) -> Running:
    made = Running(linear.in_features, linear.out_features)
    made.load_state_dict(linear.state_dict())
    return made


def buffers(model: Any) -> None:
    model.embeddings.position_ids = model.embeddings.position_ids.flip(1)[:, : COLUMNS + 9]
    model.embeddings.token_type_ids = torch.ones_like(model.embeddings.token_type_ids)


FIRST, ATTENTION = "encoder.layer.1", "encoder.layer.1.attention.self"
CHANGES: list[Any] = [
    pytest.param(at(f"{FIRST}.output.dropout", lambda _: Scaled()), id="dropout-of-another-kind"),
    pytest.param(at("embeddings.dropout", lambda _: Scaled()), id="embedding-dropout"),
    pytest.param(patched(f"{FIRST}.output.dropout", "forward", lambda self, x: x * 0.3), id="dropout-patched"),
    pytest.param(at(f"{FIRST}.output.dropout", lambda _: nn.Identity()), id="no-dropout"),
    pytest.param(at(f"{FIRST}.intermediate.intermediate_act_fn", lambda _: ColumnMean()), id="mixing-activation"),
    pytest.param(at(f"{FIRST}.intermediate.dense", running), id="mixing-linear"),
    pytest.param(at(f"{FIRST}.output.LayerNorm", lambda _: Rms()), id="mixing-norm"),
    pytest.param(at(f"{FIRST}.output.LayerNorm", lambda _: nn.LayerNorm(64, bias=False)), id="norm-without-bias"),
    pytest.param(at(f"{FIRST}.output.LayerNorm", lambda _: nn.RMSNorm(64)), id="rms-norm"),
    pytest.param(attribute(ATTENTION, "scaling", 0.5), id="scaling"),
    pytest.param(patched(FIRST, "feed_forward_chunk", lambda self, x: x * 2), id="method-of-a-layer"),
    pytest.param(
        patched(f"{FIRST}.intermediate.intermediate_act_fn", "forward", lambda self, x: x), id="activation-patched"
    ),
    pytest.param(buffers, id="buffers"),
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("before", [True, False], ids=["changed-first", "accelerated-first"])
@torch.no_grad()
def test_changed_modules_count(change: Callable[[Any], None], before: bool, seed: int) -> None:
    # Nothing is padded: what columns of padding add to others' is not the same, since theirs are zeros.
    kwargs = inputs(seed, None)
    reference = toy("BertModel", seed)
    accelerated = toy("BertModel", seed)
    change(reference)
    for step in (change, fastbert.accelerate) if before else (fastbert.accelerate, change):
        step(accelerated)
    expected, actual = (model(**kwargs).last_hidden_state for model in (reference, accelerated))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


PATCHES: list[Any] = [
    pytest.param("BertModel", "models.bert.modeling_bert.BertSelfAttention", id="attention"),
    pytest.param("BertModel", "models.bert.modeling_bert.BertIntermediate", id="intermediate"),
    pytest.param("BertModel", "models.bert.modeling_bert.BertEmbeddings", id="embeddings"),
    pytest.param("BertModel", "models.bert.modeling_bert.BertEncoder", id="encoder"),
    pytest.param("BertForMaskedLM", "models.bert.modeling_bert.BertLMPredictionHead", id="head"),
    pytest.param("BertModel", nn.Linear, id="linear"),
    pytest.param("BertModel", nn.LayerNorm, id="layer-norm"),
]


@pytest.mark.parametrize(("name", "kind"), PATCHES)
@torch.no_grad()
def test_patches_of_whole_classes_count(name: str, kind: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import operator

    kind = operator.attrgetter(kind)(transformers) if isinstance(kind, str) else kind
    plain = kind.forward

    def half(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        if isinstance(result, tuple):
            return (result[0] * 0.5, *result[1:])
        if isinstance(result, Tensor):
            return result * 0.5
        result.last_hidden_state = result.last_hidden_state * 0.5
        return result

    model, arguments = fastbert.accelerate(toy(name, seed)), inputs(seed, RIGHT)
    monkeypatch.setattr(kind, "forward", half)
    expected = fastbert.restore(copy.deepcopy(model))(**arguments)[0]
    torch.testing.assert_close(model(**arguments)[0][THERE], expected[THERE], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_an_attention_of_ones_own_counts(seed: int) -> None:
    def uniform(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> Any:
        return value.mean(2, keepdim=True).expand_as(query).transpose(1, 2), None

    transformers.AttentionInterface.register("test_uniform", uniform)
    model, kwargs = fastbert.accelerate(toy("BertModel", seed)), inputs(seed, RIGHT)
    model.set_attn_implementation("test_uniform")
    actual = model(**kwargs).last_hidden_state
    assert any("attn_implementation='test_uniform'" in line for line in explain(model))
    torch.testing.assert_close(actual, fastbert.restore(model)(**kwargs).last_hidden_state)


@pytest.mark.parametrize("name", ["BertModel", "DistilBertModel"])
@torch.no_grad()
def test_attention_drops_by_its_own_mode(name: str, seed: int) -> None:
    """transformers asks the attention whether it trains, not its dropout module, as the usual Monte Carlo loop sets."""
    model, kwargs = toy(name, seed, dropout=0.4), inputs(seed, RIGHT)
    attention = model.encoder.layer[1].attention.self if name == "BertModel" else model.transformer.layer[1].attention
    attention.dropout.train()
    before = model(**kwargs).last_hidden_state[THERE]
    fastbert.accelerate(model)
    torch.testing.assert_close(model(**kwargs).last_hidden_state[THERE], before, rtol=1e-4, atol=1e-4)
    attention.train()
    attention.dropout.eval()
    assert not torch.equal(model(**kwargs).last_hidden_state, model(**kwargs).last_hidden_state)


def test_hidden_states_are_on_the_way_to_the_loss(seed: int) -> None:
    kwargs, result = inputs(seed, RIGHT), []
    for accelerated in (False, True):
        model = toy("BertModel", seed).train()
        if accelerated:
            fastbert.accelerate(model)
        output = model(**kwargs, output_hidden_states=True)
        loss = (output.last_hidden_state[THERE] * torch.arange(64)).sum()
        result.append([grad[THERE] for grad in torch.autograd.grad(loss, output.hidden_states)])
    for actual, expected in zip(result[1], result[0], strict=True):
        assert expected.any()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_frozen_weights_with_trained_biases(seed: int) -> None:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(64, 2, 96, dropout=0.0, batch_first=True, activation="gelu")
    model, x, result = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 7, 64), []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    upstream = torch.randn(3, 7, 64)
    for accelerated in (False, True):
        if accelerated:
            fastbert.accelerate(model)
        result.append(gradients(model, model(x), upstream))
    assert result[0].keys() == result[1].keys()
    assert "layers.0.self_attn.in_proj_bias" in result[1]
    for name, grad in result[0].items():
        torch.testing.assert_close(result[1][name], grad, rtol=1e-3, atol=1e-4 * max(1.0, float(grad.abs().max())))
    with torch.no_grad():
        model(x)
        model.layers[0].self_attn.in_proj_bias.data = torch.randn(192)
        torch.testing.assert_close(model(x), fastbert.restore(model)(x), rtol=1e-4, atol=1e-4)


def test_arguments_that_torchs_encoder_does_not_have(seed: int) -> None:
    layer = nn.TransformerEncoderLayer(64, 2, 96, batch_first=True, activation="gelu")
    model, x = fastbert.accelerate(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)), torch.randn(2, 5, 64)
    for wrong in ({"src_mask": None}, {"key_padding_mask": None}, {"src": x}):
        with pytest.raises(TypeError):
            model(x, **wrong)
    with pytest.raises(TypeError):
        fastbert.accelerate(toy("BertModel", seed))(torch.ones(1, 3, dtype=torch.int64), input_ids=torch.ones(1, 3))


@torch.no_grad()
def test_a_row_of_the_table_written_past_torchs_count(seed: int) -> None:
    model, kwargs = fastbert.accelerate(toy("BertForMaskedLM", seed)), inputs(seed, RIGHT)
    model(**kwargs)
    for _ in range(2):
        model.bert.embeddings.word_embeddings.weight.data[77] = torch.randn(64)
        actual = model(**kwargs).logits
        expected = fastbert.restore(copy.deepcopy(model))(**kwargs).logits
        torch.testing.assert_close(actual[THERE], expected[THERE], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_accelerating_again_looks_at_weights_anew(seed: int) -> None:
    model, kwargs = fastbert.accelerate(toy("BertModel", seed)), inputs(seed, RIGHT)
    model(**kwargs)
    weight = model.encoder.layer[0].output.dense.weight
    weight.data[3, 5] += 9.0  # a single number, past torch's count of writes
    actual = fastbert.accelerate(model)(**kwargs).last_hidden_state
    expected = fastbert.restore(copy.deepcopy(model))(**kwargs).last_hidden_state
    torch.testing.assert_close(actual[THERE], expected[THERE], rtol=1e-4, atol=1e-4)
    fastbert.restore(model)
    assert not any(weight is first for first in prepacked_weights._copies)


@torch.no_grad()
def test_restoring_below_what_another_library_wrapped(seed: int) -> None:
    model, arguments = toy("BertModel", seed), inputs(seed, RIGHT)
    before = model(**arguments).last_hidden_state
    fastbert.accelerate(model)
    inner = model.forward
    model.forward = lambda *args, **kwargs: inner(*args, **kwargs)
    assert not model(**arguments).last_hidden_state[~THERE].any()
    fastbert.accelerate(model)
    assert not model(**arguments).last_hidden_state[~THERE].any()
    assert explain(model)
    fastbert.restore(model)
    assert torch.equal(model(**arguments).last_hidden_state, before)
    assert not explain(model)


@torch.no_grad()
def test_replicas_compute_with_their_own_weights(seed: int) -> None:
    """As `DataParallel` makes them for several GPUs of one process."""
    model, kwargs = fastbert.accelerate(toy("BertModel", seed)), inputs(seed, RIGHT)
    replicas = [module._replicate_for_data_parallel() for module in model.modules()]
    index = {module: i for i, module in enumerate(model.modules())}
    for module, replica in zip(list(index), replicas, strict=True):
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else replicas[index[child]]
        for name, parameter in module._parameters.items():
            setattr(replica, name, None if parameter is None else parameter.detach() * 0.5)
    actual = replicas[0](**kwargs).last_hidden_state
    half = copy.deepcopy(model)
    for parameter in half.parameters():
        parameter.mul_(0.5)
    expected = fastbert.restore(half)(**kwargs).last_hidden_state
    torch.testing.assert_close(actual[THERE], expected[THERE], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_head_by_keyword_and_of_no_tokens(seed: int) -> None:
    model = fastbert.accelerate(toy("BertForMaskedLM", seed))
    hidden = torch.randn(2, 3, 64)
    torch.testing.assert_close(model.cls.predictions(hidden_states=hidden), model.cls.predictions(hidden))
    assert model.cls.predictions(torch.empty(0, 3, 64)).shape == (0, 3, 211)


@torch.no_grad()
def test_hooks_get_the_arguments_they_got(seed: int) -> None:
    arguments, seen = inputs(seed, RIGHT), []
    for accelerated in (False, True):
        model = toy("BertModel", seed)
        if accelerated:
            fastbert.accelerate(model)

        def look(module: Any, args: Any, kwargs: Any) -> None:
            seen.append((len(args), sorted(kwargs)))

        model.encoder.layer[0].register_forward_pre_hook(look, with_kwargs=True)
        model(**arguments)
    assert seen[0] == seen[1]


def test_autocast_behind_electras_projection(seed: int) -> None:
    kwargs = inputs(seed, RIGHT)
    model = toy("ElectraModel", seed)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        before = model(**kwargs).last_hidden_state
        actual = fastbert.accelerate(model)(**kwargs).last_hidden_state
    assert actual.dtype == before.dtype == torch.bfloat16


def test_transforms_take_the_original(seed: int) -> None:
    model, arguments = fastbert.accelerate(toy("BertModel", seed)), inputs(seed, RIGHT)
    parameters = dict(model.named_parameters())

    def loss(leaves: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, leaves, kwargs=arguments).last_hidden_state[THERE].square().sum()

    result = torch.func.grad(loss)(parameters)
    expected = torch.autograd.grad(loss(parameters), list(parameters.values()), allow_unused=True)
    for (name, grad), other in zip(result.items(), expected, strict=True):
        if other is not None:
            scale = max(1.0, float(other.abs().max()))
            torch.testing.assert_close(grad, other, rtol=1e-3, atol=1e-3 * scale, msg=name)
