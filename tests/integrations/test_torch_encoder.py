"""`torch.nn.TransformerEncoder`, accelerated."""

import copy
import logging
from typing import Any

import pytest
import torch
from accuracy import assert_as_accurate
from torch import Tensor, nn
from toys import gradients

import fastbert
from fastbert.errors import UserError
from fastbert.integrations.accelerate import explain

WIDTH, LENGTH = 48, 13
PADDING = torch.zeros(4, LENGTH, dtype=torch.bool)
PADDING[1, 5:] = True
PADDING[2, :3] = True
PADDING[3, 6] = True


def encoder(seed: int, norm: bool = False, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(seed)
    numbers = {"d_model": WIDTH, "nhead": 4, "dim_feedforward": 80, "dropout": 0.0, "batch_first": True, **options}
    made = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**numbers), 3, nn.LayerNorm(WIDTH) if norm else None, enable_nested_tensor=False
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.2 if parameter.dim() > 1 else 0.5)
    return made.eval()


def source(seed: int) -> Tensor:
    return torch.randn(4, LENGTH, WIDTH, generator=torch.Generator().manual_seed(seed))


KINDS: list[Any] = [
    pytest.param({"activation": "gelu"}, id="gelu"),
    pytest.param({}, id="relu"),
    pytest.param({"activation": nn.functional.silu}, id="function"),
    pytest.param({"activation": nn.GELU("tanh")}, id="gelu-tanh"),
    pytest.param({"bias": False}, id="no-bias"),
    pytest.param({"activation": "gelu", "norm": True}, id="final-norm"),
    pytest.param({"activation": "gelu", "layer_norm_eps": 1e-3}, id="eps"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("padding", [None, PADDING], ids=["full", "padded"])
@pytest.mark.parametrize("options", KINDS)
def test_outputs_and_gradients(options: dict[str, Any], padding: Tensor | None, dtype: torch.dtype, seed: int) -> None:
    model, x = encoder(seed, **options).train(), source(seed)
    there = torch.ones(4, LENGTH, dtype=torch.bool) if padding is None else ~padding
    upstream = torch.randn(int(there.sum()), WIDTH, generator=torch.Generator().manual_seed(seed + 1))
    results = []
    for one, kind in ((model, torch.float64), (model, dtype), (fastbert.accelerate(copy.deepcopy(model)), dtype)):
        one = copy.deepcopy(one).to(kind)
        value = one(x.to(kind), src_key_padding_mask=padding)
        results.append((value, gradients(one, value[there], upstream)))
    (exact, truths), (eager, expected), (actual, grads) = results
    assert_as_accurate(actual[there], eager[there], exact[there], factor=4.0)
    assert not actual[~there].any()
    assert grads.keys() == expected.keys()
    if dtype == torch.float32:
        for name, truth in truths.items():
            assert_as_accurate(grads[name], expected[name], truth, name, factor=4.0)


@torch.no_grad()
def test_inference_packs_the_joint_projection_once(seed: int) -> None:
    from fastbert.ops.native import prepacked_weights

    model, x = fastbert.accelerate(encoder(seed, activation="gelu")), source(seed)
    first = model(x, src_key_padding_mask=PADDING)
    copies = len(prepacked_weights._copies)
    for _ in range(3):
        assert torch.equal(model(x, src_key_padding_mask=PADDING), first)
    assert len(prepacked_weights._copies) == copies
    model.layers[0].self_attn.in_proj_weight.mul_(2)
    changed = model(x, src_key_padding_mask=PADDING)
    assert not torch.equal(changed, first)
    plain = fastbert.restore(copy.deepcopy(model)).train()(x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(changed[~PADDING], plain[~PADDING], rtol=1e-4, atol=1e-4)


def test_dropout_in_training(seed: int) -> None:
    model, x = fastbert.accelerate(encoder(seed, dropout=0.3, activation="gelu")), source(seed)
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
        model.train()
        assert not torch.equal(model(x), model(x))
        torch.manual_seed(seed)
        first = model(x)
        torch.manual_seed(seed)
        assert torch.equal(model(x), first)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        pytest.param({"mask": torch.zeros(LENGTH, LENGTH)}, "attention mask", id="mask"),
        pytest.param({"src_key_padding_mask": torch.zeros(4, LENGTH)}, "not bool", id="float-padding"),
    ],
)
@torch.no_grad()
def test_what_is_not_served(changed: Any, reason: str, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    model, x = encoder(seed).train(), source(seed)
    before = model(x, **changed)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        assert torch.equal(fastbert.accelerate(model)(x, **changed), before)
        model(x, **changed)
    assert len(caplog.records) == 1
    assert reason in caplog.records[0].getMessage()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"norm_first": True}, r"layers\.0 has norm_first=True", id="pre-ln"),
        pytest.param({"batch_first": False}, r"layers\.0 has batch_first=False", id="length-first"),
    ],
)
def test_encoders_of_another_form_are_left_alone(options: Any, message: str, seed: int) -> None:
    model = nn.Sequential(encoder(seed, **options))
    with pytest.raises(UserError, match=message):
        fastbert.accelerate(model)
    assert "forward" not in vars(model[0])


@torch.no_grad()
def test_hooks_and_the_way_back(seed: int) -> None:
    model, x, seen = nn.ModuleDict({"body": encoder(seed, activation="gelu")}), source(seed), []
    model.train()
    before = model["body"](x, src_key_padding_mask=PADDING)
    fastbert.accelerate(model)
    model["body"].layers[1].register_forward_hook(lambda module, args, output: seen.append(output.shape))
    actual = model["body"](x, src_key_padding_mask=PADDING)
    torch.testing.assert_close(actual[~PADDING], before[~PADDING], rtol=1e-4, atol=1e-4)
    assert seen == [(4, LENGTH, WIDTH)]
    assert any("body: layer 1 runs its own forward" in line for line in explain(model))
    fastbert.restore(model)
    assert torch.equal(model["body"](x, src_key_padding_mask=PADDING), before)
