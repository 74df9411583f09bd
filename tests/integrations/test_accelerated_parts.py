"""Parts of an accelerated model that are not what their class says: adapters, quantised, parametrised, hooked."""

import copy
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor, nn
from torch.nn.utils import parametrize

import fastbert
from fastbert.integrations.accelerate import explain
from fastbert.integrations.transformers.encoder import PackedForward
from fastbert.ops.encoder_layer.operands import are_adjacent

pytest.importorskip("transformers", reason="needs transformers")
from toys import gradients, inputs, masks, real, toy

RIGHT = masks()["right"]
THERE = real(RIGHT)


def check(model: Any, seed: int, *, trained: bool = False, changed: Any = None) -> None:
    """The accelerated model's output and gradients beside the original's, with `changed(model)` after acceleration."""
    kwargs = inputs(seed, RIGHT)
    copied = fastbert.accelerate(copy.deepcopy(model))
    if changed is not None:
        changed(model)
        copied = changed(copied) or copied
    exact, eager, accelerated = (
        one(**kwargs).last_hidden_state[THERE] for one in (copy.deepcopy(model).double(), model, copied)
    )
    assert_as_accurate(accelerated, eager, exact, factor=4.0)
    if trained:
        upstream = torch.randn(accelerated.shape, generator=torch.Generator().manual_seed(seed))
        close(gradients(copied, accelerated, upstream), gradients(model, eager, upstream))


@pytest.mark.parametrize("family", ["Bert", "DistilBert"])
@pytest.mark.parametrize("before", [True, False], ids=["peft-first", "accelerate-first"])
def test_lora(family: str, before: bool, seed: int) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    targets = ["query", "value", "output.dense"] if family == "Bert" else ["q_lin", "lin2"]
    config = peft.LoraConfig(r=4, target_modules=targets, lora_dropout=0.0)

    def adapted(model: nn.Module) -> Any:
        torch.manual_seed(seed)
        result = peft.get_peft_model(model, config)
        for name, parameter in result.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.3)
        return result

    def base(model: Any) -> Any:
        return adapted(model).eval()

    model, kwargs = toy(f"{family}Model", seed), inputs(seed, RIGHT)
    plain = model(**kwargs).last_hidden_state.detach()
    reference = base(copy.deepcopy(model))
    accelerated = fastbert.accelerate(base(model)) if before else base(fastbert.accelerate(model))
    assert explain(accelerated)
    for _ in range(2):
        expected, actual = (each(**kwargs).last_hidden_state for each in (reference, accelerated))
        assert not actual[~THERE].any()
        torch.testing.assert_close(actual[THERE], expected[THERE], rtol=1e-4, atol=1e-4)
        assert not torch.allclose(plain[THERE], actual[THERE], atol=0.05), "the adapters must count"
        accelerated.train(), reference.train()
    upstream = torch.randn(actual[THERE].shape)
    grads = [gradients(one, value[THERE], upstream) for one, value in ((reference, expected), (accelerated, actual))]
    assert any("lora_A" in name for name in grads[1])
    close(grads[1], grads[0])
    with accelerated.disable_adapter(), torch.no_grad():
        torch.testing.assert_close(accelerated(**kwargs).last_hidden_state[THERE], plain[THERE], rtol=1e-4, atol=1e-4)


