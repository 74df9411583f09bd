"""An encoder of transformers is accelerated by its record; `tests/test_additions.py` adds a whole architecture."""

from __future__ import annotations

import inspect
import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

import fastbert
import fastbert.errors
from fastbert.models import registry
from fastbert.models.bert.architecture import BERT

transformers = pytest.importorskip("transformers")
HOME = "throw_away.modeling_odd"


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Any:
    """transformers' BERT under another name, with modules of other names inside."""
    from transformers.models.bert import modeling_bert

    source = inspect.getsource(modeling_bert).replace("Bert", "Odd").replace("OddConfig", "BertConfig")
    for line in (
        "self.dense = nn.Linear(config.hidden_size, config.intermediate_size)",
        "hidden_states = self.dense(hidden_states)\n        hidden_states = self.intermediate_act_fn(hidden_states)",
    ):
        assert source.count(line) == 1
        source = source.replace(line, line.replace("self.dense", "self.widen"))
    module = ModuleType(HOME)
    module.__package__, module.__file__ = modeling_bert.__package__, modeling_bert.__file__
    monkeypatch.setitem(sys.modules, HOME, module)
    exec(compile(source, str(modeling_bert.__file__), "exec"), vars(module))
    return module


def test_a_record_makes_an_encoder_known(odd: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=40,
    )  # fmt: skip
    model = odd.OddModel(config).eval()
    ids, mask = torch.randint(0, 50, (3, 9)), torch.ones(3, 9, dtype=torch.int64)
    mask[1, 5:] = 0
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
    with pytest.raises(fastbert.errors.UserError, match="OddModel"):
        fastbert.accelerate(model)
    layout = replace(
        BERT.layouts[0], model="OddModel", module=HOME, intermediate="intermediate.widen", prediction_heads=()
    )
    monkeypatch.setitem(registry.ARCHITECTURES, "odd", replace(BERT, name="odd", layouts=(layout,)))
    fastbert.accelerate(model)
    with torch.no_grad():
        actual = model(input_ids=ids, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(actual[mask == 1], expected[mask == 1], rtol=1e-4, atol=1e-5)
    assert not actual[mask == 0].any(), "computed by the packed encoder, whose padding is zeros"
    spec = registry.architecture("odd").spec(config)
    assert len(spec.layers) == 2
    assert spec.layers[0].self_attention.heads == 2
    fastbert.restore(model)


def test_specs_follow_transformers_configs() -> None:
    roberta = registry.architecture("roberta").spec(transformers.RobertaConfig())
    assert roberta.embeddings.position_offset == 2
    distilbert = registry.architecture("distilbert").spec(transformers.DistilBertConfig())
    assert (distilbert.embeddings.token_types, distilbert.pooler, len(distilbert.layers)) == (0, False, 6)
    assert distilbert.layers[0].unfused is None
    with pytest.raises(fastbert.errors.UserError, match="'odd' is not one of bert"):
        registry.architecture("odd")
