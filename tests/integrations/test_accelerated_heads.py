"""`accelerate` of the masked-LM heads of the encoders whose layers a spec describes."""

import copy
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate, assert_gradients_as_accurate
from torch import Tensor, nn

import fastbert
from fastbert.integrations.forward_patch import patch_of
from fastbert.integrations.transformers.head import PackedHead

pytest.importorskip("transformers", reason="needs transformers")
from encoder_toys import KINDS, encoder
from toys import gradients, inputs, masks, real

RIGHT = masks()["right"]
THERE = real(RIGHT)
HEADS = {"modernbert": ("head", "decoder"), "eurobert": ("lm_head",), "deberta-v3": ("lm_predictions.lm_head",)}


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules of heads whose original forward ran."""
    modules: list[nn.Module] = []
    original = PackedHead.original

    def recorded(self: PackedHead, *args: Any, **kwargs: Any) -> Any:
        modules.append(self.module)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(PackedHead, "original", recorded)
    return modules


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_the_original(kind: str, seed: int, originals: list[nn.Module]) -> None:
    kwargs = inputs(seed, RIGHT)
    model = encoder(kind, seed, "ForMaskedLM").train()
    before, parameters = {name: x.clone() for name, x in model.state_dict().items()}, list(model.parameters())
    exact_model, eager_model = copy.deepcopy(model).double(), copy.deepcopy(model)
    assert fastbert.accelerate(model) is model
    exact, eager, actual = (one(**kwargs).logits for one in (exact_model, eager_model, model))
    assert_as_accurate(actual[THERE], eager[THERE], exact[THERE], "logits")
    assert not actual[~THERE].any(), "padding has no logits"
    upstream = torch.randn(actual[THERE].shape, generator=torch.Generator().manual_seed(seed))
    models, logits = (exact_model, eager_model, model), (exact, eager, actual)
    grads = [gradients(one, value[THERE], upstream) for one, value in zip(models, logits, strict=True)]
    assert_gradients_as_accurate(grads[2], grads[1], grads[0])
    with torch.no_grad():  # without a mask, and with the prepacked weights of inference
        for case in ({"input_ids": kwargs["input_ids"]}, kwargs):
            there = THERE if "attention_mask" in case else torch.ones_like(THERE)
            exact, eager, actual = (one(**case).logits for one in models)
            assert_as_accurate(actual[there], eager[there], exact[there], "logits in inference")
    assert not originals
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    fastbert.restore(model)
    assert all(patch_of(module) is None for module in model.modules())
    assert torch.equal(model(**kwargs).logits, eager_model(**kwargs).logits)


@pytest.mark.parametrize("kind", HEADS)
@torch.no_grad()
def test_a_head_that_is_not_as_written_runs_its_own_forward(kind: str, seed: int, originals: list[nn.Module]) -> None:
    kwargs, model = inputs(seed, RIGHT), encoder(kind, seed, "ForMaskedLM")
    before = model(**kwargs).logits
    fastbert.accelerate(model)
    for path in HEADS[kind]:
        module, shapes = model.get_submodule(path), []
        handle = module.register_forward_pre_hook(lambda _, args, shapes=shapes: shapes.append(args[0].shape))
        actual = model(**kwargs).logits
        handle.remove()
        assert originals == [module]
        originals.clear()
        assert [shape[:2] for shape in shapes] == [THERE.shape]
        torch.testing.assert_close(actual[THERE], before[THERE], rtol=1e-4, atol=1e-4)
    module = model.get_submodule(HEADS[kind][0])
    if hasattr(module, "dense"):
        activation = "act" if hasattr(module, "act") else "transform_act_fn"
        setattr(module, activation, nn.Softsign())
        assert not torch.allclose(model(**kwargs).logits[THERE], before[THERE], atol=1e-2)
        assert originals == [module]


def test_losses_of_masked_tokens(seed: int, originals: list[nn.Module]) -> None:
    """Also of ModernBERT's sparse prediction, whose head reads the rows of masked tokens alone."""
    kwargs = inputs(seed, RIGHT)
    labels = torch.full_like(kwargs["input_ids"], -100)
    labels[0, 3:6], labels[2, 1] = 7, 9
    for kind, options in (
        ("modernbert", {}), ("modernbert", {"sparse_prediction": True}), ("eurobert", {}), ("deberta-v3", {}),
        ("nomic", {}),
    ):  # fmt: skip
        model = encoder(kind, seed, "ForMaskedLM", **options)
        before = model(**kwargs, labels=labels)
        after = fastbert.accelerate(model)(**kwargs, labels=labels)
        assert after.logits.shape == before.logits.shape
        torch.testing.assert_close(after.loss, before.loss, rtol=1e-4, atol=1e-4)
    assert not originals


@pytest.mark.parametrize("kind", ["mpnet", "modernbert", "eurobert", "deberta-v3", "deberta-v2", "nomic", "albert"])
@torch.no_grad()
def test_dtypes_of_logits_under_autocast(kind: str, seed: int, originals: list[nn.Module]) -> None:
    kwargs, model = inputs(seed, RIGHT), encoder(kind, seed, "ForMaskedLM")
    exact = copy.deepcopy(model).double()(**kwargs).logits
    with torch.autocast("cpu", torch.bfloat16):
        eager = model(**kwargs).logits
        actual = fastbert.accelerate(model)(**kwargs).logits
    assert_as_accurate(actual[THERE], eager[THERE], exact[THERE], "autocast")
    half = fastbert.restore(model).to(torch.bfloat16)
    eager = half(**kwargs).logits
    assert_as_accurate(fastbert.accelerate(half)(**kwargs).logits[THERE], eager[THERE], exact[THERE], "bf16")
    assert not originals


def test_adapters_in_heads(seed: int) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    kwargs = inputs(seed, RIGHT)
    for kind, targets in (("modernbert", ["head.dense", "decoder"]), ("eurobert", ["lm_head"])):
        for first in (True, False):
            model = encoder(kind, seed, "ForMaskedLM")
            if not first:
                fastbert.accelerate(model)
            model = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, r=2)).eval()
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "lora_" in name:
                        parameter.normal_(0.0, 0.2)
            expected = fastbert.restore(copy.deepcopy(model))(**kwargs).logits[THERE]
            actual: Tensor = fastbert.accelerate(model)(**kwargs).logits[THERE]
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