def test_projections_joined_as_on_a_gpu_change_nothing(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model, kwargs = toy("BertModel", seed), inputs(seed, RIGHT)
    names, expected = [name for name, _ in model.named_parameters()], model(**kwargs).last_hidden_state[THERE]
    attention = model.encoder.layer[0].attention.self
    weights = [attention.query.weight, attention.key.weight, attention.value.weight]
    monkeypatch.setattr(PackedForward, "is_on_gpu", lambda self: True)
    fastbert.accelerate(model)
    assert are_adjacent([attention.query.weight, attention.key.weight, attention.value.weight])
    assert all(a is b for a, b in zip(weights, (attention.query.weight, attention.key.weight, attention.value.weight)))
    torch.testing.assert_close(model(**kwargs).last_hidden_state[THERE], expected, rtol=1e-4, atol=1e-4)
    assert [name for name, _ in fastbert.restore(model).named_parameters()] == names
    torch.testing.assert_close(model(**kwargs).last_hidden_state[THERE], expected)


def test_adapters_by_sample(seed: int) -> None:
    """Each row of a batch with an adapter of its own: peft asks by hooks on padded rows."""
    peft = pytest.importorskip("peft", reason="needs peft")
    model = peft.get_peft_model(toy("BertModel", seed), peft.LoraConfig(r=2, target_modules=["query"]), "one")
    model.add_adapter("two", peft.LoraConfig(r=2, target_modules=["query"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.5)
    model.eval()
    kwargs = {**inputs(seed, RIGHT), "adapter_names": ["one", "two", "__base__", "one"]}
    with torch.no_grad():
        before = model(**kwargs).last_hidden_state
        actual = fastbert.accelerate(model)(**kwargs).last_hidden_state
    torch.testing.assert_close(actual[THERE], before[THERE], rtol=1e-4, atol=1e-4)


def close(result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Gradients that are equal but for rounding; that of the keys' bias is zero but for rounding."""
    assert result.keys() == expected.keys()
    for name, grad in expected.items():
        scale = max(1.0, float(grad.abs().max()))
        torch.testing.assert_close(
            result[name], grad, rtol=1e-3, atol=1e-3 * scale, msg=lambda text, n=name: f"{n}: {text}"
        )


class Halved(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def halve(model: Any) -> None:
    parametrize.register_parametrization(model.encoder.layer[1].intermediate.dense, "weight", Halved())


def test_parametrised_weights(seed: int) -> None:
    model = toy("BertModel", seed)
    check(model, seed, trained=True, changed=halve)


def test_dynamically_quantised_linears(seed: int) -> None:
    model, kwargs = toy("BertModel", seed), inputs(seed, RIGHT)
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    with torch.no_grad():
        before = quantised(**kwargs).last_hidden_state[THERE]
        actual = fastbert.accelerate(quantised)(**kwargs).last_hidden_state[THERE]
    cosine = torch.nn.functional.cosine_similarity(actual, before, dim=-1)
    assert cosine.min() > 0.99


HOOKED = ["encoder.layer.1", "encoder.layer.1.attention.self", "encoder.layer.1.intermediate.dense", "embeddings",
          "encoder.layer.0.output.LayerNorm", "encoder", "embeddings.word_embeddings", "pooler", ""]  # fmt: skip


@pytest.mark.parametrize("name", HOOKED)
@torch.no_grad()
def test_hooks_see_what_they_saw(name: str, seed: int) -> None:
    """Padded shapes, and what they return is what counts."""
    kwargs, result = inputs(seed, RIGHT), []
    for accelerated in (False, True):
        model = toy("BertModel", seed)
        if accelerated:
            fastbert.accelerate(model)
        seen: list[Any] = []

        def hook(module: nn.Module, args: Any, output: Any, seen: list[Any] = seen) -> Any:
            first = output if isinstance(output, Tensor) else output[0]
            seen.append(first.clone())
            return output * 1.5 if isinstance(output, Tensor) else None

        handle = model.get_submodule(name).register_forward_hook(hook)
        output = model(**kwargs)
        assert len(seen) == 1
        handle.remove()
        after = model(**kwargs)
        assert len(seen) == 1
        result.append((seen[0], output, after))
    expected, actual = result
    assert actual[0].shape == expected[0].shape
    if actual[0].shape[:2] == THERE.shape:
        torch.testing.assert_close(actual[0][THERE], expected[0][THERE], rtol=1e-4, atol=1e-4)
    for one, other in ((actual[1], expected[1]), (actual[2], expected[2])):
        torch.testing.assert_close(one.pooler_output, other.pooler_output, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(one.last_hidden_state[THERE], other.last_hidden_state[THERE], rtol=1e-4, atol=1e-4)


def test_backward_hooks_and_frozen_parts(seed: int) -> None:
    kwargs, result = inputs(seed, RIGHT), []
    for accelerated in (False, True):
        model = toy("BertModel", seed).train()
        model.embeddings.requires_grad_(False)
        model.encoder.layer[0].requires_grad_(False)
        if accelerated:
            fastbert.accelerate(model)
        seen: list[Tensor] = []
        model.encoder.layer[2].register_full_backward_hook(lambda m, i, o, seen=seen: seen.append(o[0]))
        value = model(**kwargs).last_hidden_state[THERE]
        result.append((gradients(model, value, torch.ones_like(value) * torch.arange(64)), seen))
    close(result[1][0], result[0][0])
    assert len(result[1][1]) == 1
    assert result[1][1][0].shape == result[0][1][0].shape


def test_a_layer_of_another_kind_runs_its_own_forward(seed: int) -> None:
    class Doubled(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, hidden_states: Tensor, attention_mask: Any = None, *args: Any, **kwargs: Any) -> Tensor:
            return 2 * self.layer(hidden_states, attention_mask)

    def change(model: Any) -> None:
        model.encoder.layer[1] = Doubled(model.encoder.layer[1])

    check(toy("BertModel", seed), seed, trained=True, changed=change)
    model = toy("BertModel", seed)
    change(model)
    lines = explain(fastbert.accelerate(model))
    assert any("layer 1 runs its own forward" in line for line in lines)


def test_another_activation(seed: int) -> None:
    for activation in ("relu", "silu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"):
        check(toy("BertModel", seed, hidden_act=activation), seed, trained=True)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_gradient_checkpointing(dropout: float, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recomputed activations have the dropout of the first pass."""
    from fastbert.integrations.transformers import encoder as packed_forward

    kwargs, result, calls = inputs(seed, RIGHT), [], []
    original = packed_forward.checkpoint
    for function in (lambda layer, *args, use_reentrant: layer(*args), original):

        def counted(*args: Any, function: Any = function, **options: Any) -> Tensor:
            calls.append(function)
            return function(*args, **options)

        monkeypatch.setattr(packed_forward, "checkpoint", counted)
        model = fastbert.accelerate(toy("BertModel", seed, dropout=dropout).train())
        model.gradient_checkpointing_enable()
        torch.manual_seed(seed)
        value = model(**kwargs).last_hidden_state[THERE]
        result.append(gradients(model, value, torch.ones_like(value) * torch.arange(64)))
    assert calls.count(original) == 3
    close(result[1], result[0])


@torch.no_grad()
def test_weights_changed_in_any_way_count(seed: int) -> None:
    model, kwargs = fastbert.accelerate(toy("BertModel", seed)), inputs(seed, RIGHT)

    def changed() -> None:
        actual = model(**kwargs).last_hidden_state[THERE]
        plain = fastbert.restore(copy.deepcopy(model))(**kwargs).last_hidden_state[THERE]
        torch.testing.assert_close(actual, plain, rtol=1e-4, atol=1e-4)

    changed()
    dense = model.encoder.layer[1].output.dense
    dense.weight.mul_(0.5)
    changed()
    dense.weight.data = dense.weight.data.clone() * 2
    changed()
    dense.weight = nn.Parameter(torch.randn_like(dense.weight))
    changed()
    model.encoder.layer[0], model.encoder.layer[2] = model.encoder.layer[2], model.encoder.layer[0]
    changed()
    model.resize_token_embeddings(300)
    changed()


def test_a_sentence_transformer(seed: int, tmp_path: Any) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(letter) for letter in range(97, 123)),
             *(f"##{chr(letter)}" for letter in range(97, 123))]  # fmt: skip
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    import transformers

    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    model = toy("BertModel", seed)
    model.config.pad_token_id = 0
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    embedder = library.SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = ["a short one", "quite a lot longer than the others are", "x", "medium sized text"]
    before = embedder.encode(texts)
    assert fastbert.accelerate(embedder) is embedder
    assert explain(embedder)
    torch.testing.assert_close(torch.tensor(embedder.encode(texts)), torch.tensor(before), rtol=1e-4, atol=1e-4)
