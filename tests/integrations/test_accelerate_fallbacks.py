"""`accelerate` where it does not serve: the original forward runs and says so once, or the model is refused by name."""

import logging
from typing import Any

import pytest
import torch

import fastbert
from fastbert.errors import UserError
from fastbert.integrations.accelerate import explain

pytest.importorskip("transformers", reason="needs transformers")
from toys import COLUMNS, inputs, masks, real, toy

CALLS: list[Any] = [
    pytest.param({"output_attentions": True}, "output_attentions", id="attentions"),
    pytest.param({"output_hidden_states": [1]}, "a list of layers", id="some-layers"),
    pytest.param({"attention_mask": torch.ones(4, 1, COLUMNS, COLUMNS).tril().bool()}, "4 dim", id="4-d-mask"),
    pytest.param({"attention_mask": masks()["left"]}, "first column", id="left-padding"),
    pytest.param({"past_key_values": 0, "encoder_hidden_states": torch.zeros(4, 3, 64)}, "encoder_hidden", id="cross"),
]


@pytest.mark.parametrize(("changed", "reason"), CALLS)
@torch.no_grad()
def test_what_is_not_served_takes_the_original_forward_and_says_so_once(
    changed: dict[str, Any], reason: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = toy("BertModel", seed, attn_implementation="eager")
    changed = {name: value for name, value in changed.items() if name != "past_key_values"}
    kwargs = {**inputs(seed, masks()["right"]), **changed}
    before = model(**kwargs)
    fastbert.accelerate(model)
    with caplog.at_level(logging.WARNING, logger="fastbert"):
        outputs = [model(**kwargs) for _ in range(3)]
    for output in outputs:
        assert list(output.keys()) == list(before.keys())
        assert torch.equal(output.last_hidden_state, before.last_hidden_state)
    messages = [record.getMessage() for record in caplog.records if record.name == "fastbert"]
    assert len(messages) == 1
    assert reason in messages[0]
    assert any(reason in line for line in explain(model))
    # Recorders that transformers leaves behind are no reason to go on like that.
    plain = inputs(seed, masks()["right"])
    assert not model(**plain).last_hidden_state[~real(masks()["right"])].any()


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_three_dimensions_fares_as_it_did(dtype: torch.dtype, seed: int) -> None:
    """transformers 5 fails at them itself: what users see then stays the same."""
    model = toy("BertModel", seed)
    kwargs = inputs(seed, masks()["right"]) | {"attention_mask": torch.ones(4, COLUMNS, COLUMNS).tril().to(dtype)}

    def outcome() -> Any:
        try:
            return model(**kwargs).last_hidden_state.tolist()
        except RuntimeError as error:
            return type(error), str(error)

    before = outcome()
    fastbert.accelerate(model)
    assert outcome() == before
    assert any("3 dim" in line for line in explain(model))


@torch.no_grad()
def test_decoders_take_the_original_forward(seed: int) -> None:
    model = toy("BertModel", seed, is_decoder=True)
    kwargs = inputs(seed, masks()["right"])
    before = model(**kwargs).last_hidden_state
    assert torch.equal(fastbert.accelerate(model)(**kwargs).last_hidden_state, before)
    assert any("since it decodes" in line for line in explain(model))


def test_an_encoder_we_do_not_know_is_named_and_left_alone(seed: int) -> None:
    import transformers

    config = transformers.FNetConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, intermediate_size=32)
    model = transformers.FNetForMaskedLM(config)
    before = dict(vars(model))
    with pytest.raises(UserError, match=r"fnet \(FNetModel\) is not an encoder .* the model is unchanged"):
        fastbert.accelerate(model)
    assert vars(model).keys() == before.keys()
    with pytest.raises(UserError, match=r"Linear is not an encoder"):
        fastbert.accelerate(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"takes a torch\.nn\.Module, not str"):
        fastbert.accelerate("bert-base-uncased")
    native_model = fastbert.BertModel(fastbert.BertConfig.preset("tiny"))
    assert fastbert.accelerate(native_model) is native_model


def test_a_forward_of_ones_own_is_not_replaced(seed: int) -> None:
    model = toy("BertForMaskedLM", seed)
    model.bert.forward = lambda *args, **kwargs: None
    with pytest.raises(UserError, match=r"bert \(BertModel\) has a patched forward, set by tests"):
        fastbert.accelerate(model)
    assert not explain(model)
